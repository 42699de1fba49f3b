#include "dovetail/plan/model/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

namespace dovetail::plan {
namespace {

constexpr double kTimeTolerance = 1e-9;      // for an order in time, seconds
constexpr double kMakespanTolerance = 0.02;  // for a claimed makespan, relative

/// Bytes charged and released over time. At equal times, releases come before charges.
class Ledger {
 public:
  void charge(double time_s, int64_t bytes) {
    changes_.push_back({picoseconds(time_s), 1, bytes, time_s});
  }
  void release(double time_s, int64_t bytes) {
    changes_.push_back({picoseconds(time_s), 0, -bytes, time_s});
  }

  /// Returns bytes over time, and their maximum in `peak`.
  std::vector<MemoryPoint> over_time(MemoryPoint& peak) {
    std::stable_sort(changes_.begin(), changes_.end(), [](const Change& a, const Change& b) {
      return std::pair(a.tick, a.order) < std::pair(b.tick, b.order);
    });
    std::vector<MemoryPoint> points;
    int64_t bytes = 0;
    for (const Change& change : changes_) {
      bytes += change.bytes;
      if (bytes > peak.bytes) peak = {change.time_s, bytes};
      points.push_back({change.time_s, bytes});
    }
    return points;
  }

 private:
  struct Change {
    int64_t tick;
    int order;
    int64_t bytes;
    double time_s;
  };
  static int64_t picoseconds(double time_s) { return std::llround(time_s * 1e12); }
  std::vector<Change> changes_;
};

/// Copy of a tensor on the device, on the host or in packed form.
struct Copy {
  int version = 0;
  bool exact = true;
  bool coded = false;      // went through a codec
  double ready_s = 0;      // time at which its bytes are complete
  double last_s = 0;       // end of its last reader
  double offload_end = 0;  // end of the copy to the host, if one is in flight
  int codec = -1;
  int64_t bytes = 0;
};

class Simulation {
 public:
  Simulation(const Graph& graph, const Plan& plan)
      : graph_(graph),
        plan_(plan),
        device_(graph.tensors.size()),
        host_(graph.tensors.size()),
        packed_(graph.tensors.size()),
        runs_(graph.nodes.size()),
        reads_(graph.nodes.size()),
        writes_(graph.nodes.size()) {
    number_versions();
    for (const int t : plan.starts_on_host) start_on_host(t);
    for (size_t t = 0; t < graph.tensors.size(); ++t) {
      const GraphTensor& tensor = graph.tensors[t];
      if (tensor.alias_of >= 0 || !resident_at_start(tensor.kind) || host_[t]) continue;
      device_[t] = Copy{};
      memory_.charge(0, tensor.bytes);
    }
    if (graph.base_bytes > 0) memory_.charge(0, graph.base_bytes);
  }

  Timeline run() {
    for (at_ = 0; at_ < static_cast<int>(plan_.actions.size()); ++at_) {
      const Action& action = plan_.actions[at_];
      double after = 0;
      for (const int wait : action.waits) {
        require(wait >= 0 && wait < at_, "wait for action {}, which is not earlier", wait);
        after = std::max(after, timeline_.actions[wait].end_s);
      }
      if (action.op != Op::kCompute)
        require(graph_.tensors[action.tensor].alias_of < 0,
                "{} must name the storage {}, not its view {}", name(action.op),
                id(graph_.root(action.tensor)), id(action.tensor));
      timeline_.actions.push_back(issue(action, after));
      timeline_.makespan_s = std::max(timeline_.makespan_s, timeline_.actions.back().end_s);
    }
    at_ = -1;
    finish();
    return std::move(timeline_);
  }

 private:
  using Span = Timeline::Span;

  template <class... Args>
  void require(bool condition, fmt::format_string<Args...> format, Args&&... args) const {
    if (!condition) throw InvalidPlan(at_, fmt::format(format, std::forward<Args>(args)...));
  }

  const std::string& id(int tensor) const { return graph_.tensors[tensor].id; }
  int64_t bytes_of(int tensor) const { return graph_.tensors[tensor].bytes; }

  /// Numbers the versions of storages that each node reads and writes, in the graph's own order.
  void number_versions() {
    final_version_.assign(graph_.tensors.size(), 0);
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const GraphNode& node = graph_.nodes[n];
      for (const auto* list : {&node.inputs, &node.mutates})
        for (const int t : *list) {
          const std::pair read{graph_.root(t), final_version_[graph_.root(t)]};
          if (std::find(reads_[n].begin(), reads_[n].end(), read) == reads_[n].end())
            reads_[n].push_back(read);
        }
      for (const int t : node.mutates)
        writes_[n].emplace_back(graph_.root(t), ++final_version_[graph_.root(t)]);
    }
  }

