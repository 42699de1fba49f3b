#include "dovetail/plan/model/schedule.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/plan/model/index_list.h"
#include "dovetail/plan/model/walk.h"

namespace dovetail::plan {
namespace {

constexpr std::array<std::string_view, 5> kKeepNames = {"kept", "offloaded", "recomputed",
                                                        "recomputed early", "compressed"};

Graph without_budget(Graph graph) {
  graph.budget_bytes = std::numeric_limits<int64_t>::max() / 2;
  graph.host_bytes.reset();
  return graph;
}

}  // namespace

std::string_view name(Keep keep) { return kKeepNames[static_cast<size_t>(keep)]; }

std::vector<Gap> find_gaps(const Graph& graph) {
  std::vector<std::vector<int>> used_by(graph.tensors.size());  // nodes, ascending
  std::vector<bool> found_on_host(graph.tensors.size());
  for (int n = 0; n < static_cast<int>(graph.nodes.size()); ++n) {
    const GraphNode& node = graph.nodes[n];
    for (const auto* list : {&node.inputs, &node.outputs, &node.mutates})
      for (const int t : *list)
        if (auto& users = used_by[graph.root(t)]; users.empty() || users.back() != n)
          users.push_back(n);
    for (const Algorithm& algorithm : node.algorithms)
      for (const int t : algorithm.on_host) found_on_host[t] = true;
  }
  std::vector<Gap> gaps;
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const GraphTensor& tensor = graph.tensors[t];
    if (tensor.alias_of >= 0 || tensor.bytes == 0) continue;
    int first = -1, last = -1;
    bool there = resident_at_start(tensor.kind) && tensor.kind != TensorKind::kInput;
    for (const int n : used_by[t]) {
      if (there && n > last + 1) gaps.push_back({static_cast<int>(t), last, n});
      last = n;
      if (first < 0) first = last;
      there = true;
    }
    const bool rests = first > 0 || last + 1 < static_cast<int>(graph.nodes.size());
    if (may_start_on_host(tensor.kind) && last >= 0 && (rests || found_on_host[t]))
      gaps.push_back({static_cast<int>(t), last, first, /*wraps=*/true});
  }
  std::stable_sort(gaps.begin(), gaps.end(),
                   [](const Gap& a, const Gap& b) { return a.from < b.from; });
  return gaps;
}

bool may_be_packed(const Graph& graph, const Gap& gap, int codec) {
  return !resident_at_start(graph.tensors[gap.tensor].kind) &&
         !graph.nodes[gap.to].reads_unpacked && graph.may_be_packed(gap.tensor, codec);
}

Scheduler::Scheduler(const Graph& graph, bool fetches_wait)
    : graph_(graph),
      fetches_wait_(fetches_wait),
      unlimited_(without_budget(graph)),
      gaps_(find_gaps(graph)),
      gaps_from_(graph.nodes.size() + 1),
      gaps_of_(graph.tensors.size()),
      wrapped_gap_(graph.tensors.size(), -1),
      producer_(graph.tensors.size(), -1),
      last_use_(graph.tensors.size(), -1),
      stays_(graph.tensors.size()),
      reads_(graph.nodes.size()),
      writers_(graph.tensors.size()) {
  for (size_t g = 0; g < gaps_.size(); ++g) {
    gaps_from_[gaps_[g].from + 1].push_back(static_cast<int>(g));
    gaps_of_[gaps_[g].tensor].push_back(static_cast<int>(g));
    if (gaps_[g].wraps) wrapped_gap_[gaps_[g].tensor] = static_cast<int>(g);
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const GraphNode& node = graph.nodes[n];
    for (const auto* list : {&node.inputs, &node.mutates})
      for (const int t : *list)
        if (!contains(reads_[n], graph.root(t))) reads_[n].push_back(graph.root(t));
    for (const int t : node.mutates) writers_[graph.root(t)].push_back(static_cast<int>(n));
    for (const int t : node.outputs)
      if (graph.tensors[t].alias_of < 0) producer_[t] = last_use_[t] = static_cast<int>(n);
    for (const int t : reads_[n]) last_use_[t] = static_cast<int>(n);
  }
  for (size_t t = 0; t < graph.tensors.size(); ++t)
    stays_[t] = resident_at_start(graph.tensors[t].kind);
  for (const int t : graph.final) stays_[graph.root(t)] = true;
}

