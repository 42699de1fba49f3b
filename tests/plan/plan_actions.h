#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "dovetail/plan/model/actions.h"
#include "dovetail/plan/model/graph.h"

namespace dovetail::plan {

/// Builds a plan action by action; EveryPlan searches with it. Each action starts as soon as its
/// streams, its data and the memory allow. It follows the rules in plan/model/check.h and shares no
/// code with the scheduler.
class PlanActions {
 protected:
  static constexpr double kTiny = 1e-9;  // seconds

  struct Copy {
    bool there = false, exact = true, coded = false;
    int version = 0, codec = -1;
    double ready_s = 0, last_s = 0;
  };
  struct Storage {
    Copy device, host, packed;
    double copied_s = 0;  // end of the last copy to the host
  };
  /// Task to do next.
  struct Task {
    enum What { kFetches, kBring, kRun, kAside, kOffload, kAfterUse, kNext } what;
    int of = -1;         // index of a storage or a node
    int reader = -1;     // node that needs it
    int algorithm = -1;  // algorithm of a run that reads tensors on the host
  };
  struct State {
    std::vector<Storage> storages;
    std::vector<int> algorithms;  // algorithm of each node that has run, else -1
    std::vector<std::pair<double, int64_t>> memory;
    std::vector<Task> tasks;
    std::vector<Action> actions;
    std::vector<double> ends_s;
    double compute_s = 0, to_host_s = 0, to_device_s = 0;
    int next = 0;  // first node that has not run
  };

  explicit PlanActions(const Graph& graph)
      : graph_(graph), producer_(graph.tensors.size(), -1), last_version_(graph.tensors.size()) {
    for (size_t n = 0; n < graph.nodes.size(); ++n) add_node(static_cast<int>(n));
  }

  int tensors() const { return static_cast<int>(graph_.tensors.size()); }
  int nodes() const { return static_cast<int>(graph_.nodes.size()); }
  int64_t bytes(int t) const { return graph_.tensors[t].bytes; }
  double seconds(int t, double rate) const { return static_cast<double>(bytes(t)) / rate; }

  /// Returns the earliest time from `start_s` on at which `bytes` fit for `takes_s` seconds and
  /// `until_end` bytes until the end. Returns nullopt if they never fit.
  std::optional<double> fit(const State& s, double start_s, double takes_s, int64_t bytes,
                            int64_t until_end) const {
    std::vector<double> starts = {start_s};
    for (const auto& [at_s, change] : s.memory)
      if (at_s > start_s && change < 0) starts.push_back(at_s);
    std::sort(starts.begin(), starts.end());
    const auto level_at = [&](double at_s) {
      int64_t level = 0;
      for (const auto& [when_s, change] : s.memory)
        if (when_s <= at_s + kTiny) level += change;
      return level;
    };
    for (const double from_s : starts) {
      int64_t most = level_at(from_s) + until_end;
      for (const auto& [at_s, change] : s.memory)
        if (at_s > from_s)
          most = std::max(most, level_at(at_s) + (at_s < from_s + takes_s - kTiny ? until_end : 0));
      if (most + bytes <= graph_.budget_bytes) return from_s;
    }
    return std::nullopt;
  }

  static int ended_at(const State& s, double at_s) {
    const auto near = [&](double end_s) { return std::abs(end_s - at_s) < kTiny; };
    return static_cast<int>(std::find_if(s.ends_s.begin(), s.ends_s.end(), near) -
                            s.ends_s.begin());
  }

  /// Appends an action that starts when its memory is available. Returns its end, or nullopt if it
  /// never fits.
  std::optional<double> list(State& s, Action action, double earliest_s, double takes_s,
                             int64_t bytes, int64_t until_end = 0) const {
    const auto start_s = fit(s, earliest_s, takes_s, bytes, until_end);
    if (!start_s) return std::nullopt;
    if (*start_s > earliest_s) action.waits.push_back(ended_at(s, *start_s));
    if (bytes != 0) s.memory.emplace_back(*start_s, bytes);
    if (until_end != 0) {
      s.memory.emplace_back(*start_s, until_end);
      s.memory.emplace_back(*start_s + takes_s, -until_end);
    }
    s.actions.push_back(std::move(action));
    s.ends_s.push_back(*start_s + takes_s);
    return s.ends_s.back();
  }

  void free(State& s, int t) const {
    Copy& copy = s.storages[t].device;
    const double at_s = std::max(copy.last_s, copy.ready_s);
    s.memory.emplace_back(at_s, -bytes(t));
    copy = {};
    s.actions.push_back({.op = Op::kFree, .tensor = t});
    s.ends_s.push_back(at_s);
  }
  void free_host(State& s, int t) const {
    s.actions.push_back({.op = Op::kFreeHost, .tensor = t});
    s.ends_s.push_back(s.storages[t].host.last_s);
    s.storages[t].host = {};
  }

