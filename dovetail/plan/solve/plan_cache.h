#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <utility>
#include <vector>

#include "dovetail/plan/solve/solve.h"

namespace dovetail::plan {

/// Plans that were found before, from one process to the next: one JSON file for each step and set
/// of techniques, in a folder. A step is its graph without times, rates, workspaces and budget,
/// which differ each time that it is measured: what is kept are decisions, which are scheduled
/// anew.
class PlanCache {
 public:
  /// What a plan decides, and for which budget that was scheduled.
  struct Known {
    int64_t budget_bytes = 0;
    Decisions decisions;
  };

  /// An empty folder: nothing is read or kept.
  explicit PlanCache(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// Those of a step, the newest first. A file that is none of ours is a UserError that names it.
  std::vector<Known> find(const Graph& graph, const SolveOptions& options) const;
  /// As the newest; of those before it as many stay as are tried in little time, one of each
  /// budget.
  void put(const Graph& graph, const SolveOptions& options, const Known& known) const;

  /// $DOVETAIL_CACHE, $XDG_CACHE_HOME/dovetail or ~/.cache/dovetail, and there "plans".
  static std::filesystem::path default_folder();

 private:
  std::filesystem::path file_of(const Graph& graph, const SolveOptions& options) const;

  std::filesystem::path folder_;
};

/// The plan of `one`, which begins from the fastest of those that are known, or that one as it was
/// scheduled then, if it is faster; what it is is known from then on. Of known plans those count
/// that `fits` accepts. So no plan is expected to take longer than one that was made before for as
/// much memory or less.
Solution solve_known(const PlanCache& cache, const Graph& graph, const SolveOptions& options,
                     const std::function<bool(const Solution&)>& fits,
                     const std::function<Solution(const Graph&, const SolveOptions&)>& one);

}  // namespace dovetail::plan