  void start_on_host(int t) {
    const GraphTensor& tensor = graph_.tensors[t];
    require(tensor.alias_of < 0, "starts_on_host must name the storage {}, not its view {}",
            id(graph_.root(t)), id(t));
    require(may_start_on_host(tensor.kind), "{} {} may not start on the host", name(tensor.kind),
            id(t));
    require(!host_[t], "{} starts on the host twice", id(t));
    host_[t] = Copy{};
    host_memory_.charge(0, tensor.bytes);
  }

  Span issue(const Action& action, double after) {
    switch (action.op) {
      case Op::kCompute:
        return compute(action, after);
      case Op::kOffload:
        return offload(action.tensor, after);
      case Op::kPrefetch:
        return prefetch(action.tensor, after);
      case Op::kCompress:
        return compress(action, after);
      case Op::kDecompress:
        return decompress(action.tensor, after);
      case Op::kFree:
        return free(action.tensor, after);
      case Op::kFreeHost: {
        require(host_[action.tensor].has_value(), "free_host of {}: no host copy",
                id(action.tensor));
        const double at = std::max(host_[action.tensor]->last_s, after);
        host_memory_.release(at, bytes_of(action.tensor));
        host_[action.tensor].reset();
        return {at, at};
      }
      case Op::kFreePacked: {
        require(packed_[action.tensor].has_value(), "free_packed of {}: no packed copy",
                id(action.tensor));
        const double at = std::max(packed_[action.tensor]->last_s, after);
        memory_.release(at, packed_[action.tensor]->bytes);
        packed_[action.tensor].reset();
        return {at, at};
      }
    }
    return {};
  }

  Span compute(const Action& action, double after) {
    const GraphNode& node = graph_.nodes[action.node];
    const Algorithm& algorithm = node.algorithms[action.algorithm];
    int& runs = runs_[action.node];
    require(runs == 0 || !node.runs_once(), "{} may run only once", node.name);
    double start = std::max(compute_free_s_, after);
    bool lossy = false;
    for (const auto& [tensor, version] : reads_[action.node]) {
      const bool on_host = algorithm.finds_on_host(tensor);
      const auto& copy = on_host ? host_[tensor] : device_[tensor];
      require(copy.has_value(), "{} reads {}, which is not on the {}", node.name, id(tensor),
              on_host ? "host" : "device");
      require(!on_host || !device_[tensor],
              "{} changes {} on the host while it is on the device, too", node.name, id(tensor));
      require(copy->version == version, "{} reads version {} of {} but needs version {}", node.name,
              copy->version, id(tensor), version);
      require(copy->exact || graph_.tensors[tensor].lossy_ok, "{} reads a lossy copy of {}",
              node.name, id(tensor));
      require(!copy->coded || !node.reads_unpacked, "{} reads a copy of {} that was packed",
              node.name, id(tensor));
      start = std::max(start, copy->ready_s);
      lossy = lossy || !copy->exact;
    }
    const double end = start + algorithm.time_s;
    for (const auto& [tensor, version] : reads_[action.node])
      if (!algorithm.finds_on_host(tensor))
        device_[tensor]->last_s = std::max(device_[tensor]->last_s, end);
    for (const auto& [tensor, version] : writes_[action.node]) {
      if (algorithm.finds_on_host(tensor)) {
        require(!packed_[tensor], "{} writes {} while a copy of its old version is kept", node.name,
                id(tensor));
        require(host_[tensor]->last_s <= start + kTimeTolerance,
                "{} writes {} while it is being fetched", node.name, id(tensor));
        host_[tensor]->version = version;
        host_[tensor]->ready_s = host_[tensor]->last_s = end;
        continue;
      }
      require(!host_[tensor] && !packed_[tensor],
              "{} writes {} while a copy of its old version is kept", node.name, id(tensor));
      require(device_[tensor]->offload_end <= start + kTimeTolerance,
              "{} writes {} while it is being offloaded", node.name, id(tensor));
      device_[tensor]->version = version;
      device_[tensor]->ready_s = end;
    }
    for (const int t : node.outputs) {
      if (graph_.tensors[t].alias_of >= 0) continue;
      require(!device_[t], "{} makes {}, which is still on the device", node.name, id(t));
      // Recomputed from a lossy copy, it differs from the tensor of the first run.
      device_[t] = Copy{.exact = !(lossy && runs > 0), .ready_s = end, .last_s = end};
      memory_.charge(start, bytes_of(t));
    }
    if (algorithm.workspace_bytes > 0) {
      memory_.charge(start, algorithm.workspace_bytes);
      memory_.release(end, algorithm.workspace_bytes);
    }
    if (runs++ > 0) ++timeline_.again;
    compute_free_s_ = end;
    return {start, end};
  }

