#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace dovetail::jobs {

/// What became of each shard of an iteration: whose result counts, who failed it, and for verified
/// ones who agrees.
class ShardBook {
 public:
  /// The shards' rows, in order. Of every `verify_every` one is verified (0: none), another one in
  /// each iteration.
  void begin(const std::vector<int64_t>& rows, int64_t iteration, int64_t verify_every);

  int64_t size() const { return static_cast<int64_t>(shards_.size()); }
  bool all_done() const { return num_done_ == size(); }
  bool done(int64_t shard) const { return at(shard).done; }
  int64_t rows(int64_t begin, int64_t count) const;
  bool is_verified(int64_t shard) const { return at(shard).verified; }

  /// Returns how often the shard has failed by now.
  int64_t failed(int64_t shard, size_t device);
  bool has_failed(int64_t shard, size_t device) const;
  bool has_voted(int64_t shard, size_t device) const;

  enum class Outcome {
    kDropped,  ///< a result of it counts already, or this device's second one of a verified shard
    kCounts,   ///< that of `device`
    kOpen,     ///< another device must compute it: the first result of a verified shard, or no two
               ///< agree
  };
  struct Result {
    Outcome outcome;
    size_t device = 0;               ///< whose result counts
    std::vector<size_t> wrong = {};  ///< devices whose results differ from it
  };
  Result deliver(int64_t shard, size_t device, uint64_t digest);

  /// No other device can compute it: its only result counts. Of several, which differ, none does:
  /// false.
  bool accept_unverified(int64_t shard, size_t& device);
  /// The devices that computed a verified shard.
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
