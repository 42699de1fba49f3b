#include "dovetail/plan/solve.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <tuple>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"

namespace dovetail::plan {
namespace {

constexpr int64_t kNoBudget = std::numeric_limits<int64_t>::max() / 4;

int fastest(const GraphNode& node) {
  const auto before = [](const Algorithm& a, const Algorithm& b) {
    return std::pair(a.time_s, a.workspace_bytes) < std::pair(b.time_s, b.workspace_bytes);
  };
  return static_cast<int>(std::min_element(node.algorithms.begin(), node.algorithms.end(), before) -
                          node.algorithms.begin());
}

int64_t least_workspace(const GraphNode& node) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const Algorithm& algorithm : node.algorithms) least = std::min(least, algorithm.workspace_bytes);
  return least;
}

/// One decision taken otherwise.
using Change = std::function<void(Decisions&)>;

/// Whether a gap may be spent on the host.
bool may_be_offloaded(const Graph& graph, const Gap& gap, const SolveOptions& allowed) {
  return allowed.offload && (allowed.across_steps || !gap.wraps) &&
         graph.tensors[gap.tensor].bytes >= allowed.least_bytes;
}

class Search {
 public:
  Search(const Graph& graph, const SolveOptions& options)
      : graph_(graph), options_(options), scheduler_(graph), deadline_s_(now_seconds() + options.time_limit_s) {}

  const Scheduler& scheduler() const { return scheduler_; }
  bool in_time() const { return now_seconds() < deadline_s_; }

  Decisions all_resident() const {
    Decisions out{.gaps = std::vector<Keep>(scheduler_.gaps().size()),
                  .codec = std::vector<int>(scheduler_.gaps().size())};
    for (const GraphNode& node : graph_.nodes) out.algorithms.push_back(fastest(node));
    return out;
  }

  /// Keeps it if it is a plan within the budget and faster than the best.
  void offer(const Decisions& decisions) {
    auto made = scheduler_.schedule(decisions, graph_.budget_bytes);
    if (!made || (best_ && made->expected_s >= best_->schedule.expected_s)) return;
    best_ = Solution{.decisions = decisions, .schedule = std::move(*made)};
  }

  /// From these decisions greedily below `budget_bytes` (at most the one asked for), with the techniques of `allowed`.
  void descend(Decisions decisions, int64_t budget_bytes, const SolveOptions& allowed) {
    auto now = scheduler_.schedule(decisions, kNoBudget);
    int64_t excess = now ? excess_of(*now, budget_bytes) : 0;
    while (now && excess > 0 && in_time()) {
      Decisions chosen;
      std::array<double, 3> least = {2, 0, 0};
      for (const auto& change : changes(decisions, *now, budget_bytes, allowed)) {
        Decisions changed = decisions;
        change(changed);
        const auto made = scheduler_.schedule(changed, kNoBudget);
        if (!made) continue;
        const auto gained = static_cast<double>(excess - excess_of(*made, budget_bytes));
        const double cost_s = std::max(made->expected_s - now->expected_s, 0.0);
        // What gains nothing by itself may with the next change: after all that gains, the least loss first.
        const std::array<double, 3> rank = {gained > 0 ? 0.0 : 1.0, gained > 0 ? cost_s / gained : -gained, -gained};
        if (rank < least) least = rank, chosen = std::move(changed);
        if (!in_time()) break;
      }
      if (chosen.gaps.empty()) return;
      decisions = std::move(chosen);
      now = scheduler_.schedule(decisions, kNoBudget);
      excess = excess_of(*now, budget_bytes);
    }
    if (!now) return;
    improve(decisions);
  }

