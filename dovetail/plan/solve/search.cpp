#include "dovetail/plan/solve/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <string>
#include <tuple>

#include "dovetail/base/trace.h"

namespace dovetail::plan {
namespace {

constexpr double kFaster = 1 - 1e-9;  // an expected time below this fraction of another is faster

/// Returns the role of each node in its layer, which is equal in repeated blocks: "blocks.#.ffn
/// aten::add 4".
std::vector<std::string> roles_of(const Graph& graph) {
  std::vector<std::string> out;
  int in_layer = 0;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const GraphNode& node = graph.nodes[n];
    in_layer = n > 0 && graph.nodes[n - 1].layer == node.layer ? in_layer + 1 : 0;
    std::string layer = node.layer;
    for (char& c : layer)
      if (c >= '0' && c <= '9') c = '#';
    out.push_back(
        fmt::format("{} {} {}", layer, node.name.substr(0, node.name.rfind(':')), in_layer));
  }
  return out;
}

/// Returns groups of gaps of equal tensors between nodes of equal roles, as the repeated blocks of
/// a model have them. Groups have at least two gaps.
std::vector<std::vector<int>> alike(const Graph& graph, const std::vector<Gap>& gaps) {
  const std::vector<std::string> roles = roles_of(graph);
  std::map<std::tuple<std::string, std::string, bool, int64_t>, std::vector<int>> found;
  for (size_t g = 0; g < gaps.size(); ++g) {
    const Gap& gap = gaps[g];
    found[{gap.from < 0 ? "" : roles[gap.from], roles[gap.to], gap.wraps,
           graph.tensors[gap.tensor].bytes}]
        .push_back(static_cast<int>(g));
  }
  std::vector<std::vector<int>> out;
  for (auto& [key, members] : found)
    if (members.size() > 1) out.push_back(std::move(members));
  return out;
}

int64_t excess_of(const Schedule& schedule, int64_t budget_bytes) {
  int64_t out = 0;
  for (const int64_t bytes : schedule.settled_bytes)
    out += std::max<int64_t>(bytes - budget_bytes, 0);
  return out;
}

bool same(const Decisions& a, const Decisions& b) {
  return a.gaps == b.gaps && a.codec == b.codec && a.algorithms == b.algorithms;
}

}  // namespace

int fastest_algorithm(const GraphNode& node) {
  const auto before = [](const Algorithm& a, const Algorithm& b) {
    return std::tuple(!a.on_host.empty(), a.time_s, a.workspace_bytes) <
           std::tuple(!b.on_host.empty(), b.time_s, b.workspace_bytes);
  };
  return static_cast<int>(std::min_element(node.algorithms.begin(), node.algorithms.end(), before) -
                          node.algorithms.begin());
}

double minimum_s(const Graph& graph) {
  double out = 0;
  for (const GraphNode& node : graph.nodes) {
    const auto faster = [](const Algorithm& a, const Algorithm& b) { return a.time_s < b.time_s; };
    out += std::min_element(node.algorithms.begin(), node.algorithms.end(), faster)->time_s;
  }
  return out;
}

bool may_be_chosen(const Graph& graph, const Scheduler& scheduler, int node, int algorithm,
                   const SolveOptions& allowed) {
  const std::vector<int>& on_host = graph.nodes[node].algorithms[algorithm].on_host;
  return allowed.algorithms && std::all_of(on_host.begin(), on_host.end(), [&](int t) {
           const std::vector<int> gaps = scheduler.gaps_on_host(node, t);
           // One gap must end here. Otherwise, the previous node has the tensor on the device.
           const auto& all = scheduler.gaps_of(t);
           const int wrapped = scheduler.wrapped_gap(t);
           return wrapped >= 0 && scheduler.gaps()[wrapped].from == node &&
                  std::any_of(all.begin(), all.end(),
                              [&](int g) { return scheduler.gaps()[g].to == node; }) &&
                  std::all_of(gaps.begin(), gaps.end(), [&](int g) {
                    return may_be_offloaded(graph, scheduler.gaps()[g], allowed);
                  });
         });
}

bool may_be_offloaded(const Graph& graph, const Gap& gap, const SolveOptions& allowed) {
  const int64_t bytes = graph.tensors[gap.tensor].bytes;
  return allowed.offload && (allowed.across_steps || !gap.wraps) && bytes >= allowed.least_bytes &&
         bytes <= graph.host_bytes.value_or(bytes);
}

Search::Search(const Graph& graph, const SolveOptions& options)
    : graph_(graph),
      options_(options),
      scheduler_(graph, options.fetches_wait),
      alike_(alike(graph, scheduler_.gaps())),
      started_s_(now_seconds()) {}

