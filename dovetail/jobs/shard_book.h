#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace dovetail::jobs {

/// Record of results and failures per shard, in one iteration of a Scheduler (jobs/scheduler.h). A
/// shard is done when one result counts for it. The book selects some shards for verification:
/// `is_verified` returns true for them. A result of such a shard counts only when two devices have
/// delivered it with equal digests. Results delivered before that are called votes; all of them
/// differ.
class ShardBook {
 public:
  /// Begins an iteration. rows[i] is the number of rows of shard i. All numbers are equal, except
  /// that the last shard may have fewer rows. Shard i is selected for verification if
  /// i + iteration is a multiple of `verify_every`. If `verify_every` is 0, none is selected.
  void begin(const std::vector<int64_t>& rows, int64_t iteration, int64_t verify_every);

  int64_t size() const { return static_cast<int64_t>(shards_.size()); }
  bool all_done() const { return num_done_ == size(); }
  bool done(int64_t shard) const { return at(shard).done; }
  /// Returns the total number of rows of `count` shards from shard `begin` on.
  int64_t rows(int64_t begin, int64_t count) const;
  bool is_verified(int64_t shard) const { return at(shard).verified; }

  /// Records that computing `shard` threw on `device`; `alone`: in a call for this shard only.
  /// Returns how often the shard has thrown alone in this iteration, on all devices together.
  int64_t failed(int64_t shard, size_t device, bool alone);
  /// Returns true if `failed` was called for this shard and device in this iteration.
  bool has_failed(int64_t shard, size_t device) const;
  /// Returns true if a result of `device` is a vote on the shard.
  bool has_voted(int64_t shard, size_t device) const;

  /// Effect of a delivered result.
  enum class Outcome {
    /// The result is ignored: the shard is done, or this device has delivered it before.
    kDropped,
    kCounts,  ///< The shard is now done: the result of Result::device counts.
    /// The shard is selected for verification and no two of its results agree yet. Another device
    /// must compute it.
    kOpen,
  };
  struct Result {
    Outcome outcome;
    size_t device = 0;  ///< kCounts: device whose result counts
    /// kCounts: devices whose earlier results of the shard differ from the one that counts.
    std::vector<size_t> wrong = {};
  };
  /// Records that `device` has computed `count` shards from `begin` on. `digest` is a hash of all
  /// bits of its result. The result counts for all of these shards or for none: it is dropped if
  /// one of them is done. Several shards must not include one selected for verification.
  Result deliver(int64_t begin, int64_t count, size_t device, uint64_t digest);

  /// Ends the verification of a shard that no further device can compute. If exactly one device has
  /// delivered the shard, its result counts: sets `device` to that device and returns true. If
  /// several devices have delivered it, their results differ and none counts: returns false.
  bool accept_unverified(int64_t shard, size_t& device);
  /// Returns the devices whose results are votes on the shard.
  std::vector<size_t> voters(int64_t shard) const;

 private:
  struct Vote {
    size_t device;
    uint64_t digest;
  };
  struct Shard {
    bool done = false, verified = false;
    int64_t failed_alone = 0;
    std::vector<size_t> failed_by = {};
    std::vector<Vote> votes = {};
  };
  const Shard& at(int64_t shard) const { return shards_.at(static_cast<size_t>(shard)); }
  Shard& at(int64_t shard) { return shards_.at(static_cast<size_t>(shard)); }
  void finish(Shard& shard);

  std::vector<Shard> shards_;
  int64_t num_done_ = 0;
  int64_t rows_ = 0, last_rows_ = 0;  ///< rows of each shard, and of the last one
};

}  // namespace dovetail::jobs
