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

/// Index of a node's fastest algorithm that finds nothing on the host; of several the one with the
/// least workspace.
int fastest_algorithm(const GraphNode& node);
/// Every node once, by its fastest algorithm of all.
double least_s(const Graph& graph);
/// Whether a node may run by an algorithm: what that finds on the host may be there, and no later
/// node uses it.
bool may_be_chosen(const Graph& graph, const Scheduler& scheduler, int node, int algorithm,
                   const SolveOptions& allowed);
/// Whether a gap may be spent on the host.
bool may_be_offloaded(const Graph& graph, const Gap& gap, const SolveOptions& allowed);

/// The search for decisions that `solve` and `solve_jointly` share. It keeps the plan within the
/// budget that is expected to take the least, and the decisions from which to look for better ones;
/// it ends at the deadline that `options.time_limit_s` sets when it is made. Graph and options must
/// outlive it.
class Search {
 public:
  Search(const Graph& graph, const SolveOptions& options);

  const Scheduler& scheduler() const { return scheduler_; }
  bool in_time() const;
  /// Whether it is earlier than this part of the time limit.
  bool in_time(double part) const;

  Decisions all_resident() const;
  /// Of what may go by `allowed` everything away, by `keep` where it can be; with the least
  /// workspaces.
  Decisions all_away(Keep keep, const SolveOptions& allowed) const;
  /// The same, but every `period`-th of those stays.
  Decisions most_away(Keep keep, const SolveOptions& allowed, int period) const;

  /// Decisions to improve later, if they are a plan within the budget. False if they are none.
  bool offer(const Decisions& decisions);
  /// A plan made elsewhere, within the budget; kept if it is the fastest.
  void offer(const Solution& solution);
  enum class Until {
    kDeadline,
    kPlan,  ///< and on after the deadline, as long as there is no plan
  };
  /// From these decisions greedily below `budget_bytes` (at most the one asked for), with the
  /// techniques of `allowed`, and offers those.
  void descend(Decisions decisions, int64_t budget_bytes, const SolveOptions& allowed,
               Until until = Until::kDeadline);
  /// All that were offered, the fastest first: single decisions changed while that makes a plan
  /// faster, then pairs.
  void improve_all();
  /// From the best plan on, until `stop`: random changes of a few decisions, for a while also those
  /// that make the plan a little slower.
  void wander(const std::function<bool()>& stop);
  /// What starts on the host and makes nothing faster there stays where it is used; until a tenth
  /// after the deadline.
  void keep_what_need_not_wrap();

  /// Nothing if no plan has been found.
  std::optional<Solution>& best() { return best_; }

 private:
  /// One decision, or those of several gaps that are alike, taken otherwise.
  using Change = std::function<void(Decisions&)>;
  struct Candidate {
    Decisions decisions;
    double expected_s = 0;
  };

  std::vector<std::pair<Keep, int>> ways(int gap, const SolveOptions& allowed, bool resident) const;
  /// Decides a gap, or a node's algorithm, and with it what cannot stay as it was: a node that
  /// found on the host what is not there any more, gaps of what it now finds there.
  void take(Decisions& decisions, int gap, const std::pair<Keep, int>& way) const;
  void run_by(Decisions& decisions, int node, int algorithm) const;
  /// Of the node that changes a gap's tensor, those of its algorithms that find the tensor on the
  /// host.
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
