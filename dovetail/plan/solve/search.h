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
/// Returns the sum over all nodes of the time of their fastest algorithm. No plan takes less time.
double minimum_s(const Graph& graph);
/// Returns true if `allowed` permits that `node` runs by `algorithm`. If the algorithm updates
/// tensors in host memory, two more conditions apply:
/// - `allowed` permits that these tensors are offloaded before and after the node.
/// - No later node uses them.
bool may_be_chosen(const Graph& graph, const Scheduler& scheduler, int node, int algorithm,
                   const SolveOptions& allowed);
/// Returns true if `allowed` permits that the tensor is offloaded during `gap`.
bool may_be_offloaded(const Graph& graph, const Gap& gap, const SolveOptions& allowed);

/// Search for decisions (plan/model/schedule.h), shared by `solve` and `solve_jointly`. A decision
/// is the treatment of a gap between two uses of a tensor, or the algorithm of a node. The search
/// keeps the plan with the minimum expected time so far among plans within the budget. It also
/// keeps candidates: sets of decisions to improve. It ends `options.time_limit_s` after
/// construction. Graph and options must outlive it.
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
  /// Returns decisions in which tensors stay on the device only where they must:
  /// - A gap is resident if `allowed` permits no other treatment, or if Scheduler::is_moot.
  /// - Other gaps get the treatment `keep` if `allowed` permits it, else another permitted one.
  /// - Each node runs the permitted algorithm with the minimum Graph::extra_bytes.
  Decisions all_offloaded(Keep keep, const SolveOptions& allowed) const;
  /// Returns the same decisions as `all_offloaded`, with one difference: every `period`-th of the
  /// gaps that need not be resident is resident.
  Decisions mostly_offloaded(Keep keep, const SolveOptions& allowed, int period) const;

  /// Schedules decisions. Returns false if this gives no plan within the budget. Otherwise adds the
  /// decisions to the candidates, and keeps the plan if it is the fastest so far.
  bool offer(const Decisions& decisions);
  /// Takes a plan from another search, which must be within the budget. Keeps it if it is the
  /// fastest so far.
  void offer(const Solution& solution);
  /// Time at which `shed` and `descend` give up.
  enum class Until {
    /// When the time limit has passed.
    kDeadline,
    /// When the time limit has passed, and a plan has been found or `descend` has scheduled a fixed
    /// number of nodes. Steps that need fewer get the same result on every machine.
    kPlan,
  };
  /// Frees memory greedily until it is within `budget_bytes`, by the techniques of `allowed`. Takes
  /// the treatments with the least estimated time for each lacking byte. Schedules once for many
  /// treatments. Recomputes by `again`: Keep::kAgain or Keep::kAgainEarly. Adds the result to the
  /// candidates if it is a plan. Returns it, or what it reached.
  Decisions shed(int64_t budget_bytes, const SolveOptions& allowed, Keep again,
                 Until until = Until::kDeadline);
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
  /// Changes the fastest plan. Tensors that start on the host stay on the device instead, if this
  /// does not make the plan slower. Ends 1.1 times the time limit after construction at the latest.
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
  int64_t nodes_left_ = 1'000'000;  // nodes that descents to the end may still schedule
  std::vector<Candidate> candidates_;
  std::optional<Solution> best_;
  std::mt19937_64 random_{1};
};

}  // namespace dovetail::plan
