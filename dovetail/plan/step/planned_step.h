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

#include "dovetail/plan/device/paged_memory.h"
#include "dovetail/plan/record/capture.h"
#include "dovetail/plan/solve/joint.h"
#include "dovetail/plan/solve/solve.h"
#include "dovetail/plan/step/memory_record.h"

namespace dovetail::plan {

/// Results of a memory plan, for the log and memory_plan.json. Bytes that a technique (offload,
/// recompute, compress) affects are sums over one step. The slow tier is the place to which a plan
/// copies tensors: memory.folder, or else memory outside the budget.
struct MemoryPlanReport {
  int64_t budget_bytes = 0;     ///< maximum memory of a step, as requested
  int64_t keep_all_bytes = 0;   ///< peak memory of a step that keeps all tensors
  int64_t floor_bytes = 0;      ///< minimum budget for which there is a plan
  int64_t step_bytes = 0;       ///< memory that a step by the plan takes; at most budget_bytes
  int64_t offloaded_bytes = 0;  ///< bytes copied to the slow tier, to be read back later
  int64_t again_bytes = 0;      ///< bytes of tensors that are recomputed
  /// Bytes of weights and optimizer state that an update changes in the slow tier, without copies.
  int64_t on_host_bytes = 0;
  int64_t compressed_bytes = 0;  ///< bytes of compressed tensors before their compression
  int64_t packed_bytes = 0;      ///< bytes of the same tensors after their compression
  int nodes = 0;                 ///< number of operations of a step
  /// Predicted seconds of a step. `predicted_s`: by the plan. `keep_all_s`: with all tensors kept.
  double predicted_s = 0, keep_all_s = 0;
  double solve_s = 0;   ///< seconds that the search for both plans took
  JointReport search;   ///< the search for the final plan: its bound and its integer programs
  Bandwidth bandwidth;  ///< measured rates of copies to the slow tier and back
  /// Predicted growth of the process above Options::idle_bytes, its size before the model. 0:
  /// unknown.
  int64_t process_bytes = 0;
};

/// Returns the report's part of memory_plan.json.
nlohmann::ordered_json to_json(const MemoryPlanReport& report);

/// Training steps within a memory budget, on the CPU or on a GPU: where the parameters are. The
/// budget is in the memory of that device. A plan decides for each tensor of a step whether to
/// keep, recompute, offload or compress it. The plan is made during the first steps. All steps
/// belong to one training.
///
/// 1. Three steps are recorded: their operations and tensors become a graph. The first one also
///    allocates gradients and moments. Recorded steps stay within the budget by recomputing tensors
///    (plan/record/online_recompute.h). This is slower than a plan.
/// 2. Four steps run by a first plan in which nothing overlaps with copies. They measure the time
///    of each operation.
/// 3. All further steps run by the final plan, which is made from these times.
///
/// Options::paged can place large tensors in a file until there is a plan.
class PlannedStep {
 public:
  /// Default of Options::curve_budgets.
  static constexpr int kCurveBudgets = 8;
  /// Number of steps whose times are recorded: the first ones that run by the final plan.
  static constexpr int kMeasuredSteps = 5;
  /// - kRefuse: throw UserError, before anything has changed.
  /// - kPlanAnew: start over with recording, for example because a rank gets more samples.
  /// - kRunWithoutPlan: run the step by online recomputing, within the budget. The plan goes on
  ///   with the next step. Tensors leave the plan's memory and return to it. Such steps should be
  ///   rare, like the last batch of an epoch. The eighth step in a row with the same other sizes
  ///   makes a new plan, as kPlanAnew does.
  enum class OtherSizes { kRefuse, kPlanAnew, kRunWithoutPlan };
  struct Options {
    std::string budget;  ///< maximum memory of a step (parse_budget)
    /// Folder to offload tensors to (slow tier). If it is empty, offloaded tensors go to memory of
    /// the process that does not count towards the budget. A GPU offloads to pinned memory of the
    /// CPU alone, and refuses a folder.
    std::filesystem::path folder;
    /// Maximum bytes of offloaded tensors; nullopt: no limit.
    std::optional<int64_t> host_bytes = {};
    /// StepDevice::held_bytes before the process made the model; 0: unknown.
    uint64_t idle_bytes = 0;
    /// Techniques that a plan may use (kTechniques). A GPU offloads and recomputes alone. Only
    /// `compress_mxfp8` and `algorithms` change results (plan/record/packable.h,
    /// plan/record/algorithms.h).
    bool offload = true, recompute = true, compress = true, compress_mxfp8 = false,
         algorithms = false;
    /// Folder with plans of earlier processes, to reuse them (plan/solve/plan_cache.h). Empty: no
    /// reuse.
    std::filesystem::path plans = {};
    double solve_s = 30;  ///< time limit of the search for each of the two plans
    /// Number of other budgets for which the step time is predicted. The search for each takes at
    /// most 1/30 of solve_s.
    int curve_budgets = kCurveBudgets;
    /// Scope in which large tensors are allocated in a file; null: none. The final plan ends it
    /// (reset).
    std::shared_ptr<PagedAllocations> paged = {};
    /// Refuse a budget without a plan in the first step, on a CPU and without `algorithms`. The
    /// first step must find all state made. Otherwise the fourth step refuses it.
    bool refuse_at_once = false;
    /// Reaction to a step whose input shapes or constants differ from the plan's.
    OtherSizes other_sizes = OtherSizes::kRefuse;
    /// Way in which steps with a plan run:
    ///
    /// - false: each step calls `work`, and its operations run as planned.
    /// - true: `work` is not called. Only the recorded operations run, with the numbers that were
    ///   recorded. So `work` must read values that change between steps, such as the learning rate,
    ///   through pointers. It must do so inside operations that it declares (base/operation.h).
    bool replay = false;
    /// One in this many planned steps is checked, beginning with the first. 0: no checks. A check
    /// calls `work`. It throws UserError if an operation changes a tensor that it did not change
    /// when it was recorded. With `replay` it also throws if a number differs from the recorded
    /// one.
    int check_steps = 100;
    /// Text that precedes names of options in messages, such as "memory." for config keys.
    std::string prefix = "";
    /// Further advice if the budget is below the floor; may be empty.
    std::string floor_help = "";
  };
  /// Techniques that a plan may use to save memory, by their names in memory.allow:
  ///
  /// - "offload": copy a tensor to the slow tier.
  /// - "recompute": free a tensor, and compute it again.
  /// - "compress": keep only microscaling codes of a tensor, if later operations would compute
  ///   exactly these codes from it.
  /// - "compress_mxfp8": keep activations as MXFP8 codes for backward.
  /// - "algorithms": run a convolution by another algorithm, which needs less memory or time and
  ///   rounds differently.
  static constexpr std::array<std::pair<std::string_view, bool Options::*>, 5> kTechniques = {
      {{"offload", &Options::offload},
       {"recompute", &Options::recompute},
       {"compress", &Options::compress},
       {"compress_mxfp8", &Options::compress_mxfp8},
       {"algorithms", &Options::algorithms}}};
  /// Returns the options of the search for a plan of a step on `device`.
  static SolveOptions solve_options(const Options& options, c10::Device device);
  /// Inputs of a step: tensors with names.
  using Inputs = std::vector<std::pair<std::string, at::Tensor>>;
  /// Named numbers, other than input shapes, on which the operations of a step depend. A plan is
  /// valid only for the same constants (Options::other_sizes).
  using Constants = std::vector<std::pair<std::string, int64_t>>;
  /// Function that runs one step. Its argument has the tensors of Inputs in the same order.
  using Work = std::function<void(const std::vector<at::Tensor>& inputs)>;
  /// Function that returns the parameters and the state (buffers, moments) that steps read and
  /// change. It is called before each recorded step, since optimizers make moments in the first.
  using Tensors = std::function<StepTensors()>;
  /// The first steps call `work`; Options::replay tells how later steps run. Rules for `work`:
  ///
  /// - Each call must call the same operators on the same shapes.
  /// - Without Options::replay, it may pass other numbers to operators, and may read values of
  ///   tensors.
  /// - It may hold tensors from one step to the next.
  /// - It may read its argument, `tensors()`, and other tensors that were made before the first
  /// step.
  /// - Gradients that it makes are dropped at the end of the step.
  PlannedStep(Work work, Tensors tensors, Options options);
  ~PlannedStep();