  double copy_start(double stream_free_s, double after, double ready_s) const {
    double start = std::max({stream_free_s, after, compute_free_s_, ready_s});
    if (!graph_.bandwidth.duplex) start = std::max({start, to_host_free_s_, to_device_free_s_});
    return start;
  }

  Span offload(int tensor, double after) {
    auto& copy = device_[tensor];
    require(copy.has_value(), "offload of {}: not on the device", id(tensor));
    require(!host_[tensor], "{} already has a host copy", id(tensor));
    const double start = copy_start(to_host_free_s_, after, copy->ready_s);
    const double end = start + static_cast<double>(bytes_of(tensor)) / graph_.bandwidth.to_host;
    copy->last_s = std::max(copy->last_s, end);
    copy->offload_end = end;
    host_[tensor] = Copy{.version = copy->version,
                         .exact = copy->exact,
                         .coded = copy->coded,
                         .ready_s = end,
                         .last_s = end};
    host_memory_.charge(start, bytes_of(tensor));
    to_host_free_s_ = end;
    return {start, end};
  }

  Span prefetch(int tensor, double after) {
    auto& copy = host_[tensor];
    require(copy.has_value(), "prefetch of {}: no host copy", id(tensor));
    require(!device_[tensor], "prefetch of {}: already on the device", id(tensor));
    const double start = copy_start(to_device_free_s_, after, copy->ready_s);
    const double end = start + static_cast<double>(bytes_of(tensor)) / graph_.bandwidth.to_device;
    device_[tensor] = Copy{.version = copy->version,
                           .exact = copy->exact,
                           .coded = copy->coded,
                           .ready_s = end,
                           .last_s = end};
    memory_.charge(start, bytes_of(tensor));
    copy->last_s = std::max(copy->last_s, end);
    to_device_free_s_ = end;
    return {start, end};
  }

  Span compress(const Action& action, double after) {
    const int t = action.tensor;
    const Codec& codec = graph_.codecs[action.codec];
    auto& copy = device_[t];
    require(copy.has_value(), "compress of {}: not on the device", id(t));
    require(graph_.tensors[t].lossy_ok || codec.max_error == 0, "{} may not be stored with loss",
            id(t));
    require(graph_.may_be_packed(t, action.codec), "{} does not fit into {}", id(t), codec.name);
    require(!packed_[t], "{} is packed already", id(t));
    const double start = std::max({compute_free_s_, after, copy->ready_s});
    const double end = start + static_cast<double>(bytes_of(t)) / codec.encode_bytes_per_s;
    copy->last_s = std::max(copy->last_s, end);
    packed_[t] = Copy{.version = copy->version,
                      .exact = copy->exact && codec.max_error == 0,
                      .ready_s = end,
                      .last_s = end,
                      .codec = action.codec,
                      .bytes = graph_.packed_bytes(t, action.codec)};
    memory_.charge(start, packed_[t]->bytes);
    compute_free_s_ = end;
    return {start, end};
  }

  Span decompress(int t, double after) {
    auto& packed = packed_[t];
    require(packed.has_value(), "decompress of {}: no packed copy", id(t));
    require(!device_[t], "decompress of {}: already on the device", id(t));
    const double start = std::max({compute_free_s_, after, packed->ready_s});
    const double end =
        start + static_cast<double>(bytes_of(t)) / graph_.codecs[packed->codec].decode_bytes_per_s;
    packed->last_s = end;
    device_[t] = Copy{.version = packed->version,
                      .exact = packed->exact,
                      .coded = true,
                      .ready_s = end,
                      .last_s = end};
    memory_.charge(start, bytes_of(t));
    compute_free_s_ = end;
    return {start, end};
  }

  Span free(int t, double after) {
    const auto kind = graph_.tensors[t].kind;
    require(device_[t].has_value(), "free of {}: not on the device", id(t));
    require(!may_start_on_host(kind) || host_[t], "free of {} {} without a host copy", name(kind),
            id(t));
    const double at = std::max({device_[t]->last_s, device_[t]->ready_s, after});
    memory_.release(at, bytes_of(t));
    device_[t].reset();
    return {at, at};
  }