bool Search::in_time() const { return in_time(1); }
bool Search::in_time(double part) const {
  return now_seconds() < started_s_ + part * options_.time_limit_s;
}

Decisions Search::all_resident() const {
  Decisions out{.gaps = std::vector<Keep>(scheduler_.gaps().size()),
                .codec = std::vector<int>(scheduler_.gaps().size())};
  for (const GraphNode& node : graph_.nodes) out.algorithms.push_back(fastest_algorithm(node));
  return out;
}

Decisions Search::all_offloaded(Keep keep, const SolveOptions& allowed) const {
  return mostly_offloaded(keep, allowed, 0);
}

Decisions Search::mostly_offloaded(Keep keep, const SolveOptions& allowed, int period) const {
  Decisions out = all_resident();
  int count = 0;
  for (size_t g = 0; g < out.gaps.size(); ++g) {
    const auto possible = ways(static_cast<int>(g), allowed, false);
    if (possible.empty() || (period > 0 && ++count % period == 0)) continue;
    const auto wanted = std::find_if(possible.begin(), possible.end(),
                                     [&](const auto& way) { return way.first == keep; });
    std::tie(out.gaps[g], out.codec[g]) = wanted == possible.end() ? possible.front() : *wanted;
  }
  for (int n = 0; n < static_cast<int>(graph_.nodes.size()) && allowed.algorithms; ++n) {
    const auto& algorithms = graph_.nodes[n].algorithms;
    for (int a = 0; a < static_cast<int>(algorithms.size()); ++a)
      if (graph_.extra_bytes(algorithms[a]) < graph_.extra_bytes(algorithms[out.algorithms[n]]) &&
          may_be_chosen(graph_, scheduler_, n, a, allowed))
        run_by(out, n, a);
  }
  for (size_t g = 0; g < out.gaps.size(); ++g)
    if (scheduler_.is_moot(out, static_cast<int>(g))) out.gaps[g] = Keep::kResident;
  return out;
}

bool Search::offer(const Decisions& decisions) {
  auto made = scheduler_.schedule(decisions, graph_.budget_bytes);
  if (!made) return false;
  const bool known =
      std::any_of(candidates_.begin(), candidates_.end(),
                  [&](const Candidate& other) { return same(other.decisions, decisions); });
  if (!known) candidates_.push_back({.decisions = decisions, .expected_s = made->expected_s});
  if (!best_ || made->expected_s < best_->schedule.expected_s)
    best_ = Solution{.decisions = decisions, .schedule = std::move(*made)};
  return true;
}

void Search::offer(const Solution& solution) {
  if (!best_ || solution.schedule.expected_s < best_->schedule.expected_s) best_ = solution;
}

void Search::descend(Decisions decisions, int64_t budget_bytes, const SolveOptions& allowed,
                     Until until) {
  const auto goes_on = [&] {
    return in_time() || (until == Until::kPlan && !best_ && nodes_left_ > 0);
  };
  auto now = scheduler_.schedule(decisions, kNoBudget);
  int64_t excess = now ? excess_of(*now, budget_bytes) : 0;
  bool together = !alike_.empty();  // while this helps
  while (now && excess > 0 && goes_on()) {
    Decisions chosen;
    std::array<double, 3> least = {2, 0, 0};
    for (const auto& change :
         together
             ? changes_of_alike(decisions, gaps_above_budget(*now, budget_bytes), allowed, false)
             : changes(decisions, *now, budget_bytes, allowed)) {
      Decisions changed = decisions;
      change(changed);
      const auto made = scheduler_.schedule(changed, kNoBudget);
      if (until == Until::kPlan) nodes_left_ -= static_cast<int64_t>(graph_.nodes.size());
      if (!made) continue;
      const auto gained = static_cast<double>(excess - excess_of(*made, budget_bytes));
      const double cost_s = std::max(made->expected_s - now->expected_s, 0.0);
      // A change that gains nothing may gain together with the next one. Such changes rank after
      // all others, by ascending loss.
      const std::array<double, 3> rank = {gained > 0 ? 0.0 : 1.0,
                                          gained > 0 ? cost_s / gained : -gained, -gained};
      if (rank < least) least = rank, chosen = std::move(changed);
      if (!goes_on()) break;
    }
    if (together && (chosen.gaps.empty() || least[0] > 0)) {
      together = false;
      continue;
    }
    if (chosen.gaps.empty()) return;
    decisions = std::move(chosen);
    now = scheduler_.schedule(decisions, kNoBudget);
    excess = excess_of(*now, budget_bytes);
  }
  if (now) offer(decisions);
}