  /// From everything away that may go, by `keep` where it can be, back up.
  void ascend(Keep keep, const SolveOptions& allowed) {
    Decisions decisions = all_resident();
    for (size_t g = 0; g < decisions.gaps.size(); ++g) {
      const auto possible = ways(static_cast<int>(g), allowed, false);
      if (possible.empty()) continue;
      const auto wanted =
          std::find_if(possible.begin(), possible.end(), [&](const auto& way) { return way.first == keep; });
      std::tie(decisions.gaps[g], decisions.codec[g]) = wanted == possible.end() ? possible.front() : *wanted;
    }
    for (size_t g = 0; g < decisions.gaps.size(); ++g)
      if (scheduler_.is_moot(decisions, static_cast<int>(g))) decisions.gaps[g] = Keep::kResident;
    for (size_t n = 0; n < graph_.nodes.size() && allowed.algorithms; ++n)
      for (size_t a = 0; a < graph_.nodes[n].algorithms.size(); ++a)
        if (graph_.nodes[n].algorithms[a].workspace_bytes <
            graph_.nodes[n].algorithms[decisions.algorithms[n]].workspace_bytes)
          decisions.algorithms[n] = static_cast<int>(a);
    improve(std::move(decisions));
  }

  /// Take back or exchange single decisions while that makes a plan within the budget faster.
  void improve(Decisions decisions) {
    auto now = scheduler_.schedule(decisions, graph_.budget_bytes);
    if (!now) return;
    offer(decisions);
    bool better = true;
    while (better && in_time()) {
      better = false;
      const auto attempt = [&](Decisions changed) {
        auto made = scheduler_.schedule(changed, graph_.budget_bytes);
        if (!made || made->expected_s >= now->expected_s * (1 - 1e-9)) return;
        decisions = std::move(changed);
        now = std::move(made);
        better = true;
      };
      for (const Change& change : single_changes(decisions)) {
        if (!in_time()) break;
        Decisions changed = decisions;
        change(changed);
        attempt(std::move(changed));
      }
      if (better) continue;
      // One change does not help: two at once, of which one may give the other its memory.
      const auto all = single_changes(decisions);
      for (size_t i = 0; i < all.size() && !better && in_time(); ++i)
        for (size_t j = i + 1; j < all.size() && !better && in_time(); ++j) {
          Decisions changed = decisions;
          all[i](changed);
          all[j](changed);
          attempt(std::move(changed));
        }
    }
    offer(decisions);
  }

  /// What starts on the host and makes nothing faster there stays where it is used.
  void keep_what_need_not_wrap() {
    for (size_t g = 0; best_ && g < scheduler_.gaps().size(); ++g) {
      if (!scheduler_.gaps()[g].wraps || best_->decisions.gaps[g] != Keep::kHost) continue;
      Decisions changed = best_->decisions;
      changed.gaps[g] = Keep::kResident;
      auto made = scheduler_.schedule(changed, graph_.budget_bytes);
      if (made && made->expected_s <= best_->schedule.expected_s)
        best_ = Solution{.decisions = std::move(changed), .schedule = std::move(*made)};
    }
  }

  std::optional<Solution>& best() { return best_; }

 private:
  static int64_t excess_of(const Schedule& schedule, int64_t budget_bytes) {
    int64_t out = 0;
    for (const int64_t bytes : schedule.settled_bytes) out += std::max<int64_t>(bytes - budget_bytes, 0);
    return out;
  }

  /// What may become of a gap, with the codec of the packed ways.
  std::vector<std::pair<Keep, int>> ways(int gap, const SolveOptions& allowed, bool resident) const {
    std::vector<std::pair<Keep, int>> out;
    const GraphTensor& tensor = graph_.tensors[scheduler_.gaps()[gap].tensor];
    if (resident) out.emplace_back(Keep::kResident, 0);
    if (tensor.bytes < allowed.least_bytes) return out;
    if (may_be_offloaded(graph_, scheduler_.gaps()[gap], allowed)) out.emplace_back(Keep::kHost, 0);
    if (allowed.recompute && scheduler_.can_be_made_again(gap)) {
      out.emplace_back(Keep::kAgain, 0);
      out.emplace_back(Keep::kAgainEarly, 0);
    }
    if (allowed.compress && !resident_at_start(tensor.kind))
      for (size_t c = 0; c < graph_.codecs.size(); ++c)
        if (tensor.lossy_ok || graph_.codecs[c].max_error == 0) out.emplace_back(Keep::kPacked, static_cast<int>(c));
    return out;
  }