bool Scheduler::can_be_recomputed(int gap) const {
  const int p = producer_[gaps_[gap].tensor];
  if (p < 0 || graph_.nodes[p].runs_once() || !writers_[gaps_[gap].tensor].empty()) return false;
  // A rerun must not undo later writes to other outputs of the node.
  return std::none_of(graph_.nodes[p].outputs.begin(), graph_.nodes[p].outputs.end(), [&](int o) {
    const auto& writers = writers_[graph_.root(o)];
    return !writers.empty() && writers.front() < gaps_[gap].to;
  });
}

bool Scheduler::is_moot(const Decisions& decisions, int gap) const {
  const int wrapped = wrapped_gap_[gaps_[gap].tensor];
  return gaps_[gap].from < 0 && wrapped >= 0 && wrapped != gap &&
         decisions.gaps[wrapped] == Keep::kHost;
}

bool Scheduler::is_read_on_host(const Decisions& decisions, int gap) const {
  const int reader = gaps_[gap].to;
  return graph_.nodes[reader].algorithms[decisions.algorithms[reader]].finds_on_host(
      gaps_[gap].tensor);
}

std::vector<int> Scheduler::gaps_on_host(int node, int tensor) const {
  std::vector<int> out;
  for (const int g : gaps_of_[tensor])
    if (gaps_[g].wraps || (gaps_[g].to == node && gaps_[g].from >= 0)) out.push_back(g);
  return out;
}

/// Returns, per gap, the node before which its fetch is issued, no earlier than memory allows.
/// `held` has the bytes at each node.
///
/// Order::kLastFirst assigns the latest fetch first. Each fetch is as late as possible, but ends
/// before its reader and before the next fetch starts. Order::kFirstFirst assigns the earliest
/// fetch first. Each fetch is as early as possible.
std::vector<int> Scheduler::times_of_fetches(const Decisions& decisions,
                                             const std::vector<int>& needed_at,
                                             std::vector<int64_t> held, int64_t budget_bytes,
                                             Order order) const {
  std::vector<int> out(gaps_.size()), away;
  for (size_t g = 0; g < gaps_.size(); ++g) {
    out[g] = gaps_[g].to;
    if (decisions.gaps[g] == Keep::kHost && !is_moot(decisions, static_cast<int>(g)) &&
        !is_read_on_host(decisions, static_cast<int>(g)))
      away.push_back(static_cast<int>(g));
  }
  const bool last_first = order == Order::kLastFirst;
  std::stable_sort(away.begin(), away.end(), [&](int a, int b) {
    return last_first ? needed_at[a] > needed_at[b] : needed_at[a] < needed_at[b];
  });
  double next_s = std::numeric_limits<double>::infinity();
  std::vector<double> start_s(graph_.nodes.size());
  for (size_t n = 0; n + 1 < start_s.size(); ++n)
    start_s[n + 1] = start_s[n] + graph_.nodes[n].algorithms[decisions.algorithms[n]].time_s;
  for (const int g : away) {
    const Gap& gap = gaps_[g];
    const int64_t bytes = graph_.tensors[gap.tensor].bytes;
    int at = needed_at[g];
    for (int n = at; n < gap.to; ++n)
      if (held[n] + bytes > budget_bytes) at = gap.to;  // the tensor cannot stay from here on
    for (int n = at; n < gap.to; ++n) held[n] += bytes;
    next_s =
        std::min(next_s, start_s[at]) - static_cast<double>(bytes) / graph_.bandwidth.to_device;
    const int first = gap.wraps ? 0 : gap.from + 1;
    while (at > first && (!last_first || start_s[at] > next_s) &&
           held[at - 1] + bytes <= budget_bytes)
      held[--at] += bytes;
    out[g] = at;
  }
  return out;
}