/// Replaces `from` and returns true if the changed decisions are a plan whose time is at most
/// `part` of the time of `from`.
bool Search::attempt(Candidate& from, Decisions changed, double part) {
  auto made = scheduler_.schedule(changed, graph_.budget_bytes);
  if (!made || made->expected_s > from.expected_s * part) return false;
  from = {.decisions = std::move(changed), .expected_s = made->expected_s};
  if (!best_ || made->expected_s <= best_->schedule.expected_s)
    best_ = Solution{.decisions = from.decisions, .schedule = std::move(*made)};
  return true;
}

bool Search::attempt_each(Candidate& from, const std::vector<Change>& changes) {
  bool better = false;
  for (const Change& change : changes) {
    if (!in_time()) break;
    Decisions changed = from.decisions;
    change(changed);
    better = attempt(from, std::move(changed), kFaster) || better;
  }
  return better;
}

/// Makes as many of these gaps resident as possible, while the plan takes at most `part` of its
/// time. Tries all gaps at once, and otherwise each half recursively.
void Search::take_back(Candidate& from, std::span<const int> gaps, double part,
                       const std::function<bool()>& goes_on) {
  if (gaps.empty() || !goes_on()) return;
  Decisions changed = from.decisions;
  for (const int g : gaps) take(changed, g, {Keep::kResident, 0});
  if (attempt(from, std::move(changed), part) || gaps.size() == 1) return;
  take_back(from, gaps.first(gaps.size() / 2), part, goes_on);
  take_back(from, gaps.subspan(gaps.size() / 2), part, goes_on);
}

void Search::improve(Candidate& candidate, bool pairs) {
  std::vector<int> away;
  for (size_t g = 0; g < candidate.decisions.gaps.size(); ++g)
    if (candidate.decisions.gaps[g] != Keep::kResident) away.push_back(static_cast<int>(g));
  take_back(candidate, away, kFaster, [&] { return in_time(); });
  bool better = true;
  while (better && in_time()) {
    better =
        attempt_each(candidate, changes_of_alike(candidate.decisions, alike_, options_, true)) ||
        attempt_each(candidate, single_changes(candidate.decisions));
    if (better || !pairs) continue;
    // No single change helps. Try pairs, since one change may free memory for the other.
    const auto all = single_changes(candidate.decisions);
    for (size_t i = 0; i < all.size() && !better && in_time(); ++i)
      for (size_t j = i + 1; j < all.size() && !better && in_time(); ++j) {
        Decisions changed = candidate.decisions;
        all[i](changed);
        all[j](changed);
        better = attempt(candidate, std::move(changed), kFaster);
      }
  }
}

void Search::improve_all() {
  const auto fastest_first = [&] {
    std::stable_sort(
        candidates_.begin(), candidates_.end(),
        [](const Candidate& a, const Candidate& b) { return a.expected_s < b.expected_s; });
  };
  for (const bool pairs : {false, true}) {
    fastest_first();
    for (Candidate& candidate : candidates_) improve(candidate, pairs);
  }
  candidates_.clear();
}

void Search::keep_what_need_not_wrap() {
  constexpr double kLatest = 1.1;  // fraction of the time limit
  if (!best_) return;
  std::vector<int> wrapping;
  for (size_t g = 0; g < scheduler_.gaps().size(); ++g)
    if (scheduler_.gaps()[g].wraps && best_->decisions.gaps[g] == Keep::kHost)
      wrapping.push_back(static_cast<int>(g));
  Candidate from{.decisions = best_->decisions, .expected_s = best_->schedule.expected_s};
  take_back(from, wrapping, 1, [&] { return in_time(kLatest); });
}

void Search::anneal(const std::function<bool()>& stop) {
  constexpr int kSteps = 1000;       // steps of one walk from the best plan
  constexpr double kSlower = 0.004;  // initial tolerance, as a fraction of the expected time
  while (best_ && !stop()) {
    Candidate now{.decisions = best_->decisions, .expected_s = best_->schedule.expected_s};
    for (int step = 0; step < kSteps && !stop(); ++step) {
      Decisions changed = now.decisions;
      change_at_random(changed);
      auto made = scheduler_.schedule(changed, graph_.budget_bytes);
      const double slower = kSlower * (kSteps - step) / kSteps;
      if (!made || made->expected_s > now.expected_s * (1 + slower)) continue;
      now = {.decisions = std::move(changed), .expected_s = made->expected_s};
      if (made->expected_s < best_->schedule.expected_s * kFaster)
        best_ = Solution{.decisions = now.decisions, .schedule = std::move(*made)};
    }
  }
}

}  // namespace dovetail::plan
