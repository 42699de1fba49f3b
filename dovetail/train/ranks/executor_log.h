#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "dovetail/jobs/executor_shares.h"
#include "dovetail/train/metrics/metrics.h"

namespace dovetail::train {

/// Texts and numbers about the executors that share the steps of a run, for the log and the run's
/// files.
class ExecutorLog {
 public:
  /// `names`: one per executor (jobs::executor_names). `tokens`: tokens of a micro-batch. `gain`:
  /// balance.gain.
  ExecutorLog(std::vector<std::string> names, int64_t tokens, double gain);

  /// Adds a step to the totals of `summary`. Returns its entries for timings.jsonl, one for each
  /// executor that has micro-batches.
  std::vector<ExecutorTimings> add(const std::vector<int64_t>& shares,
                                   const std::vector<jobs::ExecutorShares::Times>& times);

  /// Returns a line of balance.jsonl: {"step", "executors", "shares"}. `step` is the first step
  /// with these shares.
  nlohmann::ordered_json line(int64_t step, const std::vector<int64_t>& shares) const;
  /// Returns a line of balance.jsonl for the new shares of `move`, with the cause. "executor_ms" is
  /// the time of one micro-batch on each executor. "compute_ms" and "before_ms" are a step's
  /// predicted times with the new and the old shares. "left_out" has a step's predicted times with
  /// and without each executor that was left out.
  nlohmann::ordered_json line(int64_t step, const jobs::ExecutorShares::Move& move) const;
  /// Returns lines for the log about a change of shares from step `step` on. Each executor that was
  /// left out has a line with its times.
  std::vector<std::string> words(int64_t step, const jobs::ExecutorShares::Move& move) const;
  /// Returns a line for the log: each executor's share of the micro-batches, and its tokens per
  /// second. It is about all steps that were added; empty if there were none.
  std::string summary() const;

 private:
  struct Total {
    int64_t micro_batches = 0;
    double seconds = 0;
  };
  std::vector<std::string> names_;
  int64_t tokens_;
  double gain_;
  std::vector<Total> totals_;
};

/// Returns the owner of entry `index` of "shares" in a line of balance.jsonl: "rank <index>", or
/// the executor's name.
std::string sharer_name(const nlohmann::json& line, size_t index);

}  // namespace dovetail::train
