#include "dovetail/plan/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "dovetail/base/error.h"

namespace dovetail::plan {
namespace {

constexpr std::array<std::string_view, 5> kKeepNames = {"kept", "offloaded", "recomputed", "recomputed early",
                                                        "compressed"};

constexpr size_t kRuns = 16;  // of each node, on average, at most

bool contains(const std::vector<int>& list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

Graph without_budget(Graph graph) {
  graph.budget_bytes = std::numeric_limits<int64_t>::max() / 2;
  return graph;
}

/// Bytes held over time, as far as is known.
class Level {
 public:
  void add(double time_s, int64_t bytes) { changes_[tick(time_s)] += bytes; }

  /// The most from `start_s` on, with `bytes` more from then and `until_end` more before `end_s`.
  int64_t most(double start_s, double end_s, int64_t bytes, int64_t until_end) const {
    int64_t level = 0, most = 0;
    const int64_t start = tick(start_s), end = std::max(tick(end_s), start + 1);
    auto change = changes_.begin();
    for (; change != changes_.end() && change->first <= start; ++change) level += change->second;
    most = level + until_end;
    for (; change != changes_.end(); ++change) {
      level += change->second;
      most = std::max(most, level + (change->first < end ? until_end : 0));
    }
    return most + bytes;
  }

  /// Changes before `time_s` become one.
  void forget_before(double time_s) {
    const auto end = changes_.lower_bound(tick(time_s));
    int64_t sum = 0;
    for (auto change = changes_.begin(); change != end; ++change) sum += change->second;
    changes_.erase(changes_.begin(), end);
    if (sum != 0) changes_[std::numeric_limits<int64_t>::min()] += sum;
  }

 private:
  static int64_t tick(double time_s) { return std::llround(time_s * 1e12); }
  std::map<int64_t, int64_t> changes_;
};

}  // namespace

/// One pass over the nodes that issues actions and keeps the same clocks as `check`.
class Walk {
 public:
  /// `fetch_at`: of each gap the node before which its fetch is issued at the earliest; a fetch in advance that does
  /// not fit then waits for copies that leave, if it is `patient`, else until before the next node.
  Walk(const Scheduler& scheduler, const Decisions& decisions, const std::vector<int>& fetch_at, int64_t budget_bytes,
       bool patient = false)
      : s_(scheduler),
        graph_(scheduler.graph_),
        decisions_(decisions),
        fetch_at_(fetch_at),
        budget_(budget_bytes),
        patient_(patient),
        now_(graph_.tensors.size()),
        gap_of_(graph_.tensors.size(), -1),
        version_(graph_.tensors.size()) {
    for (const Gap& gap : s_.gaps_) needed_at_.push_back(gap.to);
    for (size_t g = 0; g < fetch_at.size(); ++g)
      if (decisions.gaps[g] == Keep::kHost) to_fetch_.emplace_back(fetch_at[g], static_cast<int>(g));
    std::sort(to_fetch_.begin(), to_fetch_.end());
    schedule_.slot_bytes.assign(graph_.nodes.size(), 0);
    schedule_.settled_bytes = schedule_.slot_bytes;
    charge(0, graph_.base_bytes);
    for (size_t t = 0; t < now_.size(); ++t)
      if (graph_.tensors[t].alias_of < 0 && resident_at_start(graph_.tensors[t].kind)) {
        const int wrapped = s_.wrapped_gap_[t];
        if (wrapped >= 0 && decisions_.gaps[wrapped] == Keep::kHost) {
          schedule_.plan.starts_on_host.push_back(static_cast<int>(t));
          now_[t].on_host = true;
          gap_of_[t] = wrapped;
          continue;
        }
        now_[t].resident = true;
        charge(0, bytes_of(static_cast<int>(t)));
      }
  }

  /// False with misfit() where it does not work out.
  bool run() {
    for (size_t t = 0; t < now_.size(); ++t)
      if (now_[t].resident) offload_if_it_leaves(static_cast<int>(t), -1);
    for (const int gap : s_.gaps_from_[0])
      if (!leave(gap)) return false;
    for (at_ = 0; at_ < static_cast<int>(graph_.nodes.size()); ++at_) {
      fetch_early();
      for (const int t : s_.reads_[at_])
        if (!bring(t, at_)) return false;
      for (const int t : graph_.nodes[at_].mutates) drop_copies(graph_.root(t));
      if (!compute(at_)) return false;
      for (const int t : graph_.nodes[at_].mutates) version_[graph_.root(t)] = at_ + 1;
      if (!leave_after_use()) return false;
      level_.forget_before(compute_free_s_);
    }
    return true;
  }

