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
/// Returns the sum over all nodes of the time of their fastest algorithm. No step takes less.
double minimum_s(const Graph& graph);
/// Returns true if `allowed` permits that a node runs by an algorithm. Tensors that the algorithm
/// updates in host memory must be allowed there, and no later node may use them.
bool may_be_chosen(const Graph& graph, const Scheduler& scheduler, int node, int algorithm,
                   const SolveOptions& allowed);
/// Returns true if `allowed` permits that the tensor is offloaded during `gap`.
bool may_be_offloaded(const Graph& graph, const Gap& gap, const SolveOptions& allowed);

/// Search for decisions (plan/model/schedule.h), shared by `solve` and `solve_jointly`. A decision
/// is the treatment of a gap between two uses of a tensor, or the algorithm of a node. The search
/// has the fastest plan so far that fits the budget, by expected time. It also has candidates: sets
/// of decisions to improve. It ends `options.time_limit_s` after construction. Graph and options
/// must outlive it.
class Search {
 public:
  Search(const Graph& graph, const SolveOptions& options);

  const Scheduler& scheduler() const { return scheduler_; }
  /// Returns true until the time limit has passed.
  bool in_time() const;
  /// Returns true until this fraction of the time limit has passed.
  bool in_time(double part) const;

  /// Returns decisions that keep every tensor on the device and run each node by its fastest
  /// algorithm.
  Decisions all_resident() const;
  /// Returns decisions that leave no tensor resident in a gap if `allowed` permits another
  /// treatment. The treatment is `keep` where possible. Each node runs its algorithm with the
  /// smallest workspace.
  Decisions all_offloaded(Keep keep, const SolveOptions& allowed) const;
  /// Returns the same decisions as `all_offloaded`, but every `period`-th of these gaps stays
  /// resident.
  Decisions mostly_offloaded(Keep keep, const SolveOptions& allowed, int period) const;

  /// Schedules decisions. If they give a plan within the budget, adds them to the candidates. Also
  /// keeps the plan if it is the fastest. Returns false if there is no such plan.
  bool offer(const Decisions& decisions);
  /// Takes a plan from elsewhere that is within the budget. Keeps it if it is the fastest.
  void offer(const Solution& solution);
  /// Time at which `descend` gives up.
  enum class Until {
    kDeadline,
    /// At the deadline, or later with the first plan.
    kPlan,
  };
  /// Changes decisions greedily until memory is within `budget_bytes`, which is at most the
  /// requested budget. Uses only techniques of `allowed`. Adds the result to the candidates
  /// (`offer`).
  void descend(Decisions decisions, int64_t budget_bytes, const SolveOptions& allowed,
               Until until = Until::kDeadline);
  /// Improves all candidates, the fastest first. Changes single decisions as long as this makes a
  /// plan faster, then pairs of decisions.
  void improve_all();
  /// Changes a few decisions of the fastest plan at random, until `stop` returns true. For a while,
  /// it also accepts changes that make the plan a little slower.
  void anneal(const std::function<bool()>& stop);
  /// Changes the fastest plan: tensors no longer start on the host if the plan does not become
  /// slower. They stay on the device instead. May take up to 1.1 times the time limit.
  void keep_what_need_not_wrap();

  /// Returns the fastest plan so far; nullopt if none has been found.
  std::optional<Solution>& best() { return best_; }

 private:
  /// Changes one decision, or the decisions of several similar gaps.
  using Change = std::function<void(Decisions&)>;
  // Decisions to improve, and the expected time of their plan.
  struct Candidate {
    Decisions decisions;
    double expected_s = 0;
  };

  // Treatments (with codec) that `allowed` permits for a gap. `resident` adds Keep::kResident.
  std::vector<std::pair<Keep, int>> ways(int gap, const SolveOptions& allowed, bool resident) const;
  /// Sets the decision of a gap, and the decisions that depend on it. If its tensor is no longer
  /// offloaded, nodes that updated it in host memory get another algorithm.
  void take(Decisions& decisions, int gap, const std::pair<Keep, int>& way) const;
  /// Sets the algorithm of a node. If it updates a tensor in host memory, the gaps around the node
  /// are offloaded.
  void run_by(Decisions& decisions, int node, int algorithm) const;
  /// Returns (node, algorithm) for each algorithm that updates the tensor of `gap` in host memory.
  std::vector<std::pair<int, int>> on_host(int gap, const SolveOptions& allowed) const;
  std::vector<std::vector<int>> gaps_above_budget(const Schedule& now, int64_t budget_bytes) const;
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
  // Groups of similar gaps: equal tensor sizes, and nodes with equal roles in repeated layers.
  const std::vector<std::vector<int>> alike_;
  const double started_s_;
  std::vector<Candidate> candidates_;
  std::optional<Solution> best_;
  std::mt19937_64 random_{1};
};

}  // namespace dovetail::plan
