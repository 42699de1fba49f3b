#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dovetail/plan/record/capture.h"
#include "dovetail/plan/run/paged_memory.h"
#include "dovetail/plan/solve/solve.h"
#include "dovetail/train/memory/record.h"

namespace dovetail {

/// What a memory plan came to.
struct MemoryPlanReport {
  int64_t budget_bytes = 0;
  int64_t keep_all_bytes = 0;  ///< the peak with everything kept
  int64_t floor_bytes = 0;
  int64_t step_bytes = 0;        ///< all that a step takes, from the first on that runs by the plan
  int64_t offloaded_bytes = 0;   ///< to the slow tier in a step
  int64_t again_bytes = 0;       ///< made again in a step
  int64_t on_host_bytes = 0;     ///< changed where they lie in the slow tier
  int64_t compressed_bytes = 0;  ///< compressed in a step,
  int64_t packed_bytes = 0;      ///< to so many
  int nodes = 0;                 ///< operations of a step
  double predicted_s = 0,
         keep_all_s = 0;  ///< of a step: by the plan, and of all its operations once
  double solve_s = 0;
  plan::Bandwidth bandwidth;
  int64_t process_bytes =
      0;  ///< predicted growth of the process above Options::idle_bytes; 0: not known
};

nlohmann::ordered_json to_json(const MemoryPlanReport& report);

/// Training steps within a memory budget, by a plan that is made on the way. All steps are steps of
/// the same training.
///
/// 1. Three steps are recorded, the first of which makes gradients and moments. They stay within
/// the budget by
///    recomputing (plan/record/online_recompute.h), which is slower than a plan.
/// 2. Four steps run by a first plan, with nothing beside its copies, and tell how long each
/// operation takes.
/// 3. All further steps run by the plan that is made from these times.
///
/// With a folder the memory of the first steps lies in a file there. Where ranks' shares move
/// (Options::anew), these steps come again.
class PlannedStep {
 public:
  static constexpr int kCurveBudgets = 8;
  static constexpr int kMeasuredSteps = 5;  ///< of those by the plan, the first ones
  struct Options {
    std::string budget;  ///< plan::parse_budget
    std::filesystem::path
        folder;  ///< where tensors are offloaded to; empty: memory beyond the budget
    std::optional<int64_t> host_bytes = {};  ///< limit of what is offloaded
    uint64_t idle_bytes =
        0;  ///< resident memory of the process before it made the model; 0: not known
    /// kTechniques. `compress_mxfp8` changes the results, the others do not
    /// (plan/record/packable.h).
    bool offload = true, recompute = true, compress = true, compress_mxfp8 = false,
         algorithms = true;
    std::filesystem::path plans =
        {};               ///< of plans that were made before (plan/solve/plan_cache.h); empty: none
    double solve_s = 30;  ///< of solving, at most, each of the two plans
    int curve_budgets = kCurveBudgets;  ///< that the step's time is found for beside, each for a
                                        ///< thirtieth of solve_s
    std::shared_ptr<plan::PagedAllocations> paged =
        {};  ///< ended once there is a plan: what was made before lies there
    bool anew =
        false;  ///< a step that its plan is not for begins anew, as the first did; else UserError
    /// Steps run the recorded operations without calling `work`, with the recorded numbers. For
    /// work that reads what changes through pointers, in operations of its own (base/operation.h).
    bool replay = false;
    /// One planned step in so many is checked, the first one too: UserError for a tensor that an
    /// operation changes unseen and, with `replay`, for a number that is not the recorded one. 0:
    /// none.
    int check_steps = 100;
  };
  /// What a plan may do beside keeping tensors, by the names of memory.allow.
  static constexpr std::array<std::pair<std::string_view, bool Options::*>, 5> kTechniques = {
      {{"offload", &Options::offload},
       {"recompute", &Options::recompute},
       {"compress", &Options::compress},
       {"compress_mxfp8", &Options::compress_mxfp8},
       {"algorithms", &Options::algorithms}}};
  static plan::SolveOptions solve_options(const Options& options);
  using Inputs = std::vector<std::pair<std::string, at::Tensor>>;
  /// Numbers beside the shapes of its inputs that a recorded step has made its passes by, with
  /// their names.
  using Constants = std::vector<std::pair<std::string, int64_t>>;
  /// One step on what it is given.
  using Work = std::function<void(const std::vector<at::Tensor>& inputs)>;
  /// Each step calls `work` and runs its operations as planned (plan/run/guide.h): the same
  /// operators on the same shapes each time. Numbers may change, values may be read, and it may
  /// hold tensors from one step to the next. Tensors that it reads beside its argument and
  /// `tensors` were made before the first step. Gradients that it makes end with the step.
  PlannedStep(Work work, plan::StepTensors tensors, Options options);
  ~PlannedStep();

  /// A step on inputs and constants with the names of those before. UserError where it cannot be
  /// recorded, the budget is below the floor, or, without Options::anew, one has another shape or
  /// value than before.
  void run(const Inputs& inputs, const Constants& constants);

  /// From the step on that made the plan, until one begins anew.
  const std::optional<MemoryPlanReport>& report() const;
  /// Of `step_bytes` what steps by the plan have used, as the system counts it; only with a report.
  int64_t measured_bytes() const;
  /// The techniques that are not allowed and would lower the floor of the recorded step, for the
  /// end of a sentence: `; "recompute" or "compress" in memory.allow would lower the floor`. Empty
  /// if there are none.
  std::string what_would_lower_the_floor() const;
  /// The recorded step, from the third on; with times, bandwidth and budget once there is a plan.
  const plan::Graph& graph() const;
  /// Whether the last step ran by the plan.
  bool runs_by_plan() const;
  /// Whether kMeasuredSteps have run by the plan.
  bool is_measured() const;
  /// Once there is a plan; valid until the next step.
  PlannedStepView view() const;
  /// Files of the step and its plan: graph.json, plan.json (docs/design/plan.md) and
  /// memory_plan.json (docs/training.md), in which measurements are of the steps by then; none
  /// before there is a plan.
  void write(const std::filesystem::path& folder) const;

 private:
  void begin_anew();

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dovetail
