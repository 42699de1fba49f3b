#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "tests/plan/plan_actions.h"

namespace dovetail::plan {

/// Searches exhaustively for the fastest plan of a small step. It shares no code with the
/// scheduler, the search and the executor. It follows the rules in plan/model/check.h.
/// docs/design/plan.md ("What a plan may decide") defines a plan:
///   - Parameters and state start on the device or on the host, in any combination.
///   - Nodes run for the first time in the recorded order, each by any algorithm. A recomputation
///     uses the same algorithm. An algorithm that reads tensors on the host requires that these
///     start and end the step there.
///   - A storage that is offloaded is copied as soon as it has its value.
///   - Right after a use a storage stays, is freed or is packed by any codec. Freeing requires a
///     host copy or that the storage can be recomputed.
///   - A fetch may run before any node up to the next reader, in any order with others. Storages
///     are unpacked or recomputed when a node that runs then reads them. Tensors that only this
///     needs stay or leave at once.
///   - Inputs do not leave after their last use. Neither do tensors that begin and end the step on
///     the device.
///   - An action begins as soon as its streams, its data and the memory allow.
class EveryPlan : private PlanActions {
 public:
  /// Searches for plans faster than `below_s`. The search ends after `most_states` states;
  /// complete() returns whether it finished.
  EveryPlan(const Graph& graph, double below_s, int64_t most_states)
      : PlanActions(graph),
        best_s_(below_s),
        left_(most_states),
        ends_on_device_(graph.tensors.size()) {
    for (const int t : graph.final) ends_on_device_[t] = true;
    std::vector<int> may;
    for (int t = 0; t < tensors(); ++t) {
      if (graph.tensors[t].kind == TensorKind::kInput) ends_on_device_[t] = true;
      if (may_start_on_host(graph.tensors[t].kind)) may.push_back(t);
    }
    for (unsigned chosen = 0; chosen < (1U << may.size()); ++chosen) {
      starts_on_host_.assign(graph.tensors.size(), false);
      for (size_t i = 0; i < may.size(); ++i) starts_on_host_[may[i]] = ((chosen >> i) & 1U) != 0;
      go(first_state());
    }
  }

  bool complete() const { return left_ > 0; }
  double best_s() const { return best_s_; }
  /// Returns the fastest plan found, or nullopt if there is none below `below_s`.
  const std::optional<Plan>& best() const { return best_; }

 private:
  State first_state() const {
    State s{.storages = std::vector<Storage>(graph_.tensors.size()),
            .algorithms = std::vector(graph_.nodes.size(), -1)};
    s.memory.emplace_back(0, graph_.base_bytes);
    s.tasks = {{Task::kFetches}};
    std::vector<Task> offloads;
    for (int t = tensors() - 1; t >= 0; --t) {
      if (!resident_at_start(graph_.tensors[t].kind)) continue;
      (starts_on_host_[t] ? s.storages[t].host : s.storages[t].device).there = true;
      if (starts_on_host_[t]) continue;
      s.memory.emplace_back(0, bytes(t));
      offloads.push_back({Task::kOffload, t});
      if (may_start_on_host(graph_.tensors[t].kind)) s.tasks.push_back({Task::kAfterUse, t});
    }
    s.tasks.insert(s.tasks.end(), offloads.begin(), offloads.end());
    return s;
  }

  /// Returns the first node from `from` on that reads this version of a storage or writes the next
  /// one, or -1.
  int next_reader(int t, int version, int from) const {
    for (int n = from; n < nodes(); ++n)
      if (std::find(reads_[n].begin(), reads_[n].end(), std::pair(t, version)) != reads_[n].end())
        return n;
    return -1;
  }
  bool may_run_again(const State& s, int n) const {
    const GraphNode& node = graph_.nodes[n];
    if (node.runs_once() || s.algorithms[n] < 0) return false;
    return std::all_of(node.outputs.begin(), node.outputs.end(),
                       [&](int o) { return next_writer(o) < 0 || next_writer(o) >= s.next; });
  }
  int next_writer(int t) const {
    for (int n = 0; n < nodes(); ++n)
      if (std::find(graph_.nodes[n].mutates.begin(), graph_.nodes[n].mutates.end(), t) !=
          graph_.nodes[n].mutates.end())
        return n;
    return -1;
  }

  void go(State s) {
    while (true) {
      if (soonest_s(s) >= best_s_ - kTiny || --left_ <= 0) return;
      if (s.tasks.empty()) return end(s);
      const Task task = s.tasks.back();
      s.tasks.pop_back();
      switch (task.what) {
        case Task::kFetches:
          for (int t = 0; t < tensors(); ++t) try_to_fetch(s, t);
          start_node(s);
          break;
        case Task::kBring:
          if (!bring(s, task)) return;
          break;
        case Task::kRun:
          if (!run(s, task)) return;
          break;
        case Task::kAside:
          stay_or_leave_again(s, task.of);
          break;
        case Task::kOffload:
          if (!offload_or_not(s, task.of)) return;
          break;
        case Task::kAfterUse:
          if (!after_use(s, task.of)) return;
          break;
        case Task::kNext:
          if (s.next == nodes()) break;
          forget_before(s);
          s.tasks.push_back({Task::kFetches});
          break;
      }
    }
  }

