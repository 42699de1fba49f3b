#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "dovetail/comm/group.h"
#include "dovetail/plan/solve/memory_floor.h"
#include "dovetail/train/resolve/resolve.h"

namespace dovetail::cli {

/// The number of samples that a step's memory depends on: train.micro_batch where a step has
/// several of them, else train.batch.
class SampleKey {
 public:
  explicit SampleKey(const ResolvedRun& run);
  const char* name() const { return accumulates_ ? "train.micro_batch" : "train.batch"; }
  int64_t asked() const { return asked_; }
  bool accumulates() const { return accumulates_; }

 private:
  bool accumulates_;
  int64_t asked_;
};

/// Records a step of a run with so many samples at once, on random tokens; nothing of it is timed.
plan::Graph record_with(const ResolvedRun& run, const std::shared_ptr<Group>& group,
                        const SampleKey& key, int64_t samples);

/// The largest number of samples for which `fits`, or 0: if it fits with some, it fits with fewer.
int64_t largest_that(const std::function<bool(int64_t)>& fits);

/// What to do about a budget below the floor of `graph`, the step with the samples asked for: the
/// largest number that it is enough for, from one more recording.
std::string help_below_floor(const ResolvedRun& run, const std::shared_ptr<Group>& group,
                             const plan::Graph& graph, const std::string& budget,
                             const plan::SolveOptions& options, const std::string& config);

}  // namespace dovetail::cli
