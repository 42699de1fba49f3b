#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "dovetail/plan/solve/solve.h"

namespace dovetail::plan {

/// Returns the index of a node's fastest algorithm, not counting algorithms that update tensors in
/// host memory. Ties go to the algorithm with the smallest workspace.
int fastest_algorithm(const GraphNode& node);
/// Returns the time of all nodes, each run once by its fastest algorithm of all.
double least_s(const Graph& graph);
/// Returns true if a node may run by an algorithm. Tensors that the algorithm updates in host
/// memory must be allowed there, and no later node may use them.
bool may_be_chosen(const Graph& graph, const Scheduler& scheduler, int node, int algorithm,
                   const SolveOptions& allowed);
/// Returns true if the tensor may be offloaded to the host during `gap`.
bool may_be_offloaded(const Graph& graph, const Gap& gap, const SolveOptions& allowed);

/// Search for decisions (plan/model/schedule.h), shared by `solve` and `solve_jointly`. A decision
/// is the treatment of a gap between two uses of a tensor, or the algorithm of a node. Holds the
/// plan within the budget with the minimum expected time, and the decisions to improve. The search
/// ends `options.time_limit_s` after construction. Graph and options must outlive it.
class Search {
 public:
  Search(const Graph& graph, const SolveOptions& options);

  const Scheduler& scheduler() const { return scheduler_; }
  bool in_time() const;
  /// Returns true until this fraction of the time limit has passed.
  bool in_time(double part) const;

  Decisions all_resident() const;
  /// Decisions that offload or drop everything that `allowed` permits, by way of `keep` where
  /// possible. Each node runs its algorithm with the smallest workspace.
  Decisions all_away(Keep keep, const SolveOptions& allowed) const;
  /// Same as `all_away`, but keeps every `period`-th of these gaps resident.
  Decisions most_away(Keep keep, const SolveOptions& allowed, int period) const;

  /// Adds decisions to improve later. Returns false if they give no plan within the budget.
  bool offer(const Decisions& decisions);
  /// Offers a plan from elsewhere that is within the budget. It is kept if it is the fastest.
  void offer(const Solution& solution);
  enum class Until {
    kDeadline,
    kPlan,  ///< also after the deadline, until there is a plan
  };
  /// Changes decisions greedily until memory is below `budget_bytes`, which is at most the
  /// requested budget. Uses only techniques of `allowed`. Offers the result.
  void descend(Decisions decisions, int64_t budget_bytes, const SolveOptions& allowed,
               Until until = Until::kDeadline);
  /// Improves all offered decisions, the fastest first. Single decisions are changed while this
  /// makes a plan faster, then pairs.
  void improve_all();
  /// Changes a few decisions of the best plan at random, until `stop` returns true. For a while, it
  /// also accepts changes that make the plan a little slower.
  void wander(const std::function<bool()>& stop);
  /// Keeps tensors on the device that start on the host if that makes the plan no slower. May take
  /// up to 1.1 times the time limit.
  void keep_what_need_not_wrap();

  /// Returns the best plan so far; nullopt if none has been found.
  std::optional<Solution>& best() { return best_; }

 private:
  /// Change of one decision, or of the decisions of several similar gaps.
  using Change = std::function<void(Decisions&)>;
  struct Candidate {
    Decisions decisions;
    double expected_s = 0;
  };

  std::vector<std::pair<Keep, int>> ways(int gap, const SolveOptions& allowed, bool resident) const;
  /// Sets the decision of a gap, or the algorithm of a node, and the decisions that depend on it.
  /// If a tensor is no longer offloaded, nodes that updated it in host memory get another
  /// algorithm. If a node updates a tensor in host memory, the gaps around the node are offloaded.
  void take(Decisions& decisions, int gap, const std::pair<Keep, int>& way) const;
  void run_by(Decisions& decisions, int node, int algorithm) const;
  /// Returns (node, algorithm) pairs for the nodes that change the tensor of `gap`. The algorithms
  /// update the tensor in host memory.
  std::vector<std::pair<int, int>> on_host(int gap, const SolveOptions& allowed) const;
  std::vector<std::vector<int>> in_the_way(const Schedule& now, int64_t budget_bytes) const;
  std::vector<Change> changes_of_alike(const Decisions& decisions,
                                       const std::vector<std::vector<int>>& alike,
                                       const SolveOptions& allowed, bool moved) const;
  std::vector<Change> single_changes(const Decisions& decisions) const;
  std::vector<Change> changes(const Decisions& decisions, const Schedule& now, int64_t budget_bytes,
                              const SolveOptions& allowed) const;
  bool attempt(Candidate& from, Decisions changed, double part);
  bool attempt_each(Candidate& from, const std::vector<Change>& changes);
  void take_back(Candidate& from, std::span<const int> gaps, double part,
                 const std::function<bool()>& goes_on);
  void improve(Candidate& candidate, bool pairs);
  void change_at_random(Decisions& decisions);

  const Graph& graph_;
  const SolveOptions& options_;
  const Scheduler scheduler_;
  const std::vector<std::vector<int>> alike_;  // gaps of equal tensors between nodes of equal roles
  const double started_s_;
  std::vector<Candidate> candidates_;
  std::optional<Solution> best_;
  std::mt19937_64 random_{1};
};

}  // namespace dovetail::plan
