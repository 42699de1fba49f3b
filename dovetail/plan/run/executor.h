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

/// Runs a captured step by a plan on the CPU. All storages and workspaces have planned addresses in
/// one arena. Two threads copy tensors. Without lossy compression, results equal bit for bit a step
/// without a plan that runs the same algorithms.
///
/// The constructor moves the tensors declared at capture into the arena. Tensors that the plan
/// starts on the host move to the host tier, which is memory or a mapped file. Their values may be
/// read and written between steps, but their sizes must not change. The destructor gives them
/// separate memory again. It is in a file (plan/run/paged_memory.h) if the host tier is a file.
/// Tensors are packed within the arena, in the forms of StepGraph::forms.
class Executor {
 public:
  struct Options {
    std::filesystem::path folder;  ///< folder of the file for offloaded tensors; empty: use memory
    /// Run nothing during a copy, so that the time of each operation is undisturbed.
    bool copies_alone = false;
    /// Permit another algorithm when a node runs again. It may give other bits.
    bool mixed_algorithms = false;
  };
  /// Checks the plan first. Throws InvalidPlan if `check` rejects it, or if a node runs again by
  /// another algorithm. Throws UserError if the plan packs a tensor by a codec that is not in the
  /// tensor's list (plan/record/packable.h). Throws UserError if the plan offloads a tensor below
  /// kPagedBytes.
  Executor(CapturedStep step, StepGraph graph, Plan plan, const Options& options);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  struct Run {
    double seconds = 0;
    /// Span of each action in seconds from the step's start, without its waits.
    std::vector<Timeline::Span> actions;
  };
  /// Runs one step. Throws UserError if an operation requests memory that was not planned, or if a
  /// copy fails. Once a run has thrown, every later run throws UserError.
  Run run();
  /// Runs one step by calling the recorded function again (plan/run/guide.h). The function computes
  /// everything again except its operations, which run as planned. Also throws UserError if `work`
  /// is not the recorded function, or if the plan's first runs are not in recorded order. Nor may a
  /// node run again by an algorithm other than the captured one.
  Run run(const std::function<void()>& work, const CallChecks& checks);

  /// Results of the step, valid until the next run.
  std::vector<at::Tensor> results() const;
  int64_t arena_bytes() const;
  int64_t resident_bytes() const;  ///< see Arena::resident_bytes
  const Timeline& predicted() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dovetail::plan
