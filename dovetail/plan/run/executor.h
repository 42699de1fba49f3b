#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "dovetail/plan/model/check.h"
#include "dovetail/plan/record/captured_step.h"
#include "dovetail/plan/record/step_graph.h"
#include "dovetail/plan/run/guide.h"

namespace dovetail::plan {

/// Runs a captured step (plan/record/captured_step.h) by a plan (plan/model/actions.h) on the
/// step's device. The fast memory of the plan is one memory region, the arena. All storages and
/// workspaces have planned addresses in it. Offloaded tensors are in the slow tier: memory of the
/// host, or a file. Copies between them run beside computing (plan/device/step_device.h). Without
/// lossy compression, results have the same bits as those from a step that runs the same algorithms
/// without a plan.
///
/// The constructor moves the tensors declared at capture (StepTensors) into the arena. Tensors that
/// the plan starts on the host move to the slow tier instead. Between steps, code may read and
/// write the values of all these tensors, but must not change their sizes. The destructor moves all
/// these tensors to separate memory. This memory is in a file (plan/device/paged_memory.h) if the
/// slow tier is a file.
///
/// Compressed tensors are in the arena, too, in the forms of StepGraph::forms.
class Executor {
 public:
  struct Options {
    /// Folder for the file of the slow tier; if empty, the slow tier is in memory.
    std::filesystem::path folder;
    /// Run nothing during a copy, so that copies do not disturb measured durations of operations.
    bool copies_alone = false;
    /// Permit that a node runs again by another algorithm than in its first run, which may give
    /// other bits.
    bool mixed_algorithms = false;
  };
  /// Checks the plan first. Throws InvalidPlan if `check` rejects it, or if a node runs again by
  /// another algorithm. Throws UserError if the plan
  /// - compresses a tensor by a codec without a form in StepGraph::forms,
  /// - compresses a tensor without a list of codecs (GraphTensor::codecs, set by
  ///   plan/record/packable.h),
  /// - offloads a tensor below kPagedBytes (plan/model/packing.h), or starts it on the host,
  /// - starts a tensor on the host, and the step runs on a GPU.
  Executor(CapturedStep step, StepGraph graph, Plan plan, const Options& options);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Measured times of one step.
  struct Run {
    /// Duration of the step. On a GPU without `timed`: of giving the work to the GPU.
    double seconds = 0;
    /// Per action of the plan: its start (after its waits) and its end, in seconds since the step's
    /// start. Empty on a GPU without `timed`.
    std::vector<Timeline::Span> actions;
  };
  /// Runs one step. With `timed`, the call waits for a GPU. Throws UserError if an operation
  /// requests memory that was not planned, or if a copy fails. Once a run has thrown, every later
  /// run throws UserError.
  Run run(bool timed = true);
  /// Runs one step by calling the recorded function again (plan/run/guide.h). The code of the
  /// function runs, and the operations that it calls run as planned. Throws UserError as run()
  /// does. Also throws UserError if
  /// - `work` calls other operators, or uses other shapes, than the recorded function,
  /// - the first runs of nodes in the plan are not in recorded order,
  /// - a node uses an algorithm other than the recorded one, with the recorded operators, and runs
  ///   more than once.
  Run run(const std::function<void()>& work, const CallChecks& checks, bool timed = true);

  /// Returns the results of the most recent run (CapturedStep::results), valid until the next run
  /// or release_scratch.
  std::vector<at::Tensor> results() const;
  int64_t arena_bytes() const;
  /// Returns the maximum of Region::resident_bytes of the arena, now and before release_scratch.
  int64_t resident_bytes() const;
  /// Releases the pages of the arena that hold nothing between steps, where the device can.
  void release_scratch();
  /// Returns the simulation of the plan by `check`.
  const Timeline& predicted() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dovetail::plan