  Schedule& schedule() { return schedule_; }
  const Misfit& misfit() const { return misfit_; }
  /// Of each gap the first node for which its tensor had to be fetched: that at its end, or one before which something
  /// that is made from it ran again.
  const std::vector<int>& needed_at() const { return needed_at_; }

 private:
  struct Now {
    bool resident = false, on_host = false, packed = false;
    bool exact = true, host_exact = true, packed_exact = true;  // none of its bits went through a lossy codec
    bool coded = false, host_coded = false;                     // through any
    double ready_s = 0, last_s = 0;
    double host_ready_s = 0, host_last_s = 0, packed_ready_s = 0;
    int codec = -1;
    int offload = -1;  // the action, until its end is certain
  };

  int64_t bytes_of(int t) const { return graph_.tensors[t].bytes; }

  void charge(double time_s, int64_t bytes) {
    level_.add(time_s, bytes);
    held_ += bytes;
  }

  bool fail(int64_t bytes) {
    misfit_ = {at_, bytes};
    return false;
  }

  int issue(Action action, double end_s) {
    schedule_.plan.actions.push_back(std::move(action));
    ends_.push_back(end_s);
    return static_cast<int>(ends_.size()) - 1;
  }

  /// The start, delayed past copies to the host until the bytes fit; adds the waits. False: they never do.
  bool fit(double& start_s, double duration_s, int64_t bytes, int64_t until_end, std::vector<int>& waits) {
    while (true) {
      const int64_t most = level_.most(start_s, start_s + duration_s, bytes, until_end);
      if (most <= budget_) {
        if (at_ >= 0) {
          schedule_.slot_bytes[at_] = std::max(schedule_.slot_bytes[at_], most);
          schedule_.settled_bytes[at_] = std::max(schedule_.settled_bytes[at_], held_ + bytes + until_end);
        }
        return true;
      }
      int next = -1;
      for (const int copy : leaving_)
        if (ends_[copy] > start_s && (next < 0 || ends_[copy] < ends_[next])) next = copy;
      if (next < 0) return fail(most - budget_);
      start_s = ends_[next];
      waits.push_back(next);
    }
  }

  bool compute(int n) {
    if (++runs_ > kRuns * graph_.nodes.size()) return fail(0);
    const GraphNode& node = graph_.nodes[n];
    const int algorithm = decisions_.algorithms[n];
    const Algorithm& how = node.algorithms[algorithm];
    double start = compute_free_s_;
    for (const int t : s_.reads_[n]) start = std::max(start, now_[t].ready_s);
    int64_t bytes = 0;
    for (const int t : node.outputs)
      if (graph_.tensors[t].alias_of < 0) bytes += bytes_of(t);
    Action action{.op = Op::kCompute, .node = n, .algorithm = algorithm};
    if (!fit(start, how.time_s, bytes, how.workspace_bytes, action.waits)) return false;
    const bool lossy =
        n != at_ && std::any_of(s_.reads_[n].begin(), s_.reads_[n].end(), [&](int t) { return !now_[t].exact; });
    const double end = start + how.time_s;
    for (const int t : s_.reads_[n]) now_[t].last_s = std::max(now_[t].last_s, end);
    for (const int t : node.mutates) now_[graph_.root(t)].ready_s = end;
    for (const int t : node.outputs) {
      if (graph_.tensors[t].alias_of >= 0) continue;
      now_[t].resident = true;
      now_[t].exact = !lossy;
      now_[t].coded = false;
      now_[t].ready_s = now_[t].last_s = end;
      charge(start, bytes_of(t));
    }
    level_.add(start, how.workspace_bytes);
    level_.add(end, -how.workspace_bytes);
    compute_free_s_ = end;
    issue(std::move(action), end);
    return true;
  }

  double copy_start(double stream_free_s, double ready_s) const {
    double start = std::max({stream_free_s, compute_free_s_, ready_s});
    if (!graph_.bandwidth.duplex) start = std::max({start, to_host_free_s_, to_device_free_s_});
    return start;
  }