  static void forget_before(State& s) {
    int64_t level = 0;
    std::erase_if(s.memory, [&](const auto& change) {
      if (change.first > s.compute_s) return false;
      level += change.second;
      return true;
    });
    s.memory.emplace_back(s.compute_s, level);
  }

  void try_to_fetch(const State& s, int t) {
    const Storage& storage = s.storages[t];
    if (storage.device.there || !storage.host.there ||
        next_reader(t, storage.host.version, s.next) < 0)
      return;
    State now = s;
    if (!fetch(now, t)) return;
    now.tasks.push_back({Task::kFetches});
    go(std::move(now));
  }

  void start_node(State& s) {
    const auto& algorithms = graph_.nodes[s.next].algorithms;
    for (int a = 0; a < static_cast<int>(algorithms.size()); ++a) {
      const std::vector<int>& on_host = algorithms[a].on_host;
      if (on_host.empty() ||
          !std::all_of(on_host.begin(), on_host.end(), [&](int t) { return starts_on_host_[t]; }))
        continue;
      State there = s;
      start_node(there, a);
      go(std::move(there));
    }
    start_node(s, -1);
  }
  void start_node(State& s, int algorithm) const {
    s.tasks.push_back({Task::kRun, s.next, -1, algorithm});
    for (auto read = reads_[s.next].rbegin(); read != reads_[s.next].rend(); ++read)
      if (algorithm < 0 || !graph_.nodes[s.next].algorithms[algorithm].finds_on_host(read->first))
        s.tasks.push_back({Task::kBring, read->first, s.next});
  }

  bool bring(State& s, const Task& task) {
    Storage& storage = s.storages[task.of];
    if (storage.device.there) return true;
    if (storage.host.there && !fetch(s, task.of)) return false;
    if (!storage.device.there && storage.packed.there && !unpack(s, task.of)) return false;
    if (storage.device.there) {
      if (task.reader != s.next)
        s.tasks.insert(s.tasks.begin() + aside_place(s, task), {Task::kAside, task.of});
      return true;
    }
    const int p = producer_[task.of];
    if (p < 0 || !may_run_again(s, p)) return false;
    if (task.reader != s.next)
      s.tasks.insert(s.tasks.begin() + aside_place(s, task), {Task::kAside, task.of});
    s.tasks.push_back({Task::kRun, p});
    for (auto read = reads_[p].rbegin(); read != reads_[p].rend(); ++read)
      s.tasks.push_back({Task::kBring, read->first, p});
    return true;
  }
  /// Returns the task position directly after the run that the storage is brought for.
  static int64_t aside_place(const State& s, const Task& task) {
    int64_t at = static_cast<int64_t>(s.tasks.size()) - 1;
    while (s.tasks[at].what != Task::kRun || s.tasks[at].of != task.reader) --at;
    return at;
  }

  bool run(State& s, const Task& task) {
    const int n = task.of;
    const GraphNode& node = graph_.nodes[n];
    if (n < s.next) {
      std::vector<int> others;  // outputs recomputed in addition to the wanted one
      for (const int t : node.outputs)
        if (!s.storages[t].device.there) others.push_back(t);
      if (!compute(s, n, s.algorithms[n])) return false;
      for (const int t : others) s.tasks.push_back({Task::kAside, t});
      return true;
    }
    if (task.algorithm >= 0) {
      if (!compute(s, n, task.algorithm)) return false;
      ran(s);
      return true;
    }
    for (int a = 1; a < static_cast<int>(node.algorithms.size()); ++a) {
      if (!node.algorithms[a].on_host.empty()) continue;
      State other = s;
      if (compute(other, n, a)) ran(other), go(std::move(other));
    }
    if (!compute(s, n, 0)) return false;
    ran(s);
    return true;
  }
  void ran(State& s) const {
    const GraphNode& node = graph_.nodes[s.next];
    std::vector<Task> then;
    for (const auto* list : {&node.outputs, &node.mutates})
      for (const int t : *list) then.push_back({Task::kOffload, t});
    for (const auto& [t, version] : reads_[s.next]) then.push_back({Task::kAfterUse, t});
    for (const int t : node.outputs) then.push_back({Task::kAfterUse, t});
    then.push_back({Task::kNext});
    s.tasks.assign(then.rbegin(), then.rend());
    ++s.next;
  }

