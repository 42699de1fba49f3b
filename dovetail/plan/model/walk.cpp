#include "dovetail/plan/model/walk.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace dovetail::plan {
namespace {

constexpr size_t kRuns = 16;  // maximum average runs per node

int64_t tick(double time_s) { return std::llround(time_s * 1e12); }

}  // namespace

void Level::add(double time_s, int64_t bytes) { changes_[tick(time_s)] += bytes; }

int64_t Level::most(double start_s, double end_s, int64_t bytes, int64_t until_end) const {
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

void Level::forget_before(double time_s) {
  const auto end = changes_.lower_bound(tick(time_s));
  int64_t sum = 0;
  for (auto change = changes_.begin(); change != end; ++change) sum += change->second;
  changes_.erase(changes_.begin(), end);
  if (sum != 0) changes_[std::numeric_limits<int64_t>::min()] += sum;
}

Walk::Walk(const Scheduler& scheduler, const Decisions& decisions, const std::vector<int>& fetch_at,
           int64_t budget_bytes, bool patient)
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
    if (decisions.gaps[g] == Keep::kHost && !s_.is_read_on_host(decisions, static_cast<int>(g)))
      to_fetch_.emplace_back(fetch_at[g], static_cast<int>(g));
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

bool Walk::run() {
  for (size_t t = 0; t < now_.size(); ++t)
    if (now_[t].resident) offload_if_it_leaves(static_cast<int>(t), -1);
  for (const int gap : s_.gaps_from_[0])
    if (!leave(gap)) return false;
  for (at_ = 0; at_ < static_cast<int>(graph_.nodes.size()); ++at_) {
    fetch_early();
    for (const int t : s_.reads_[at_])
      if (!(is_on_host(at_, t) ? find_on_host(t) : bring(t, at_))) return false;
    for (const int t : graph_.nodes[at_].mutates)
      if (!is_on_host(at_, graph_.root(t))) drop_copies(graph_.root(t));
    if (!compute(at_)) return false;
    for (const int t : graph_.nodes[at_].mutates) version_[graph_.root(t)] = at_ + 1;
    if (!leave_after_use()) return false;
  }
  return true;
}

void Walk::charge(double time_s, int64_t bytes) {
  level_.add(time_s, bytes);
  held_ += bytes;
}

bool Walk::fail(int64_t bytes) {
  misfit_ = {at_, bytes};
  return false;
}

int Walk::issue(Action action, double end_s) {
  schedule_.plan.actions.push_back(std::move(action));
  ends_.push_back(end_s);
  return static_cast<int>(ends_.size()) - 1;
}

bool Walk::fit(double& start_s, double duration_s, int64_t bytes, int64_t until_end,
               std::vector<int>& waits) {
  while (true) {
    const int64_t most = level_.most(start_s, start_s + duration_s, bytes, until_end);
    if (most <= budget_) {
      if (at_ >= 0) {
        schedule_.slot_bytes[at_] = std::max(schedule_.slot_bytes[at_], most);
        schedule_.settled_bytes[at_] =
            std::max(schedule_.settled_bytes[at_], held_ + bytes + until_end);
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

bool Walk::compute(int n) {
  if (++runs_ > kRuns * graph_.nodes.size()) return fail(0);
  const GraphNode& node = graph_.nodes[n];
  const int algorithm = decisions_.algorithms[n];
  const Algorithm& how = node.algorithms[algorithm];
  double start = compute_free_s_;
  for (const int t : s_.reads_[n])
    start = std::max(start, is_on_host(n, t) ? std::max(now_[t].host_ready_s, now_[t].host_last_s)
                                             : now_[t].ready_s);
  int64_t bytes = 0;
  for (const int t : node.outputs)
    if (graph_.tensors[t].alias_of < 0) bytes += bytes_of(t);
  Action action{.op = Op::kCompute, .node = n, .algorithm = algorithm};
  if (!fit(start, how.time_s, bytes, how.workspace_bytes, action.waits)) return false;
  const bool lossy = n != at_ && std::any_of(s_.reads_[n].begin(), s_.reads_[n].end(),
                                             [&](int t) { return !now_[t].exact; });
  const double end = start + how.time_s;
  for (const int t : s_.reads_[n]) {
    Now& now = now_[t];
    if (is_on_host(n, t))
      now.host_ready_s = now.host_last_s = end;
    else
      now.last_s = std::max(now.last_s, end);
  }
  for (const int t : node.mutates)
    if (!is_on_host(n, graph_.root(t))) now_[graph_.root(t)].ready_s = end;
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
  // Nothing starts before this time. A node may need thousands of recomputations, and each looks at
  // all changes.
  level_.forget_before(compute_free_s_);
  issue(std::move(action), end);
  return true;
}

double Walk::copy_start(double stream_free_s, double ready_s) const {
  double start = std::max({stream_free_s, compute_free_s_, ready_s});
  if (!graph_.bandwidth.duplex) start = std::max({start, to_host_free_s_, to_device_free_s_});
  return start;
}

void Walk::offload(int t) {
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

bool Walk::fetch(int t, bool must) {
  Now& now = now_[t];
  double start = copy_start(to_device_free_s_, now.host_ready_s);
  const double duration = static_cast<double>(bytes_of(t)) / graph_.bandwidth.to_device;
  Action action{.op = Op::kPrefetch, .tensor = t};
  if (!must && !patient_ && level_.most(start, start + duration, bytes_of(t), 0) > budget_)
    return false;
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

void Walk::free(int t) {
  Now& now = now_[t];
  const double end = std::max(now.last_s, now.ready_s);
  charge(end, -bytes_of(t));
  now.resident = false;
  if (now.offload >= 0 && end <= ends_[now.offload]) leaving_.push_back(now.offload);
  now.offload = -1;
  issue({.op = Op::kFree, .tensor = t}, end);
}

bool Walk::compress(int t, int codec) {
  Now& now = now_[t];
  double start = std::max(compute_free_s_, now.ready_s);
  const double duration =
      static_cast<double>(bytes_of(t)) / graph_.codecs[codec].encode_bytes_per_s;
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

bool Walk::decompress(int t) {
  Now& now = now_[t];
  double start = std::max(compute_free_s_, now.packed_ready_s);
  const double duration =
      static_cast<double>(bytes_of(t)) / graph_.codecs[now.codec].decode_bytes_per_s;
  Action action{.op = Op::kDecompress, .tensor = t};
  if (!fit(start, duration, bytes_of(t), 0, action.waits)) return false;
  charge(start, bytes_of(t));
  compute_free_s_ = now.ready_s = now.last_s = start + duration;
  now.resident = true;
  now.exact = now.packed_exact && graph_.codecs[now.codec].max_error == 0;
  now.coded = true;
  issue(std::move(action), compute_free_s_);
  free_packed(t);
  return true;
}

void Walk::free_packed(int t) {
  Now& now = now_[t];
  const double end = std::max(compute_free_s_, now.packed_ready_s);
  charge(end, -graph_.packed_bytes(t, now.codec));
  now.packed = false;
  issue({.op = Op::kFreePacked, .tensor = t}, end);
}

bool Walk::is_on_host(int node, int t) const {
  return graph_.nodes[node].algorithms[decisions_.algorithms[node]].finds_on_host(t);
}

/// Checks that the tensor is on the host, where it must start and end the step.
bool Walk::find_on_host(int t) {
  const Now& now = now_[t];
  const int wrapped = s_.wrapped_gap_[t];
  gap_of_[t] = -1;
  return (now.on_host && !now.resident && now.host_exact && wrapped >= 0 &&
          decisions_.gaps[wrapped] == Keep::kHost) ||
         fail(0);
}

bool Walk::bring(int t, int reader) {
  Now& now = now_[t];
  const auto& writers = s_.writers_[t];
  const auto changed = std::lower_bound(writers.begin(), writers.end(), reader);
  const int wanted = changed == writers.begin() ? 0 : *std::prev(changed) + 1;
  if (version_[t] != wanted) return fail(0);
  gap_of_[t] = reader == at_ ? -1 : gap_of_[t];
  if (gap_of_[t] >= 0 && !now.resident && now.on_host)
    needed_at_[gap_of_[t]] = std::min(needed_at_[gap_of_[t]], at_);
  if (!now.resident && !(now.packed    ? decompress(t)
                         : now.on_host ? fetch(t, true)
                                       : recompute_tensor(t)))
    return false;
  if (now.packed && reader == at_) free_packed(t);  // was recomputed for another tensor meanwhile
  const bool will_do = (now.exact || graph_.tensors[t].lossy_ok) &&
                       !(now.coded && graph_.nodes[reader].reads_unpacked);
  return will_do || fail(0);
}

bool Walk::recompute_tensor(int t) {
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

bool Walk::stays_once_made(int t) const {
  const std::vector<int>& reads = s_.reads_[at_];
  if (std::find(reads.begin(), reads.end(), t) != reads.end()) return true;
  return gap_of_[t] >= 0 && decisions_.gaps[gap_of_[t]] == Keep::kAgainEarly;
}

void Walk::fetch_early() {
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

void Walk::drop_copies(int t) {
  Now& now = now_[t];
  if (now.on_host) issue({.op = Op::kFreeHost, .tensor = t}, now.host_last_s);
  now.on_host = false;
  if (now.offload >= 0 &&
      ends_[now.offload] > compute_free_s_) {  // a write must not overtake a copy
    compute_free_s_ = ends_[now.offload];
    schedule_.plan.actions.back().waits.push_back(now.offload);
    ends_.back() = compute_free_s_;
    now.ready_s = std::max(now.ready_s, compute_free_s_);
  }
  now.offload = -1;
}

void Walk::offload_if_it_leaves(int t, int made_by) {
  const auto next_write = std::upper_bound(s_.writers_[t].begin(), s_.writers_[t].end(), made_by);
  const int until =
      next_write == s_.writers_[t].end() ? std::numeric_limits<int>::max() : *next_write;
  for (const int g : s_.gaps_of_[t]) {
    const Gap& gap = s_.gaps_[g];
    if (gap.from < made_by || gap.from >= until || decisions_.gaps[g] != Keep::kHost) continue;
    if (!now_[t].on_host) offload(t);
    return;
  }
}

bool Walk::leave(int gap) {
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
  gap_of_[t] = s_.gaps_[gap].wraps ? -1 : gap;  // a wrapping gap does not end in this step
  return true;
}

bool Walk::leave_after_use() {
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

}  // namespace dovetail::plan