  void offload(int t) {
    Now& now = now_[t];
    const double start = copy_start(to_host_free_s_, now.ready_s);
    const double end = start + static_cast<double>(bytes_of(t)) / graph_.bandwidth.to_host;
    to_host_free_s_ = end;
    now.last_s = std::max(now.last_s, end);
    now.on_host = true;
    now.host_exact = now.exact;
    now.host_coded = now.coded;
    now.host_ready_s = now.host_last_s = end;
    now.offload = issue({.op = Op::kOffload, .tensor = t}, end);
  }

  /// False where it does not fit: fatal only if `must`.
  bool fetch(int t, bool must) {
    Now& now = now_[t];
    double start = copy_start(to_device_free_s_, now.host_ready_s);
    const double duration = static_cast<double>(bytes_of(t)) / graph_.bandwidth.to_device;
    Action action{.op = Op::kPrefetch, .tensor = t};
    if (!must && !patient_ && level_.most(start, start + duration, bytes_of(t), 0) > budget_) return false;
    if (!fit(start, duration, bytes_of(t), 0, action.waits)) return false;
    const double end = start + duration;
    to_device_free_s_ = end;
    charge(start, bytes_of(t));
    now.resident = true;
    now.exact = now.host_exact;
    now.coded = now.host_coded;
    now.ready_s = now.last_s = now.host_last_s = end;
    issue(std::move(action), end);
    return true;
  }

  void free(int t) {
    Now& now = now_[t];
    const double end = std::max(now.last_s, now.ready_s);
    charge(end, -bytes_of(t));
    now.resident = false;
    if (now.offload >= 0 && end <= ends_[now.offload]) leaving_.push_back(now.offload);
    now.offload = -1;
    issue({.op = Op::kFree, .tensor = t}, end);
  }

  bool compress(int t, int codec) {
    Now& now = now_[t];
    double start = std::max(compute_free_s_, now.ready_s);
    const double duration = static_cast<double>(bytes_of(t)) / graph_.codecs[codec].encode_bytes_per_s;
    Action action{.op = Op::kCompress, .tensor = t, .codec = codec};
    if (!fit(start, duration, graph_.packed_bytes(t, codec), 0, action.waits)) return false;
    charge(start, graph_.packed_bytes(t, codec));
    compute_free_s_ = now.packed_ready_s = start + duration;
    now.last_s = std::max(now.last_s, compute_free_s_);
    now.packed = true;
    now.packed_exact = now.exact;
    now.codec = codec;
    issue(std::move(action), compute_free_s_);
    return true;
  }

  bool decompress(int t) {
    Now& now = now_[t];
    double start = std::max(compute_free_s_, now.packed_ready_s);
    const double duration = static_cast<double>(bytes_of(t)) / graph_.codecs[now.codec].decode_bytes_per_s;
    Action action{.op = Op::kDecompress, .tensor = t};
    if (!fit(start, duration, bytes_of(t), 0, action.waits)) return false;
    charge(start, bytes_of(t));
    compute_free_s_ = now.ready_s = now.last_s = start + duration;
    now.resident = true;
    now.exact = now.packed_exact && graph_.codecs[now.codec].max_error == 0;
    now.coded = true;
    issue(std::move(action), compute_free_s_);
    charge(compute_free_s_, -graph_.packed_bytes(t, now.codec));
    now.packed = false;
    issue({.op = Op::kFreePacked, .tensor = t}, compute_free_s_);
    return true;
  }

  /// Make `t` resident for node `reader`, which reads it as it was before that node first ran.
  bool bring(int t, int reader) {
    Now& now = now_[t];
    const auto& writers = s_.writers_[t];
    const auto changed = std::lower_bound(writers.begin(), writers.end(), reader);
    const int wanted = changed == writers.begin() ? 0 : *std::prev(changed) + 1;
    if (version_[t] != wanted) return fail(0);
    gap_of_[t] = reader == at_ ? -1 : gap_of_[t];
    if (gap_of_[t] >= 0 && !now.resident && now.on_host) needed_at_[gap_of_[t]] = std::min(needed_at_[gap_of_[t]], at_);
    if (!now.resident && !(now.on_host ? fetch(t, true) : now.packed ? decompress(t) : make_again(t))) return false;
    const bool will_do =
        (now.exact || graph_.tensors[t].lossy_ok) && !(now.coded && graph_.nodes[reader].reads_unpacked);
    return will_do || fail(0);
  }

