#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "dovetail/jobs/speed.h"

namespace dovetail::jobs {

/// Numbers of equal micro-batches that ranks of unequal speed compute in a step. All ranks shall
/// finish at the same time. Each rank has at least one micro-batch: without any, its speed would no
/// longer be measured.
///
/// The shares depend only on the arguments of the members. So ranks that pass the same times hold
/// the same shares.
class MicroBatchShares {
 public:
  /// Times per rank that are needed before shares move for the first time. SpeedHistory needs the
  /// same number to detect that a machine has changed.
  static constexpr size_t kLeastTimes = SpeedHistory::kChanged;

  /// `shares`: micro-batches of each rank, 1 or more. Shares move if the predicted step time falls
  /// below 1 - `gain` times the time with the current shares. Predictions use the times recorded so
  /// far.
  MicroBatchShares(std::vector<int64_t> shares, double gain);

  const std::vector<int64_t>& shares() const { return shares_; }

  struct Move {
    std::vector<int64_t> from, to;
    /// Predicted seconds per micro-batch of each rank: the median of recent times.
    std::vector<double> rank_s;
    /// Predicted time until the last rank is done, with `from` and with `to`.
    double from_s = 0, to_s = 0;
  };
  /// Records a step in which rank r computed `micro_batches[r]` micro-batches in `seconds[r]`, both
  /// above 0. Returns the change of the shares, if any.
  std::optional<Move> add(std::span<const int64_t> micro_batches, std::span<const double> seconds);

 private:
  std::vector<int64_t> shares_;
  double gain_;
  /// Seconds per micro-batch of each rank. Micro-batches are equal and run one after another.
  std::vector<SpeedHistory> history_;
};

}  // namespace dovetail::jobs
