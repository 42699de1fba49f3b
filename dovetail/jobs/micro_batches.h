#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "dovetail/jobs/speed.h"

namespace dovetail::jobs {

/// How the equal micro-batches of a step are shared out over ranks of unequal speed, so that all
/// have computed theirs at the same time. Each rank has one at least: without any its speed would
/// no longer be known.
///
/// A function of what it is given alone: ranks that give theirs the same times hold the same
/// shares.
class MicroBatchShares {
 public:
  /// Of each rank, before shares move for the first time: as many as tell SpeedHistory that a
  /// machine has changed.
  static constexpr size_t kLeastTimes = SpeedHistory::kChanged;

  /// `shares`: micro-batches of each rank, 1 or more. They move when a step then computes for less
  /// than 1 - `gain` of what it would as they are, by the times so far.
  MicroBatchShares(std::vector<int64_t> shares, double gain);

  const std::vector<int64_t>& shares() const { return shares_; }

  struct Move {
    std::vector<int64_t> from, to;
    std::vector<double> rank_s;   ///< of a rank for one micro-batch: the median of late
    double from_s = 0, to_s = 0;  ///< until the last rank has computed its share
  };
  /// A step in which rank r has computed `micro_batches[r]` of them in `seconds[r]`, both above 0;
  /// what to do about it.
  std::optional<Move> add(std::span<const int64_t> micro_batches, std::span<const double> seconds);

 private:
  std::vector<int64_t> shares_;
  double gain_;
  std::vector<SpeedHistory>
      history_;  ///< of each rank, of one micro-batch: they are equal and follow one another
};

}  // namespace dovetail::jobs
