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

/// Runs a captured step by a plan, on the CPU: all its storages and workspaces at planned addresses
/// of one arena, copies on two threads of their own. Without lossy compression every bit is what
/// the step itself would have given, had each of its operations been run by the algorithm that the
/// plan names.
///
/// While it lives, the tensors that the capture was told of lie in the arena, or, where the plan
/// has them start on the host, there (in a file mapped into memory, if that is the host tier):
/// their values may be read and written between two steps, not their sizes. Its destructor gives
/// them memory of their own again, which lies in a file too (plan/run/paged_memory.h) where the
/// host tier is one. Tensors are packed as StepGraph::forms says, within the arena.
class Executor {
 public:
  struct Options {
    std::filesystem::path folder;  ///< of the file that tensors are offloaded to; empty: to memory
    bool copies_alone = false;  ///< nothing runs beside a copy, so that operations take what they
                                ///< take by themselves
    bool mixed_algorithms =
        false;  ///< allow a node that runs again another algorithm, and so other bits
  };
  /// Checks the plan (InvalidPlan) before anything else, also that a node that runs again does so
  /// by one algorithm. UserError where it packs a tensor by a codec that is not among the tensor's
  /// own (plan/record/packable.h), or offloads one below kPagedBytes.
  Executor(CapturedStep step, StepGraph graph, Plan plan, const Options& options);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  struct Run {
    double seconds = 0;
    std::vector<Timeline::Span>
        actions;  ///< seconds from the step's start, without what each waited for
  };
  /// One step. UserError when an operation asks for memory that was not planned, when copying
  /// fails, or after an earlier run has thrown.
  Run run();
  /// The same by calling the function that was recorded, which then reads and computes anew all but
  /// what its operations do (plan/run/guide.h). UserError also where it is not the recorded one,
  /// and for a plan whose nodes run first in another order or, run again, by another algorithm than
  /// the captured one.
  Run run(const std::function<void()>& work, const CallChecks& checks);

  /// What the step returned, valid until the next run.
  std::vector<at::Tensor> results() const;
  int64_t arena_bytes() const;
  int64_t resident_bytes() const;  ///< Arena::resident_bytes
  const Timeline& predicted() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dovetail::plan