  /// Runs a step. Inputs and constants must have the same names in each step. Throws UserError if
  /// the step cannot be recorded. Throws UserError if the budget is below the floor, the minimum
  /// budget for which there is a plan. Options::other_sizes tells what happens if a shape or
  /// constant differs from earlier steps.
  void run(const Inputs& inputs, const Constants& constants);

  /// Gives memory that a plan only needs while a step runs back to the system. The next step takes
  /// it again. Evaluation between steps can then use as much within the budget. Does nothing on a
  /// GPU, where memory of a plan is one allocation.
  void release_scratch();

  /// Returns the report of the final plan. It is nullopt while there is no final plan, also after
  /// OtherSizes::kPlanAnew has started over.
  const std::optional<MemoryPlanReport>& report() const;
  /// Returns the part of MemoryPlanReport::step_bytes that steps by the plan have touched. Released
  /// pages count. Needs a report.
  int64_t measured_bytes() const;
  /// Returns a text that names the techniques that are not allowed but would lower the floor. The
  /// text is meant to end an error message. Example: `; memory.allow = ["recompute"] would lower
  /// the floor`. It is empty if no technique would.
  std::string what_would_lower_the_floor() const;
  /// Returns the graph of the recorded step. Call it after the third step or later. Once there is a
  /// plan, the graph also has times, bandwidth and budget.
  const Graph& graph() const;
  /// Returns true if the next step is recorded.
  bool records() const;
  /// Returns true if the last step ran by the final plan.
  bool runs_by_plan() const;
  /// Returns true if kMeasuredSteps steps have run by the final plan.
  bool is_measured() const;
  /// Returns the data for memory_record. Needs a report. Valid until the next step.
  PlannedStepView view() const;
  /// Writes graph.json and plan.json (docs/design/plan.md) and memory_plan.json (docs/training.md)
  /// to `folder`. Their measurements cover the steps so far. Writes nothing if there is no final
  /// plan.
  void write(const std::filesystem::path& folder) const;

 private:
  void restart_search();

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dovetail::plan