  bool make_again(int t) {
    const int p = s_.producer_[t];
    if (p < 0 || graph_.nodes[p].runs_once()) return fail(0);
    for (const int o : graph_.nodes[p].outputs)
      if (version_[graph_.root(o)] != 0) return fail(0);
    std::vector<int> brought;
    for (const int input : s_.reads_[p]) {
      if (!now_[input].resident) brought.push_back(input);
      if (!bring(input, p)) return false;
    }
    const auto& outputs = graph_.nodes[p].outputs;
    std::vector<int> extra;
    for (const int o : outputs) {
      if (graph_.tensors[o].alias_of >= 0) continue;
      if (now_[o].resident)
        free(o);
      else if (o != t && !stays_once_made(o))
        extra.push_back(o);
    }
    if (!compute(p)) return false;
    for (const int o : extra) free(o);
    for (const int input : brought)
      if (!stays_once_made(input)) free(input);
    return true;
  }

  /// Whether a tensor that was brought for another's sake stays.
  bool stays_once_made(int t) const {
    if (contains(s_.reads_[at_], t)) return true;
    return gap_of_[t] >= 0 && decisions_.gaps[gap_of_[t]] == Keep::kAgainEarly;
  }

  void fetch_early() {
    for (; fetched_ < to_fetch_.size() && to_fetch_[fetched_].first <= at_; ++fetched_) {
      const Gap& gap = s_.gaps_[to_fetch_[fetched_].second];
      waiting_.emplace(gap.to, gap.tensor);
    }
    waiting_.erase(waiting_.begin(), waiting_.lower_bound({at_, -1}));
    for (const auto& [to, t] : waiting_) {
      const int gap = gap_of_[t];
      if (gap < 0 || now_[t].resident || !now_[t].on_host || fetch_at_[gap] > at_ ||
          decisions_.gaps[gap] != Keep::kHost)
        continue;
      if (!fetch(t, false)) break;
    }
  }

  void drop_copies(int t) {
    Now& now = now_[t];
    if (now.on_host) issue({.op = Op::kFreeHost, .tensor = t}, now.host_last_s);
    now.on_host = false;
    if (now.offload >= 0 && ends_[now.offload] > compute_free_s_) {  // a write may not pass a copy
      compute_free_s_ = ends_[now.offload];
      schedule_.plan.actions.back().waits.push_back(now.offload);
      ends_.back() = compute_free_s_;
      now.ready_s = std::max(now.ready_s, compute_free_s_);
    }
    now.offload = -1;
  }

  /// Once a tensor has its value, the copy to the host can begin, if it will go there before it changes.
  void offload_if_it_leaves(int t, int made_by) {
    const auto next_write = std::upper_bound(s_.writers_[t].begin(), s_.writers_[t].end(), made_by);
    const int until = next_write == s_.writers_[t].end() ? std::numeric_limits<int>::max() : *next_write;
    for (const int g : s_.gaps_of_[t]) {
      const Gap& gap = s_.gaps_[g];
      if (gap.from < made_by || gap.from >= until || decisions_.gaps[g] != Keep::kHost) continue;
      if (!now_[t].on_host) offload(t);
      return;
    }
  }

  bool leave(int gap) {
    const int t = s_.gaps_[gap].tensor;
    if (!now_[t].resident) return true;
    switch (decisions_.gaps[gap]) {
      case Keep::kResident:
        return true;
      case Keep::kHost:
        if (!now_[t].on_host) offload(t);
        break;
      case Keep::kPacked:
        if (!compress(t, decisions_.codec[gap])) return false;
        break;
      case Keep::kAgain:
      case Keep::kAgainEarly:
        break;
    }
    free(t);
    gap_of_[t] = s_.gaps_[gap].wraps ? -1 : gap;  // nothing brings it back in this step
    return true;
  }