  double copy_start_s(const State& s, double stream_s, double ready_s) const {
    const double other_s = graph_.bandwidth.duplex ? 0 : std::max(s.to_host_s, s.to_device_s);
    return std::max({stream_s, s.compute_s, ready_s, other_s});
  }
  void offload(State& s, int t) const {
    Storage& storage = s.storages[t];
    const double start_s = copy_start_s(s, s.to_host_s, storage.device.ready_s);
    s.to_host_s = *list(s, {.op = Op::kOffload, .tensor = t}, start_s,
                        seconds(t, graph_.bandwidth.to_host), 0);
    storage.host = storage.device;
    storage.host.ready_s = storage.host.last_s = storage.copied_s = s.to_host_s;
    storage.device.last_s = std::max(storage.device.last_s, s.to_host_s);
  }
  bool fetch(State& s, int t) const {
    Storage& storage = s.storages[t];
    const auto end_s = list(s, {.op = Op::kPrefetch, .tensor = t},
                            copy_start_s(s, s.to_device_s, storage.host.ready_s),
                            seconds(t, graph_.bandwidth.to_device), bytes(t));
    if (!end_s) return false;
    storage.device = storage.host;
    storage.device.ready_s = storage.device.last_s = storage.host.last_s = s.to_device_s = *end_s;
    return true;
  }
  bool pack(State& s, int t, int codec) const {
    Storage& storage = s.storages[t];
    const auto packed_bytes =
        static_cast<int64_t>(std::ceil(static_cast<double>(bytes(t)) * graph_.codecs[codec].ratio));
    const auto end_s = list(s, {.op = Op::kCompress, .tensor = t, .codec = codec},
                            std::max(s.compute_s, storage.device.ready_s),
                            seconds(t, graph_.codecs[codec].encode_bytes_per_s), packed_bytes);
    if (!end_s) return false;
    storage.packed = storage.device;
    storage.packed.codec = codec;
    storage.packed.exact = storage.device.exact && graph_.codecs[codec].max_error == 0;
    storage.packed.ready_s = s.compute_s = *end_s;
    storage.device.last_s = std::max(storage.device.last_s, *end_s);
    free(s, t);
    return true;
  }
  bool unpack(State& s, int t) const {
    Storage& storage = s.storages[t];
    const Codec& codec = graph_.codecs[storage.packed.codec];
    const auto end_s =
        list(s, {.op = Op::kDecompress, .tensor = t}, std::max(s.compute_s, storage.packed.ready_s),
             seconds(t, codec.decode_bytes_per_s), bytes(t));
    if (!end_s) return false;
    storage.device = storage.packed;
    storage.device.coded = true;
    storage.device.ready_s = storage.device.last_s = s.compute_s = *end_s;
    s.memory.emplace_back(
        *end_s, -static_cast<int64_t>(std::ceil(static_cast<double>(bytes(t)) * codec.ratio)));
    storage.packed = {};
    s.actions.push_back({.op = Op::kFreePacked, .tensor = t});
    s.ends_s.push_back(*end_s);
    return true;
  }

  bool compute(State& s, int n, int algorithm) const {
    const GraphNode& node = graph_.nodes[n];
    const bool first = n == s.next;
    const Algorithm& how = node.algorithms[algorithm];
    double start_s = s.compute_s;
    bool lossy = false;
    for (const auto& [t, version] : reads_[n]) {
      const bool on_host = how.finds_on_host(t);
      const Copy& copy = on_host ? s.storages[t].host : s.storages[t].device;
      if (on_host && s.storages[t].device.there) return false;
      if (on_host) start_s = std::max(start_s, copy.last_s);  // fetch that brought the copy
      if (!copy.there || copy.version != version || (!copy.exact && !graph_.tensors[t].lossy_ok))
        return false;
      if (copy.coded && node.reads_unpacked) return false;
      start_s = std::max(start_s, copy.ready_s);
      lossy = lossy || !copy.exact;
    }
    Action action{.op = Op::kCompute, .node = n, .algorithm = algorithm};
    for (const int t : node.mutates) {
      if (how.finds_on_host(t)) continue;
      if (s.storages[t].host.there) free_host(s, t);
      if (s.storages[t].copied_s <= start_s) continue;  // a write may not pass a copy
      start_s = s.storages[t].copied_s;
      action.waits = {ended_at(s, start_s)};
    }
    int64_t made = 0;
    for (const int t : node.outputs) {
      if (s.storages[t].device.there) free(s, t);
      made += bytes(t);
    }
    const auto end_s = list(s, std::move(action), start_s, how.time_s, made, how.workspace_bytes);
    if (!end_s) return false;
    const auto place = [&](int t) -> Copy& {
      return how.finds_on_host(t) ? s.storages[t].host : s.storages[t].device;
    };
    for (const auto& [t, version] : reads_[n]) place(t).last_s = std::max(place(t).last_s, *end_s);
    for (const int t : node.mutates) ++place(t).version, place(t).ready_s = *end_s;
    for (const int t : node.outputs)
      s.storages[t].device = {
          .there = true, .exact = first || !lossy, .ready_s = *end_s, .last_s = *end_s};
    s.algorithms[n] = algorithm;
    s.compute_s = *end_s;
    return true;
  }

  const Graph& graph_;
  std::vector<std::vector<std::pair<int, int>>>
      reads_;                                 // storages and their versions that each node reads
  std::vector<double> least_s_;               // minimum seconds of each node
  std::vector<int> producer_, last_version_;  // producer and last version of each storage

 private:
  void add_node(int n) {
    const GraphNode& node = graph_.nodes[n];
    reads_.emplace_back();
    for (const auto* list : {&node.inputs, &node.mutates})
      for (const int t : *list)
        if (std::find(reads_[n].begin(), reads_[n].end(), std::pair(t, last_version_[t])) ==
            reads_[n].end())
          reads_[n].emplace_back(t, last_version_[t]);
    for (const int t : node.mutates) ++last_version_[t];
    for (const int t : node.outputs) producer_[t] = n;
    double minimum_s = node.algorithms[0].time_s;
    for (const Algorithm& algorithm : node.algorithms)
      minimum_s = std::min(minimum_s, algorithm.time_s);
    least_s_.push_back(minimum_s);
  }
};

}  // namespace dovetail::plan
