#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <utility>
#include <vector>

#include "dovetail/plan/solve/solve.h"

namespace dovetail::plan {

/// Cache of plans that persists between processes. A folder has one JSON file per step and set of
/// techniques (SolveOptions). A step is identified by its graph without budget, times and rates,
/// which differ between measurements. The cache stores decisions (plan/model/schedule.h), which are
/// scheduled again for each use.
class PlanCache {
 public:
  /// Decisions of a cached plan, and the memory budget in bytes that their schedule had to meet.
  struct Known {
    int64_t budget_bytes = 0;
    Decisions decisions;
  };

  /// Uses the files in `folder`. If it is empty, nothing is read or stored.
  explicit PlanCache(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// Returns the cached plans of a step, the newest first. Throws UserError that names the file if
  /// the file has another format.
  std::vector<Known> find(const Graph& graph, const SolveOptions& options) const;
  /// Stores a plan as the newest of its step. Keeps one plan per budget, and at most the 24 newest
  /// plans. So few plans can all be tried in little time.
  void put(const Graph& graph, const SolveOptions& options, const Known& known) const;

  /// Returns the folder "plans" in $DOVETAIL_CACHE, $XDG_CACHE_HOME/dovetail or ~/.cache/dovetail.
  static std::filesystem::path default_folder();

 private:
  std::filesystem::path file_of(const Graph& graph, const SolveOptions& options) const;

  std::filesystem::path folder_;
};

/// Runs the search `one`, and finds the fastest cached plan for which `fits` returns true. Returns
/// the faster of these two plans, and stores it in `cache`. The search starts from the decisions of
/// this cached plan, unless `options.start` is set. Therefore the result is not expected to be
/// slower than any earlier plan for the same or less memory.
Solution solve_known(const PlanCache& cache, const Graph& graph, const SolveOptions& options,
                     const std::function<bool(const Solution&)>& fits,
                     const std::function<Solution(const Graph&, const SolveOptions&)>& one);

}  // namespace dovetail::plan