  /// Every other way for each gap, and every other algorithm for each node.
  std::vector<Change> single_changes(const Decisions& decisions) const {
    std::vector<Change> out;
    for (size_t g = 0; g < decisions.gaps.size(); ++g) {
      if (scheduler_.is_moot(decisions, static_cast<int>(g))) continue;
      for (const auto& way : ways(static_cast<int>(g), options_, true))
        if (way != std::pair(decisions.gaps[g], decisions.codec[g]))
          out.emplace_back([g, way](Decisions& changed) { std::tie(changed.gaps[g], changed.codec[g]) = way; });
    }
    for (size_t n = 0; n < graph_.nodes.size() && options_.algorithms; ++n)
      for (int a = 0; a < static_cast<int>(graph_.nodes[n].algorithms.size()); ++a)
        if (a != decisions.algorithms[n]) out.emplace_back([n, a](Decisions& changed) { changed.algorithms[n] = a; });
    return out;
  }

  /// Changes that give memory back at the slot that is furthest over the budget.
  std::vector<Change> changes(const Decisions& decisions, const Schedule& now, int64_t budget_bytes,
                              const SolveOptions& allowed) const {
    const auto most = std::max_element(now.settled_bytes.begin(), now.settled_bytes.end());
    const int slot = static_cast<int>(most - now.settled_bytes.begin());
    std::vector<Change> out;
    for (size_t g = 0; g < decisions.gaps.size(); ++g) {
      if (!scheduler_.gaps()[g].covers(slot) || decisions.gaps[g] != Keep::kResident ||
          scheduler_.is_moot(decisions, static_cast<int>(g)))
        continue;
      for (const auto& way : ways(static_cast<int>(g), allowed, false))
        out.emplace_back([g, way](Decisions& changed) { std::tie(changed.gaps[g], changed.codec[g]) = way; });
    }
    const GraphNode& node = graph_.nodes[slot];
    for (size_t a = 0; a < node.algorithms.size() && allowed.algorithms; ++a)
      if (node.algorithms[a].workspace_bytes < node.algorithms[decisions.algorithms[slot]].workspace_bytes)
        out.emplace_back([slot, a](Decisions& changed) { changed.algorithms[slot] = static_cast<int>(a); });
    return out;
  }

  const Graph& graph_;
  const SolveOptions& options_;
  const Scheduler scheduler_;
  const double deadline_s_;
  std::optional<Solution> best_;
};

}  // namespace

Floor floor_of(const Graph& graph, const SolveOptions& options) {
  const Scheduler scheduler(graph);
  const size_t nodes = graph.nodes.size();
  // What is resident at each node if nothing leaves, less all that may leave.
  Decisions keep_all{.gaps = std::vector<Keep>(scheduler.gaps().size()),
                     .codec = std::vector<int>(scheduler.gaps().size()),
                     .algorithms = std::vector<int>(nodes)};
  const auto kept = scheduler.schedule(keep_all, kNoBudget);
  DOVETAIL_CHECK(kept.has_value(), "a step that keeps all does not run");
  std::vector<int64_t> bytes = kept->slot_bytes;
  for (size_t n = 0; n < nodes; ++n)
    bytes[n] += (options.algorithms ? least_workspace(graph.nodes[n])
                                    : graph.nodes[n].algorithms[fastest(graph.nodes[n])].workspace_bytes) -
                graph.nodes[n].algorithms[0].workspace_bytes;
  const auto may_wrap = [&](int tensor) {
    const int gap = scheduler.wrapped_gap(tensor);
    return gap >= 0 && may_be_offloaded(graph, scheduler.gaps()[gap], options);
  };
  for (size_t g = 0; g < scheduler.gaps().size(); ++g) {
    const Gap& gap = scheduler.gaps()[g];
    const GraphTensor& tensor = graph.tensors[gap.tensor];
    if (tensor.bytes < options.least_bytes) continue;
    if (gap.from < 0 && may_wrap(gap.tensor)) continue;  // a part of the one that wraps
    double stays = 1;
    if (options.compress && !resident_at_start(tensor.kind))
      for (const Codec& codec : graph.codecs)
        if (tensor.lossy_ok || codec.max_error == 0) stays = std::min(stays, codec.ratio);
    if (may_be_offloaded(graph, gap, options) ||
        (options.recompute && scheduler.can_be_made_again(static_cast<int>(g))))
      stays = 0;
    for (size_t n = 0; n < nodes; ++n)
      if (gap.covers(static_cast<int>(n)))
        bytes[n] -= static_cast<int64_t>((1 - stays) * static_cast<double>(tensor.bytes));
  }
  Floor out;
  for (size_t n = 0; n < nodes; ++n)
    if (bytes[n] > out.bytes) out = {bytes[n], static_cast<int>(n)};
  // What is there when the step begins, and cannot be away then, has to fit then.
  int64_t at_start = graph.base_bytes;
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const GraphTensor& tensor = graph.tensors[t];
    if (tensor.alias_of < 0 && resident_at_start(tensor.kind) && !may_wrap(static_cast<int>(t)))
      at_start += tensor.bytes;
  }
  if (at_start > out.bytes) out = {at_start, -1};
  return out;
}