BesideComputing beside_computing(const Plan& plan, const Timeline& timeline) {
  std::vector<Timeline::Span> work;  // a single stream, in the order of time
  for (size_t a = 0; a < plan.actions.size(); ++a)
    if (computes(plan.actions[a].op)) work.push_back(timeline.actions[a]);
  BesideComputing out;
  for (size_t a = 0; a < plan.actions.size(); ++a) {
    const Op op = plan.actions[a].op;
    if (op != Op::kOffload && op != Op::kPrefetch) continue;
    double& both_s = op == Op::kOffload ? out.out_s : out.in_s;
    const Timeline::Span& copy = timeline.actions[a];
    auto beside = std::partition_point(work.begin(), work.end(),
                                       [&](const auto& w) { return w.end_s <= copy.start_s; });
    for (; beside != work.end() && beside->start_s < copy.end_s; ++beside)
      both_s += std::min(copy.end_s, beside->end_s) - std::max(copy.start_s, beside->start_s);
  }
  return out;
}

double expected_s(const Graph& graph, const Plan& plan, const Timeline& timeline) {
  if (graph.bandwidth.slowdown <= 0) return timeline.makespan_s;
  const BesideComputing beside = beside_computing(plan, timeline);
  return timeline.makespan_s + graph.bandwidth.slowdown * (beside.out_s + beside.in_s);
}

std::optional<Schedule> Scheduler::schedule(const Decisions& decisions, int64_t budget_bytes,
                                            Misfit* misfit) const {
  std::vector<int> at_end(gaps_.size());
  for (size_t g = 0; g < gaps_.size(); ++g) at_end[g] = gaps_[g].to;
  Walk late(*this, decisions, at_end, budget_bytes);
  if (!late.run()) {
    if (misfit != nullptr) *misfit = late.misfit();
    return std::nullopt;
  }
  const std::vector<int64_t> held = late.schedule().slot_bytes,
                             settled = late.schedule().settled_bytes;
  std::optional<Schedule> out;
  // All attempts are valid plans. Fetching early is faster, except that it may make other nodes
  // wait.
  const auto offer = [&](Walk& walk) {
    Schedule made = std::move(walk.schedule());
    made.timeline = check(unlimited_, made.plan);
    if (graph_.host_bytes && made.timeline.host_peak_bytes > *graph_.host_bytes) return;
    DOVETAIL_CHECK(made.timeline.peak_bytes <= budget_bytes,
                   "a schedule of {} bytes for a budget of {}", made.timeline.peak_bytes,
                   budget_bytes);
    made.expected_s = expected_s(graph_, made.plan, made.timeline);
    if (!out || made.expected_s < out->expected_s) out = std::move(made);
  };
  std::vector<std::pair<std::vector<int>, bool>> tried;
  const auto attempt = [&](const std::vector<int>& needed_at, const std::vector<int64_t>& bytes,
                           Order order, bool patient) {
    tried.emplace_back(times_of_fetches(decisions, needed_at, bytes, budget_bytes, order), patient);
    if (std::find(tried.begin(), tried.end() - 1, tried.back()) != tried.end() - 1) return;
    Walk walk(*this, decisions, tried.back().first, budget_bytes, patient);
    if (walk.run()) offer(walk);
  };
  attempt(at_end, held, Order::kLastFirst, /*patient=*/false);
  attempt(late.needed_at(), held, Order::kLastFirst, /*patient=*/false);
  if (fetches_wait_ && std::find(decisions.gaps.begin(), decisions.gaps.end(), Keep::kHost) !=
                           decisions.gaps.end()) {
    attempt(late.needed_at(), settled, Order::kLastFirst, /*patient=*/true);
    attempt(late.needed_at(), settled, Order::kFirstFirst, /*patient=*/true);
  }
  offer(late);
  return out;
}

}  // namespace dovetail::plan
