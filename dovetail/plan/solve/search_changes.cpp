// Changes of decisions that a search may try: single decisions, decisions of similar gaps, and
// random ones.
#include <algorithm>
#include <array>
#include <tuple>

#include "dovetail/plan/solve/search.h"

namespace dovetail::plan {

void Search::take(Decisions& decisions, int gap, const std::pair<Keep, int>& way) const {
  std::tie(decisions.gaps[gap], decisions.codec[gap]) = way;
  if (way.first == Keep::kHost) return;
  const Gap& of = scheduler_.gaps()[gap];
  for (const int n : scheduler_.writers_of(of.tensor)) {
    const GraphNode& node = graph_.nodes[n];
    if ((of.wraps || of.to == n) &&
        node.algorithms[decisions.algorithms[n]].finds_on_host(of.tensor))
      decisions.algorithms[n] = fastest_algorithm(node);
  }
}

void Search::run_by(Decisions& decisions, int node, int algorithm) const {
  decisions.algorithms[node] = algorithm;
  for (const int t : graph_.nodes[node].algorithms[algorithm].on_host)
    for (const int g : scheduler_.gaps_on_host(node, t)) decisions.gaps[g] = Keep::kHost;
}

std::vector<std::pair<int, int>> Search::on_host(int gap, const SolveOptions& allowed) const {
  std::vector<std::pair<int, int>> out;
  const int t = scheduler_.gaps()[gap].tensor;
  for (const int n : scheduler_.writers_of(t))
    for (int a = 0; a < static_cast<int>(graph_.nodes[n].algorithms.size()); ++a)
      if (graph_.nodes[n].algorithms[a].finds_on_host(t) &&
          may_be_chosen(graph_, scheduler_, n, a, allowed))
        out.emplace_back(n, a);
  return out;
}

/// Changes decisions at random. One in four changes affects a range of similar gaps. The others
/// affect one decision (40 %), two (40 %) or three (20 %).
void Search::change_at_random(Decisions& decisions) {
  const auto draw = [&](size_t below) { return static_cast<size_t>(random_() % below); };
  const size_t gaps = decisions.gaps.size(), nodes = options_.algorithms ? graph_.nodes.size() : 0;
  if (gaps + nodes == 0) return;
  if (!alike_.empty() && draw(4) == 0) {
    const std::vector<int>& some = alike_[draw(alike_.size())];
    const auto possible = ways(some.front(), options_, true);
    const auto way = possible[draw(possible.size())];
    const size_t first = draw(some.size()), end = first + 1 + draw(some.size() - first);
    for (size_t i = first; i < end; ++i)
      if (!scheduler_.is_moot(decisions, some[i])) take(decisions, some[i], way);
    return;
  }
  for (size_t left = std::array<size_t, 10>{1, 1, 1, 1, 2, 2, 2, 2, 3, 3}[draw(10)]; left > 0;
       --left) {
    const size_t at = draw(gaps + nodes);
    if (at >= gaps) {
      const auto node = static_cast<int>(at - gaps),
                 algorithm = static_cast<int>(draw(graph_.nodes[node].algorithms.size()));
      if (may_be_chosen(graph_, scheduler_, node, algorithm, options_))
        run_by(decisions, node, algorithm);
      continue;
    }
    const auto possible = ways(static_cast<int>(at), options_, true);
    if (!scheduler_.is_moot(decisions, static_cast<int>(at)))
      take(decisions, static_cast<int>(at), possible[draw(possible.size())]);
  }
}

/// Returns the groups of similar gaps with the most bytes at nodes that lack memory. There are at
/// most 40 groups, since a change takes milliseconds to evaluate in large steps.
std::vector<std::vector<int>> Search::gaps_above_budget(const Schedule& now,
                                                        int64_t budget_bytes) const {
  constexpr size_t kMost = 40;
  std::vector<int> over = {0};  // prefix sums: number of earlier nodes that lack memory
  for (const int64_t bytes : now.settled_bytes)
    over.push_back(over.back() + (bytes > budget_bytes ? 1 : 0));
  std::vector<std::pair<double, size_t>> found;
  for (size_t i = 0; i < alike_.size(); ++i) {
    double sum = 0;
    for (const int g : alike_[i]) {
      const Gap& gap = scheduler_.gaps()[g];
      const int within = over[gap.to] - over[gap.from + 1];
      sum += static_cast<double>(graph_.tensors[gap.tensor].bytes) *
             (gap.wraps ? over.back() - over[gap.from + 1] + over[gap.to] : within);
    }
    if (sum > 0) found.emplace_back(-sum, i);
  }
  std::sort(found.begin(), found.end());
  std::vector<std::vector<int>> out;
  for (const auto& [sum, i] : found)
    if (out.size() < kMost) out.push_back(alike_[i]);
  return out;
}

/// Returns the possible treatments of a gap, with the codec if it is packed.
std::vector<std::pair<Keep, int>> Search::ways(int gap, const SolveOptions& allowed,
                                               bool resident) const {
  std::vector<std::pair<Keep, int>> out;
  const GraphTensor& tensor = graph_.tensors[scheduler_.gaps()[gap].tensor];
  if (resident) out.emplace_back(Keep::kResident, 0);
  if (tensor.bytes < allowed.least_bytes) return out;
  if (may_be_offloaded(graph_, scheduler_.gaps()[gap], allowed)) out.emplace_back(Keep::kHost, 0);
  if (allowed.recompute && scheduler_.can_be_recomputed(gap)) {
    out.emplace_back(Keep::kAgain, 0);
    out.emplace_back(Keep::kAgainEarly, 0);
  }
  for (int c = 0; c < static_cast<int>(graph_.codecs.size()) && allowed.compress; ++c)
    if (may_be_packed(graph_, scheduler_.gaps()[gap], c)) out.emplace_back(Keep::kPacked, c);
  return out;
}

/// Returns changes of groups of similar gaps, for each other treatment. Each change affects all
/// gaps of a group, or the first half, quarter and so on. If `moved` is false, only resident gaps
/// are changed, and only all or half of a group.
std::vector<Search::Change> Search::changes_of_alike(const Decisions& decisions,
                                                     const std::vector<std::vector<int>>& alike,
                                                     const SolveOptions& allowed,
                                                     bool moved) const {
  std::vector<Change> out;
  for (const std::vector<int>& gaps : alike) {
    for (const auto& way : ways(gaps.front(), allowed, moved)) {
      std::vector<int> others;
      for (const int g : gaps)
        if ((moved || decisions.gaps[g] == Keep::kResident) &&
            way != std::pair(decisions.gaps[g], decisions.codec[g]) &&
            !scheduler_.is_moot(decisions, g))
          others.push_back(g);
      for (size_t count = others.size(); count > 1 && (moved || 2 * count >= others.size() - 1);
           count /= 2)
        out.emplace_back(
            [this, way,
             some = std::vector(others.begin(), others.begin() + static_cast<int64_t>(count))](
                Decisions& changed) {
              for (const int g : some) take(changed, g, way);
            });
    }
    // Updates in host memory: the i-th change uses the i-th algorithm of each node that can do
    // this.
    const size_t algorithms = on_host(gaps.front(), allowed).size();
    for (size_t i = 0; i < algorithms; ++i) {
      std::vector<std::pair<int, int>> others;
      for (const int g : gaps)
        if (const auto found = on_host(g, allowed); i < found.size())
          if (decisions.algorithms[found[i].first] != found[i].second) others.push_back(found[i]);
      for (size_t count = others.size(); count > 1 && (moved || 2 * count >= others.size() - 1);
           count /= 2)
        out.emplace_back([this, some = std::vector(others.begin(),
                                                   others.begin() + static_cast<int64_t>(count))](
                             Decisions& changed) {
          for (const auto& [node, algorithm] : some) run_by(changed, node, algorithm);
        });
    }
  }
  return out;
}

/// Returns each other treatment of each gap, and each other algorithm of each node.
std::vector<Search::Change> Search::single_changes(const Decisions& decisions) const {
  std::vector<Change> out;
  for (size_t g = 0; g < decisions.gaps.size(); ++g) {
    if (scheduler_.is_moot(decisions, static_cast<int>(g))) continue;
    for (const auto& way : ways(static_cast<int>(g), options_, true))
      if (way != std::pair(decisions.gaps[g], decisions.codec[g]))
        out.emplace_back(
            [this, g, way](Decisions& changed) { take(changed, static_cast<int>(g), way); });
  }
  for (int n = 0; n < static_cast<int>(graph_.nodes.size()) && options_.algorithms; ++n)
    for (int a = 0; a < static_cast<int>(graph_.nodes[n].algorithms.size()); ++a)
      if (a != decisions.algorithms[n] && may_be_chosen(graph_, scheduler_, n, a, options_))
        out.emplace_back([this, n, a](Decisions& changed) { run_by(changed, n, a); });
  return out;
}

/// Returns changes that free memory at the node that exceeds the budget most.
std::vector<Search::Change> Search::changes(const Decisions& decisions, const Schedule& now,
                                            int64_t budget_bytes,
                                            const SolveOptions& allowed) const {
  const auto most = std::max_element(now.settled_bytes.begin(), now.settled_bytes.end());
  const int slot = static_cast<int>(most - now.settled_bytes.begin());
  std::vector<Change> out;
  for (size_t g = 0; g < decisions.gaps.size(); ++g) {
    if (!scheduler_.gaps()[g].covers(slot) || decisions.gaps[g] != Keep::kResident ||
        scheduler_.is_moot(decisions, static_cast<int>(g)))
      continue;
    for (const auto& way : ways(static_cast<int>(g), allowed, false))
      out.emplace_back(
          [this, g, way](Decisions& changed) { take(changed, static_cast<int>(g), way); });
    for (const auto& [n, a] : on_host(static_cast<int>(g), allowed))
      out.emplace_back([this, n = n, a = a](Decisions& changed) { run_by(changed, n, a); });
  }
  const GraphNode& node = graph_.nodes[slot];
  for (int a = 0; a < static_cast<int>(node.algorithms.size()); ++a)
    if (graph_.extra_bytes(node.algorithms[a]) <
            graph_.extra_bytes(node.algorithms[decisions.algorithms[slot]]) &&
        may_be_chosen(graph_, scheduler_, slot, a, allowed))
      out.emplace_back([this, slot, a](Decisions& changed) { run_by(changed, slot, a); });
  return out;
}

}  // namespace dovetail::plan