Solution solve(const Graph& graph, const SolveOptions& options) {
  const double started_s = now_seconds();
  const Floor floor = floor_of(graph, options);
  if (graph.budget_bytes < floor.bytes)
    throw UserError(
        fmt::format("plan: the budget of {} bytes is below the floor of this step, {} bytes, {}", graph.budget_bytes,
                    floor.bytes,
                    floor.node < 0 ? "which what it keeps of its inputs, parameters and state takes when it begins"
                                   : fmt::format("which node {} needs", graph.nodes[floor.node].name)),
        "raise the budget, lower the batch, or allow more techniques");
  Search search(graph, options);
  SolveOptions within_step = options;
  within_step.across_steps = false;
  if (options.start) search.improve(*options.start);
  search.improve(search.all_resident());
  for (const Keep keep : {Keep::kHost, Keep::kAgain, Keep::kAgainEarly, Keep::kPacked}) {
    search.ascend(keep, within_step);
    if (options.offload && options.across_steps) search.ascend(keep, options);
  }
  // A smaller budget than the one asked for leaves room for copies under way.
  constexpr int kBudgets = 6;
  std::vector<SolveOptions> techniques = {options};
  if (options.offload && options.recompute) {
    techniques.push_back(options);
    techniques.back().recompute = false;
    techniques.push_back(options);
    techniques.back().offload = false;
  }
  if (options.offload && options.across_steps) techniques.push_back(within_step);
  for (int i = 0; i < kBudgets && search.in_time(); ++i) {
    if (search.best() && search.best()->decisions.gaps == search.all_resident().gaps && i == 0 &&
        search.best()->decisions.algorithms == search.all_resident().algorithms)
      break;  // everything fits
    const int64_t budget = graph.budget_bytes - (graph.budget_bytes - floor.bytes) * i / kBudgets;
    for (const SolveOptions& allowed : techniques)
      if (search.in_time()) search.descend(search.all_resident(), budget, allowed);
  }
  search.keep_what_need_not_wrap();
  if (!search.best())
    throw UserError(fmt::format("plan: no plan within {} bytes was found in {:.0f} s; the floor is {} bytes",
                                graph.budget_bytes, now_seconds() - started_s, floor.bytes),
                    "raise the budget, or the time limit");
  Solution out = std::move(*search.best());
  for (const GraphNode& node : graph.nodes) out.bound_s += node.algorithms[fastest(node)].time_s;
  out.complete = search.in_time();
  out.seconds = now_seconds() - started_s;
  return out;
}

std::optional<Solution> improve(const Graph& graph, const SolveOptions& options, const Decisions& decisions) {
  const double started_s = now_seconds();
  Search search(graph, options);
  search.improve(decisions);
  if (!search.best()) search.descend(decisions, graph.budget_bytes, options);
  std::optional<Solution> out = std::move(search.best());
  if (!out) return out;
  for (const GraphNode& node : graph.nodes) out->bound_s += node.algorithms[fastest(node)].time_s;
  out->complete = search.in_time();
  out->seconds = now_seconds() - started_s;
  return out;
}

}  // namespace dovetail::plan