  /// Returns the last action that takes memory and has started by `time_s`, or -1.
  int begun_by(double time_s) const {
    int out = -1;
    for (int a = 0; a < static_cast<int>(plan_.actions.size()); ++a) {
      const Op op = plan_.actions[a].op;
      const bool takes =
          op == Op::kCompute || op == Op::kPrefetch || op == Op::kCompress || op == Op::kDecompress;
      const double start_s = timeline_.actions[a].start_s;
      if (takes && start_s <= time_s && (out < 0 || start_s >= timeline_.actions[out].start_s))
        out = a;
    }
    return out;
  }
  std::string in_words(const Action& action) const {
    return action.op == Op::kCompute ? fmt::format("compute of {}", graph_.nodes[action.node].name)
                                     : fmt::format("{} of {}", name(action.op), id(action.tensor));
  }

  void finish() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n)
      require(runs_[n] > 0, "node {} never runs", graph_.nodes[n].name);
    for (const int t : plan_.starts_on_host) {
      require(host_[t].has_value(), "{} starts on the host but is not there at the end", id(t));
      require(host_[t]->version == final_version_[t], "{} ends on the host as version {}, not {}",
              id(t), host_[t]->version, final_version_[t]);
      require(host_[t]->exact, "{} ends on the host as a lossy copy", id(t));
    }
    for (const int tensor : graph_.final) {
      const int t = graph_.root(tensor);
      if (std::find(plan_.starts_on_host.begin(), plan_.starts_on_host.end(), t) !=
          plan_.starts_on_host.end())
        continue;
      require(device_[t].has_value(), "{} is not on the device at the end", id(tensor));
      require(device_[t]->version == final_version_[t], "{} ends as version {}, not {}", id(tensor),
              device_[t]->version, final_version_[t]);
      require(device_[t]->exact, "{} ends as a lossy copy", id(tensor));
    }
    MemoryPoint peak, host_peak;
    timeline_.memory = memory_.over_time(peak);
    host_memory_.over_time(host_peak);
    timeline_.peak_bytes = peak.bytes;
    timeline_.peak_at_s = peak.time_s;
    timeline_.host_peak_bytes = host_peak.bytes;
    if (peak.bytes > graph_.budget_bytes) at_ = begun_by(peak.time_s);
    require(peak.bytes <= graph_.budget_bytes, "over the budget: {} > {} bytes at {:.6g} s, {}",
            peak.bytes, graph_.budget_bytes, peak.time_s,
            at_ < 0 ? "when the step begins" : "in " + in_words(plan_.actions[at_]));
    if (graph_.host_bytes)
      require(host_peak.bytes <= *graph_.host_bytes, "over the host's budget: {} > {} bytes",
              host_peak.bytes, *graph_.host_bytes);
    if (plan_.claimed_peak_bytes)
      require(*plan_.claimed_peak_bytes >= peak.bytes, "claims a peak of {} bytes but takes {}",
              *plan_.claimed_peak_bytes, peak.bytes);
    if (plan_.claimed_makespan_s)
      require(std::abs(*plan_.claimed_makespan_s - timeline_.makespan_s) <=
                  1e-6 * std::max(1.0, timeline_.makespan_s) +
                      kMakespanTolerance * timeline_.makespan_s,
              "claims to end at {:.6g} s but ends at {:.6g} s", *plan_.claimed_makespan_s,
              timeline_.makespan_s);
  }

  const Graph& graph_;
  const Plan& plan_;
  std::vector<std::optional<Copy>> device_, host_, packed_;
  std::vector<int> runs_;
  std::vector<std::vector<std::pair<int, int>>> reads_,
      writes_;  // storages and versions of each node
  std::vector<int> final_version_;
  Ledger memory_, host_memory_;
  double compute_free_s_ = 0, to_host_free_s_ = 0, to_device_free_s_ = 0;
  Timeline timeline_;
  int at_ = -1;
};

}  // namespace

InvalidPlan::InvalidPlan(int action, const std::string& message)
    : std::runtime_error(action < 0 ? "the plan: " + message
                                    : fmt::format("action {} of the plan: {}", action, message)),
      action_(action) {}

Timeline check(const Graph& graph, const Plan& plan) { return Simulation(graph, plan).run(); }

}  // namespace dovetail::plan