  bool leave_after_use() {
    for (const auto* list : {&graph_.nodes[at_].outputs, &graph_.nodes[at_].mutates})
      for (const int t : *list)
        if (graph_.tensors[t].alias_of < 0 || list == &graph_.nodes[at_].mutates)
          offload_if_it_leaves(graph_.root(t), at_);
    for (const int gap : s_.gaps_from_[at_ + 1])
      if (!leave(gap)) return false;
    const auto end_of = [&](int t) {
      if (s_.last_use_[t] != at_ || s_.stays_[t] || !now_[t].resident) return;
      free(t);
      if (now_[t].on_host) issue({.op = Op::kFreeHost, .tensor = t}, now_[t].host_last_s);
      now_[t].on_host = false;
    };
    for (const int t : s_.reads_[at_]) end_of(t);
    for (const int t : graph_.nodes[at_].outputs)
      if (graph_.tensors[t].alias_of < 0) end_of(t);
    return true;
  }

  const Scheduler& s_;
  const Graph& graph_;
  const Decisions& decisions_;
  const std::vector<int>& fetch_at_;
  std::vector<std::pair<int, int>> to_fetch_;  // node from which on, and gap
  size_t fetched_ = 0;                         // of these: waiting_ has been told
  size_t runs_ = 0;
  const int64_t budget_;
  const bool patient_;
  std::vector<Now> now_;
  std::vector<int> gap_of_;                // of each tensor: the gap that it is in, away from the device
  std::vector<int> version_;               // of each tensor: 1 + the node that wrote it last, 0: none
  std::set<std::pair<int, int>> waiting_;  // to be fetched from now on: the end of the gap, and the tensor
  std::vector<int> leaving_;               // offloads whose tensors are freed when they end
  std::vector<int> needed_at_;
  std::vector<double> ends_;
  double compute_free_s_ = 0, to_host_free_s_ = 0, to_device_free_s_ = 0;
  Level level_;
  int64_t held_ = 0;  // when all that leaves has left
  Schedule schedule_;
  Misfit misfit_;
  int at_ = -1;
};

std::string_view name(Keep keep) { return kKeepNames[static_cast<size_t>(keep)]; }

std::vector<Gap> find_gaps(const Graph& graph) {
  std::vector<Gap> gaps;
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const GraphTensor& tensor = graph.tensors[t];
    if (tensor.alias_of >= 0 || tensor.bytes == 0) continue;
    int first = -1, last = -1;
    bool there = resident_at_start(tensor.kind) && tensor.kind != TensorKind::kInput;
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      const GraphNode& node = graph.nodes[n];
      bool used = false;
      for (const auto* list : {&node.inputs, &node.outputs, &node.mutates})
        for (const int other : *list) used = used || graph.root(other) == static_cast<int>(t);
      if (!used) continue;
      if (there && static_cast<int>(n) > last + 1) gaps.push_back({static_cast<int>(t), last, static_cast<int>(n)});
      last = static_cast<int>(n);
      if (first < 0) first = last;
      there = true;
    }
    if (may_start_on_host(tensor.kind) && last >= 0 && (first > 0 || last + 1 < static_cast<int>(graph.nodes.size())))
      gaps.push_back({static_cast<int>(t), last, first, /*wraps=*/true});
  }
  std::stable_sort(gaps.begin(), gaps.end(), [](const Gap& a, const Gap& b) { return a.from < b.from; });
  return gaps;
}

bool may_be_packed(const Graph& graph, const Gap& gap, int codec) {
  return !resident_at_start(graph.tensors[gap.tensor].kind) && !graph.nodes[gap.to].reads_unpacked &&
         graph.may_be_packed(gap.tensor, codec);
}

Scheduler::Scheduler(const Graph& graph)
    : graph_(graph),
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
  for (size_t t = 0; t < graph.tensors.size(); ++t) stays_[t] = resident_at_start(graph.tensors[t].kind);
  for (const int t : graph.final) stays_[graph.root(t)] = true;
}

bool Scheduler::can_be_made_again(int gap) const {
  const int p = producer_[gaps_[gap].tensor];
  if (p < 0 || graph_.nodes[p].runs_once() || !writers_[gaps_[gap].tensor].empty()) return false;
  // Nor may it undo what has been written to its other outputs by then.
  return std::none_of(graph_.nodes[p].outputs.begin(), graph_.nodes[p].outputs.end(), [&](int o) {
    const auto& writers = writers_[graph_.root(o)];
    return !writers.empty() && writers.front() < gaps_[gap].to;
  });
}

