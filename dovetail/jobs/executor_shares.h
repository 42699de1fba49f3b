#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "dovetail/jobs/speed.h"

namespace dovetail::jobs {

/// Divides the micro-batches of a training step among the executors of one process. All
/// micro-batches have the same size. Executor 0, the owner, has the weights and the optimizer. Each
/// other executor copies the weights, computes its micro-batches, and hands their gradients to the
/// owner. The owner adds these gradients once all executors are done.
///
/// Model of a step with n[e] micro-batches on executor e, in seconds:
///
///     step = max over e with n[e] > 0 of (start[e] + rate[e] * n[e]) + sum over e of add[e] * n[e]
///
/// `start` is the time of copying the weights, `rate` of computing one micro-batch, `add` of adding
/// the gradients of one micro-batch. All three are medians of recent measurements (SpeedHistory).
class ExecutorShares {
 public:
  /// Number of first steps that do not count: they allocate memory and load libraries.
  static constexpr size_t kWarmUpSteps = 1;
  /// Minimum number of recorded steps before shares change for the first time.
  static constexpr size_t kLeastTimes = 2;

  /// `shares`: initial number of micro-batches of each executor. The owner has at least one. An
  /// executor with 0 is left out. `gain` is a fraction in [0, 1): see `add`.
  ExecutorShares(std::vector<int64_t> shares, double gain);

  /// Returns shares for a first measurement of `executors` executors: one micro-batch for each but
  /// the owner, which has the rest. Requires micro_batches >= executors.
  static std::vector<int64_t> probe(size_t executors, int64_t micro_batches);
  /// Returns shares for a resumed run: `stored`, except that each executor that was left out gets a
  /// micro-batch of the owner. So it is measured again. Returns probe() if `stored` does not fit
  /// the numbers.
  static std::vector<int64_t> resumed(const std::vector<int64_t>& stored, size_t executors,
                                      int64_t micro_batches);

  /// Returns the current number of micro-batches of each executor; 0 if it is left out.
  const std::vector<int64_t>& shares() const { return shares_; }

  /// Measured seconds of one executor in a step.
  struct Times {
    double start_s = 0;    ///< copying the weights; 0 if it copied none
    double compute_s = 0;  ///< forward and backward of all its micro-batches
    double add_s = 0;      ///< the owner adding the gradients of all its micro-batches
  };
  /// Executor that was left out because it does not pay.
  struct LeftOut {
    size_t executor = 0;
    /// Predicted seconds of a step with the best shares that include the executor, and without it.
    double with_s = 0, without_s = 0;
    double rate_s = 0;  ///< seconds of one micro-batch on the executor
  };
  /// Change of the shares.
  struct Move {
    std::vector<int64_t> from, to;  ///< micro-batches of the executors before and after
    /// Seconds of one micro-batch on each executor; 0 for an executor left out earlier.
    std::vector<double> rate_s;
    double from_s = 0, to_s = 0;  ///< predicted seconds of a step with `from`, and with `to`
    std::vector<LeftOut> left_out;
  };
  /// Records a step that was computed with shares(). `times` has an entry for each executor; an
  /// entry is not read if its executor is left out. Changes the shares if one of these holds:
  ///
  /// - An executor saves less than the fraction `gain` of a step's predicted time. It is left out
  ///   from then on.
  /// - Other shares save at least the fraction `gain` of it.
  ///
  /// Returns the change, or nullopt.
  std::optional<Move> add(std::span<const Times> times);

 private:
  struct History {
    SpeedHistory start, rate, add;
  };
  double step_s(std::span<const int64_t> shares) const;
  std::vector<int64_t> best(const std::vector<bool>& used) const;
  std::vector<LeftOut> leave_out(std::vector<bool>& used) const;

  std::vector<int64_t> shares_;
  double gain_;
  size_t steps_ = 0;  ///< steps recorded or skipped so far
  std::vector<History> history_;
};

}  // namespace dovetail::jobs
