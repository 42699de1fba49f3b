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

/// Config key for the number of samples that decides a step's memory. It is train.micro_batch if a
/// step has several micro-batches, else train.batch.
class SampleKey {
 public:
  explicit SampleKey(const train::ResolvedRun& run);
  const char* name() const { return accumulates_ ? "train.micro_batch" : "train.batch"; }
  int64_t asked() const { return asked_; }
  bool accumulates() const { return accumulates_; }

 private:
  bool accumulates_;
  int64_t asked_;
};

/// Records a step of a run with `samples` samples at once, on random tokens. No operation is timed.
plan::Graph record_with(const train::ResolvedRun& run, const std::shared_ptr<comm::Group>& group,
                        const SampleKey& key, int64_t samples);

/// Returns the largest number of samples for which `fits` is true, or 0. If `fits` is true for a
/// number, it must be true for all smaller numbers.
int64_t largest_that(const std::function<bool(int64_t)>& fits);

/// Returns advice for a budget below the floor of `graph`, the step with the requested samples. It
/// gives the largest number of samples for which the budget is enough. This takes one more
/// recording.
std::string help_below_floor(const train::ResolvedRun& run,
                             const std::shared_ptr<comm::Group>& group, const plan::Graph& graph,
                             const std::string& budget, const plan::SolveOptions& options,
                             const std::string& config);

}  // namespace dovetail::cli