bool Scheduler::is_moot(const Decisions& decisions, int gap) const {
  const int wrapped = wrapped_gap_[gaps_[gap].tensor];
  return gaps_[gap].from < 0 && wrapped >= 0 && wrapped != gap && decisions.gaps[wrapped] == Keep::kHost;
}

/// Of each gap the node before which its fetch is issued, no earlier than memory allows; `held`: bytes at each node. By
/// Order::kLastFirst each as late as lets it end before its reader and before the fetch after it, the last one first;
/// by kFirstFirst each as early as can be, the first one first.
std::vector<int> Scheduler::times_of_fetches(const Decisions& decisions, const std::vector<int>& needed_at,
                                             std::vector<int64_t> held, int64_t budget_bytes, Order order) const {
  std::vector<int> out(gaps_.size()), away;
  for (size_t g = 0; g < gaps_.size(); ++g) {
    out[g] = gaps_[g].to;
    if (decisions.gaps[g] == Keep::kHost && !is_moot(decisions, static_cast<int>(g)))
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
      if (held[n] + bytes > budget_bytes) at = gap.to;  // it cannot stay from there on
    for (int n = at; n < gap.to; ++n) held[n] += bytes;
    next_s = std::min(next_s, start_s[at]) - static_cast<double>(bytes) / graph_.bandwidth.to_device;
    const int first = gap.wraps ? 0 : gap.from + 1;
    while (at > first && (!last_first || start_s[at] > next_s) && held[at - 1] + bytes <= budget_bytes)
      held[--at] += bytes;
    out[g] = at;
  }
  return out;
}

double expected_s(const Graph& graph, const Plan& plan, const Timeline& timeline) {
  double copying_s = 0;
  for (size_t a = 0; a < plan.actions.size(); ++a)
    if (plan.actions[a].op == Op::kOffload || plan.actions[a].op == Op::kPrefetch)
      copying_s += timeline.actions[a].end_s - timeline.actions[a].start_s;
  return timeline.makespan_s + graph.bandwidth.slowdown * copying_s;
}

std::optional<Schedule> Scheduler::schedule(const Decisions& decisions, int64_t budget_bytes, Misfit* misfit) const {
  std::vector<int> at_end(gaps_.size());
  for (size_t g = 0; g < gaps_.size(); ++g) at_end[g] = gaps_[g].to;
  Walk late(*this, decisions, at_end, budget_bytes);
  if (!late.run()) {
    if (misfit != nullptr) *misfit = late.misfit();
    return std::nullopt;
  }
  const std::vector<int64_t> held = late.schedule().slot_bytes, settled = late.schedule().settled_bytes;
  std::optional<Schedule> out;
  // All are plans; fetching early is the faster one but for what it may make others wait.
  const auto offer = [&](Walk& walk) {
    Schedule made = std::move(walk.schedule());
    made.timeline = check(unlimited_, made.plan);
    DOVETAIL_CHECK(made.timeline.peak_bytes <= budget_bytes, "a schedule of {} bytes for a budget of {}",
                   made.timeline.peak_bytes, budget_bytes);
    made.expected_s = expected_s(graph_, made.plan, made.timeline);
    if (!out || made.expected_s < out->expected_s) out = std::move(made);
  };
  std::vector<std::pair<std::vector<int>, bool>> tried;
  const auto attempt = [&](const std::vector<int>& needed_at, const std::vector<int64_t>& bytes, Order order,
                           bool patient) {
    tried.emplace_back(times_of_fetches(decisions, needed_at, bytes, budget_bytes, order), patient);
    if (std::find(tried.begin(), tried.end() - 1, tried.back()) != tried.end() - 1) return;
    Walk walk(*this, decisions, tried.back().first, budget_bytes, patient);
    if (walk.run()) offer(walk);
  };
  attempt(at_end, held, Order::kLastFirst, /*patient=*/false);
  attempt(late.needed_at(), held, Order::kLastFirst, /*patient=*/false);
  if (std::find(decisions.gaps.begin(), decisions.gaps.end(), Keep::kHost) != decisions.gaps.end()) {
    attempt(late.needed_at(), settled, Order::kLastFirst, /*patient=*/true);
    attempt(late.needed_at(), settled, Order::kFirstFirst, /*patient=*/true);
  }
  offer(late);
  return out;
}

}  // namespace dovetail::plan
