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

/// Config key for the number of samples that a step computes at once, which determines its memory.
/// The key is train.micro_batch if a step has several micro-batches, else train.batch.
class SampleKey {
 public:
  explicit SampleKey(const train::ResolvedRun& run);
  const char* name() const { return accumulates_ ? "train.micro_batch" : "train.batch"; }
  /// Returns the config's value of this key: the number of samples at once.
  int64_t asked() const { return asked_; }
  /// Returns true if a step has several micro-batches, whose gradients are accumulated.
  bool accumulates() const { return accumulates_; }

 private:
  bool accumulates_;
  int64_t asked_;
};

/// Runs a few training steps with `samples` samples at once, on random data. Returns the recorded
/// graph: the operations and tensors of a step. No operation is timed.
plan::Graph record_with(const train::ResolvedRun& run, const std::shared_ptr<comm::Group>& group,
                        const SampleKey& key, int64_t samples);

/// Returns the largest number n >= 1 of samples for which fits(n) is true, or 0 if there is none.
/// If `fits` is true for a number, it must be true for all smaller numbers.
int64_t largest_that(const std::function<bool(int64_t)>& fits);

/// Returns a help text for the error that memory budget `budget` is below the floor of `graph`. The
/// floor is the minimum bytes that any plan needs. `graph` is the recorded step with
/// SampleKey::asked samples. The text gives the largest number of samples for which the budget is
/// enough. To find this number, the function records one more step. `config` is the name of the
/// config's file.
std::string help_below_floor(const train::ResolvedRun& run,
                             const std::shared_ptr<comm::Group>& group, const plan::Graph& graph,
                             const std::string& budget, const plan::SolveOptions& options,
                             const std::string& config);

}  // namespace dovetail::cli
