#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "dovetail/jobs/speed.h"

namespace dovetail::jobs {

/// Divides the micro-batches of a training step among ranks (processes) of unequal speed. All
/// micro-batches have the same size. A rank's share is the number of micro-batches that it computes
/// per step. Shares are chosen so that all ranks finish at about the same time. Each rank has at
/// least one micro-batch: without any, its speed would no longer be measured.
///
/// Every rank holds such an object and passes the times of all ranks to it. Results depend only on
/// the arguments. So ranks that pass the same times hold the same shares, without communication.
class MicroBatchShares {
 public:
  /// Minimum number of recorded steps before shares change for the first time. SpeedHistory needs
  /// as many measurements to detect a changed machine.
  static constexpr size_t kLeastTimes = SpeedHistory::kChanged;

  /// `shares` is the initial number of micro-batches of each rank, 1 or more. `gain` is a fraction,
  /// the minimum saving. Shares change only if this lowers the step time to less than (1 - gain)
  /// times its current value. Both step times are predicted from the times recorded so far.
  MicroBatchShares(std::vector<int64_t> shares, double gain);

  /// Returns the current number of micro-batches of each rank.
  const std::vector<int64_t>& shares() const { return shares_; }

  /// Change of the shares.
  struct Move {
    std::vector<int64_t> from, to;  ///< shares of the ranks before and after the change
    std::vector<double> rank_s;  ///< seconds per micro-batch of each rank: median of recent times
    /// Predicted seconds of a step with the shares `from`, and with the shares `to`.
    double from_s = 0, to_s = 0;
  };
  /// Records a step in which rank r computed `micro_batches[r]` micro-batches in `seconds[r]`. All
  /// counts and times must be above 0. If a change saves enough (`gain`), changes shares() and
  /// returns the change. Otherwise returns nullopt.
  std::optional<Move> add(std::span<const int64_t> micro_batches, std::span<const double> seconds);

 private:
  std::vector<int64_t> shares_;
  double gain_;
  /// Times per micro-batch, one history per rank. A rank computes its micro-batches one by one.
  std::vector<SpeedHistory> history_;
};

}  // namespace dovetail::jobs
