#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace dovetail::jobs {

/// State of each shard of an iteration: whose result counts, which devices failed, and the votes on
/// a verified shard.
class ShardBook {
 public:
  /// Begins an iteration over shards with these numbers of rows. One shard in `verify_every` is
  /// verified (0: none), another one in each iteration.
  void begin(const std::vector<int64_t>& rows, int64_t iteration, int64_t verify_every);

  int64_t size() const { return static_cast<int64_t>(shards_.size()); }
  bool all_done() const { return num_done_ == size(); }
  bool done(int64_t shard) const { return at(shard).done; }
  int64_t rows(int64_t begin, int64_t count) const;
  bool is_verified(int64_t shard) const { return at(shard).verified; }

  /// Records that a device failed the shard. Returns how often the shard has failed so far.
  int64_t failed(int64_t shard, size_t device);
  bool has_failed(int64_t shard, size_t device) const;
  bool has_voted(int64_t shard, size_t device) const;

  enum class Outcome {
    /// Ignored: the shard is done, or the device has already delivered this verified shard.
    kDropped,
    kCounts,  ///< the result of `device` counts
    /// Another device must compute it: this is the first result of a verified shard, or no two
    /// results agree.
    kOpen,
  };
  struct Result {
    Outcome outcome;
    size_t device = 0;               ///< device whose result counts
    std::vector<size_t> wrong = {};  ///< devices whose results differ from the one that counts
  };
  Result deliver(int64_t shard, size_t device, uint64_t digest);

  /// Accepts the only result of a verified shard that no other device can compute. Returns false if
  /// there are several results, which then differ: none of them counts.
  bool accept_unverified(int64_t shard, size_t& device);
  /// Returns the devices that computed a verified shard.
  std::vector<size_t> voters(int64_t shard) const;

 private:
  struct Vote {
    size_t device;
    uint64_t digest;
  };
  struct Shard {
    int64_t rows = 0;
    bool done = false, verified = false;
    std::vector<size_t> failed_by = {};
    std::vector<Vote> votes = {};
  };
  const Shard& at(int64_t shard) const { return shards_.at(static_cast<size_t>(shard)); }
  Shard& at(int64_t shard) { return shards_.at(static_cast<size_t>(shard)); }
  void finish(Shard& shard);

  std::vector<Shard> shards_;
  int64_t num_done_ = 0;
};

}  // namespace dovetail::jobs
