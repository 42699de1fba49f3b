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

namespace dovetail::train {

/// Results of a memory plan, for the log and memory_plan.json.
struct MemoryPlanReport {
  int64_t budget_bytes = 0;
  int64_t keep_all_bytes = 0;    ///< peak memory with everything kept
  int64_t floor_bytes = 0;       ///< minimum budget for which there is a plan
  int64_t step_bytes = 0;        ///< memory of a step that runs by the plan
  int64_t offloaded_bytes = 0;   ///< offloaded to the slow tier, per step
  int64_t again_bytes = 0;       ///< recomputed, per step
  int64_t on_host_bytes = 0;     ///< updated in place in the slow tier, per step
  int64_t compressed_bytes = 0;  ///< size before compression, per step
  int64_t packed_bytes = 0;      ///< size after compression, per step
  int nodes = 0;                 ///< number of operations of a step
  /// Predicted seconds of a step: by the plan, and with everything kept.
  double predicted_s = 0, keep_all_s = 0;
  double solve_s = 0;
  plan::Bandwidth bandwidth;
  /// Predicted growth of the process above Options::idle_bytes; 0: unknown.
  int64_t process_bytes = 0;
};

nlohmann::ordered_json to_json(const MemoryPlanReport& report);

/// Training steps within a memory budget, by a plan that is made during the first steps. All steps
/// belong to one training.
///
/// 1. Three steps are recorded. The first one makes gradients and moments. They stay within the
///    budget by recomputing (plan/record/online_recompute.h), which is slower than a plan.
/// 2. Four steps run by a first plan in which nothing overlaps with copies. They measure the time
///    of each operation.
/// 3. All further steps run by the final plan, which is made from these times.
///
/// With a folder, memory of the first steps is in a file there. If shares move between ranks
/// (Options::anew), steps 1 to 3 start over.
class PlannedStep {
 public:
  static constexpr int kCurveBudgets = 8;
  /// Number of steps by the final plan whose times are recorded, from its first one.
  static constexpr int kMeasuredSteps = 5;
  struct Options {
    std::string budget;  ///< maximum memory of a step (plan::parse_budget)
    /// Folder to offload tensors to. Empty: memory that does not count towards the budget.
    std::filesystem::path folder;
    std::optional<int64_t> host_bytes = {};  ///< maximum bytes of offloaded tensors
    /// Resident memory of the process before it made the model; 0: unknown.
    uint64_t idle_bytes = 0;
    /// Permissions of kTechniques. Only `compress_mxfp8` changes results (plan/record/packable.h).
    bool offload = true, recompute = true, compress = true, compress_mxfp8 = false,
         algorithms = true;
    /// Folder of the cache of earlier plans (plan/solve/plan_cache.h); empty: none.
    std::filesystem::path plans = {};
    double solve_s = 30;  ///< time limit of the search for each of the two plans
    /// Number of further budgets for which the step time is predicted, each in 1/30 of solve_s.
    int curve_budgets = kCurveBudgets;
    /// Puts tensors that are made before there is a plan into file-backed memory. Reset once there
    /// is a plan.
    std::shared_ptr<plan::PagedAllocations> paged = {};
    /// If a step has other shapes or constants than the plan: true starts over with recording,
    /// false throws UserError.
    bool anew = false;
    /// Run steps by replaying the recorded operations with the recorded numbers, without calling
    /// `work`. Then `work` must read everything that changes through pointers, in operations of its
    /// own (base/operation.h).
    bool replay = false;
    /// Interval of checked planned steps; the first one is checked, too. 0: none. Throws UserError
    /// for a tensor that an operation changes without declaring it. With `replay` it also throws
    /// for a number that differs from the recorded one.
    int check_steps = 100;
  };
  /// Techniques of a plan other than keeping tensors, by their names in memory.allow.
  static constexpr std::array<std::pair<std::string_view, bool Options::*>, 5> kTechniques = {
      {{"offload", &Options::offload},
       {"recompute", &Options::recompute},
       {"compress", &Options::compress},
       {"compress_mxfp8", &Options::compress_mxfp8},
       {"algorithms", &Options::algorithms}}};
  static plan::SolveOptions solve_options(const Options& options);
  using Inputs = std::vector<std::pair<std::string, at::Tensor>>;
  /// Named numbers, other than input shapes, on which the operations of a step depend. They must be
  /// the same in each step.
  using Constants = std::vector<std::pair<std::string, int64_t>>;
  /// Runs one step on `inputs`.
  using Work = std::function<void(const std::vector<at::Tensor>& inputs)>;
  /// Makes steps that call `work` and run its operations as planned (plan/run/guide.h). `work` must
  /// call the same operators on the same shapes each time. Numbers may change, values may be read,
  /// and it may hold tensors from one step to the next. It may read tensors other than its argument
  /// and `tensors` only if they were made before the first step. Gradients that it makes are
  /// dropped at the end of the step.
  PlannedStep(Work work, plan::StepTensors tensors, Options options);
  ~PlannedStep();

  /// Runs a step. Inputs and constants have the same names in each step. Throws UserError if the
  /// step cannot be recorded or the budget is below the floor. Without Options::anew it also throws
  /// if a shape or constant differs from earlier steps.
  void run(const Inputs& inputs, const Constants& constants);

  /// Report of the plan. Nullopt until a plan is made, and after a step that starts over.
  const std::optional<MemoryPlanReport>& report() const;
  /// Part of `step_bytes` that steps by the plan have touched, as counted by the system. Needs a
  /// report.
  int64_t measured_bytes() const;
  /// Names the techniques that are not allowed but would lower the floor of the recorded step. The
  /// text ends a sentence, such as `; memory.allow = ["recompute"] would lower the floor`. Empty if
  /// there are none.
  std::string what_would_lower_the_floor() const;
  /// Graph of the recorded step, available from the third step on. It has times, bandwidth and
  /// budget once there is a plan.
  const plan::Graph& graph() const;
  /// Returns true if the last step ran by the final plan.
  bool runs_by_plan() const;
  /// Returns true if kMeasuredSteps steps have run by the final plan.
  bool is_measured() const;
  /// Data for the step's record. Needs a plan. Valid until the next step.
  PlannedStepView view() const;
  /// Writes graph.json and plan.json (docs/design/plan.md) and memory_plan.json (docs/training.md).
  /// Measurements cover the steps so far. Writes nothing before there is a plan.
  void write(const std::filesystem::path& folder) const;

 private:
  void begin_anew();

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dovetail::train