  /// Keeps or frees a storage that was brought for a recomputation and that the next node does not
  /// read.
  void stay_or_leave_again(State& s, int t) {
    const Storage& storage = s.storages[t];
    if (!storage.device.there || next_reader(t, storage.device.version, s.next) == s.next) return;
    if (next_reader(t, storage.device.version, s.next) >= 0 &&
        !resident_at_start(graph_.tensors[t].kind)) {
      State stays = s;
      go(std::move(stays));
    }
    if (storage.host.there || may_run_again(s, std::max(producer_[t], 0))) free(s, t);
  }

  bool offload_or_not(State& s, int t) {
    const Copy& copy = s.storages[t].device;
    const bool must = starts_on_host_[t] && copy.version == last_version_[t] && copy.version > 0;
    if (s.storages[t].host.there) return true;
    if (must) {
      offload(s, t);
    } else if (next_reader(t, copy.version, s.next + 1) >= 0) {
      State away = s;
      offload(away, t);
      go(std::move(away));
    }
    return true;
  }

  bool after_use(State& s, int t) {
    const Storage& storage = s.storages[t];
    if (!storage.device.there) return true;
    const int reader = next_reader(t, storage.device.version, s.next);
    if (reader < 0) {
      if (starts_on_host_[t] ||
          !(ends_on_device_[t] || resident_at_start(graph_.tensors[t].kind))) {
        free(s, t);
        if (s.storages[t].host.there && !starts_on_host_[t]) free_host(s, t);
      }
      return true;
    }
    if (reader == s.next) return true;
    for (int c = 0; c < static_cast<int>(graph_.codecs.size()); ++c) {
      if (resident_at_start(graph_.tensors[t].kind) || !graph_.may_be_packed(t, c)) continue;
      if (graph_.codecs[c].max_error > 0 && !graph_.tensors[t].lossy_ok) continue;
      State packed = s;
      if (pack(packed, t, c)) go(std::move(packed));
    }
    const bool again = producer_[t] >= 0 && may_run_again(s, producer_[t]) && next_writer(t) < 0;
    if (storage.host.there || again) {
      State away = s;
      free(away, t);
      go(std::move(away));
    }
    return true;
  }

  /// Returns a lower bound of the end of all plans that continue from here. Each remaining node
  /// runs once, after fetches of what only the host has. Storages that started on the host are
  /// copied back if they have changed.
  double soonest_s(const State& s) const {
    double at_s = s.compute_s, fetched_s = std::max(s.to_device_s, s.compute_s);
    double end_s = std::max(s.to_host_s, s.to_device_s);
    std::vector<bool> brought(graph_.tensors.size());
    for (int n = s.next; n < nodes(); ++n) {
      for (const auto& [t, version] : reads_[n]) {
        if (brought[t] || s.storages[t].device.there || !s.storages[t].host.there ||
            producer_[t] >= 0)
          continue;
        if (may_be_found_on_host(n, t)) continue;
        brought[t] = true;
        fetched_s += seconds(t, graph_.bandwidth.to_device);
        at_s = std::max(at_s, fetched_s);
      }
      at_s += least_s_[n];
      for (const int t : graph_.nodes[n].mutates)
        if (starts_on_host_[t] && !may_be_found_on_host(n, t))
          end_s = std::max(end_s, at_s + seconds(t, graph_.bandwidth.to_host));
    }
    return std::max(at_s, end_s);
  }

  bool may_be_found_on_host(int n, int t) const {
    const auto& algorithms = graph_.nodes[n].algorithms;
    return std::any_of(algorithms.begin(), algorithms.end(),
                       [&](const Algorithm& a) { return a.finds_on_host(t); });
  }

  void end(const State& s) {
    Plan plan{.actions = s.actions};
    for (int t = 0; t < tensors(); ++t)
      if (starts_on_host_[t]) plan.starts_on_host.push_back(t);
    if (graph_.host_bytes && host_peak(s, plan) > *graph_.host_bytes) return;
    best_s_ = std::max({s.compute_s, s.to_host_s, s.to_device_s});
    best_ = std::move(plan);
  }

  /// Maximum bytes on the host. A copy takes them from its start until it is freed.
  int64_t host_peak(const State& s, const Plan& plan) const {
    std::vector<std::pair<double, int64_t>> changes;
    for (const int t : plan.starts_on_host) changes.emplace_back(0, bytes(t));
    for (size_t a = 0; a < plan.actions.size(); ++a) {
      const int t = plan.actions[a].tensor;
      if (plan.actions[a].op == Op::kOffload)
        changes.emplace_back(s.ends_s[a] - seconds(t, graph_.bandwidth.to_host), bytes(t));
      if (plan.actions[a].op == Op::kFreeHost) changes.emplace_back(s.ends_s[a] - kTiny, -bytes(t));
    }
    std::sort(changes.begin(), changes.end());
    int64_t now = 0, peak = 0;
    for (const auto& [at_s, change] : changes) peak = std::max(peak, now += change);
    return peak;
  }

  double best_s_;
  int64_t left_;
  std::vector<bool> ends_on_device_, starts_on_host_;
  std::optional<Plan> best_;
};

}  // namespace dovetail::plan
