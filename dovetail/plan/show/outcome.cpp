#include "dovetail/plan/show/outcome.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "dovetail/plan/model/schedule.h"
#include "dovetail/plan/solve/search.h"

namespace dovetail::plan {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array kFates = {Fate::kKept, Fate::kOffloaded, Fate::kOnHost, Fate::kRecomputed,
                               Fate::kCompressed};
constexpr std::array<std::string_view, kFates.size()> kFateNames = {
    "kept", "offloaded", "updated on the host", "recomputed", "compressed"};
constexpr double kNoTime_s = 1e-9;

const Algorithm& fastest(const GraphNode& node) { return node.algorithms[fastest_algorithm(node)]; }

bool copies(Op op) { return op == Op::kOffload || op == Op::kPrefetch; }

/// Single pass over a plan that counts what its actions do.
class Count {
 public:
  Count(const Graph& graph, const Plan& plan, const Timeline& timeline)
      : graph_(graph),
        plan_(plan),
        timeline_(timeline),
        of_(graph.tensors.size()),
        runs_(graph.nodes.size()),
        brought_by_(graph.tensors.size(), -1) {}

  PlanOutcome count() {
    find_storages();
    for (const GraphNode& node : graph_.nodes) out_.once_s += fastest(node).time_s;
    for (a_ = 0; a_ < static_cast<int>(plan_.actions.size()); ++a_) visit(plan_.actions[a_]);
    count_waiting();
    out_.behind_s = expected_s(graph_, plan_, timeline_) - timeline_.makespan_s;
    for (auto& storage : of_)
      if (storage) out_.storages.push_back(std::move(*storage));
    for (StorageOutcome& storage : out_.storages) {
      std::sort(storage.fates.begin(), storage.fates.end());
      if (storage.copied_s == 0 &&
          std::count(storage.fates.begin(), storage.fates.end(), Fate::kOnHost) > 0)
        std::erase(storage.fates, Fate::kOffloaded);  // it starts on the host and stays there
      storage.fates.erase(std::unique(storage.fates.begin(), storage.fates.end()),
                          storage.fates.end());
      if (storage.fates.empty()) storage.fates = {Fate::kKept};
    }
    return std::move(out_);
  }

 private:
  double seconds(int action) const {
    return timeline_.actions[action].end_s - timeline_.actions[action].start_s;
  }

  void find_storages() {
    const Scheduler scheduler(graph_);
    for (size_t g = 0; g < scheduler.gaps().size(); ++g) {
      StorageOutcome& storage = of(scheduler.gaps()[g].tensor);
      if (!scheduler.can_be_recomputed(static_cast<int>(g))) storage.make_again_s.reset();
    }
    for (const int t : plan_.starts_on_host) add(t, Fate::kOffloaded);
  }

  StorageOutcome& of(int tensor) {
    auto& storage = of_[tensor];
    if (storage) return *storage;
    const auto bytes = static_cast<double>(graph_.tensors[tensor].bytes);
    storage = StorageOutcome{
        .tensor = tensor,
        .round_trip_s = bytes / graph_.bandwidth.to_host + bytes / graph_.bandwidth.to_device};
    for (const GraphNode& node : graph_.nodes) {
      const auto uses = [&](const std::vector<int>& list) {
        return std::any_of(list.begin(), list.end(),
                           [&](int t) { return graph_.root(t) == tensor; });
      };
      if (!uses(node.outputs) && !uses(node.inputs) && !uses(node.mutates)) continue;
      storage->layer = node.layer;
      if (uses(node.outputs) && !node.runs_once()) storage->make_again_s = fastest(node).time_s;
      break;
    }
    return *storage;
  }

  StorageOutcome& add(int tensor, Fate fate) {
    StorageOutcome& storage = of(tensor);
    storage.fates.push_back(fate);
    return storage;
  }

  void visit(const Action& action) {
    switch (action.op) {
      case Op::kCompute:
        return compute(action);
      case Op::kOffload:
      case Op::kPrefetch: {
        add(action.tensor, Fate::kOffloaded).copied_s += seconds(a_);
        const int64_t bytes = graph_.tensors[action.tensor].bytes;
        (action.op == Op::kOffload ? out_.to_host_bytes : out_.to_device_bytes) += bytes;
        return;
      }
      case Op::kCompress:
        count_packed(action);
        [[fallthrough]];
      case Op::kDecompress:
        add(action.tensor, Fate::kCompressed).packed_s += seconds(a_);
        out_.packed_s += seconds(a_);
        return;
      default:
        return;
    }
  }

  void count_packed(const Action& action) {
    auto found =
        std::find_if(out_.packed.begin(), out_.packed.end(),
                     [&](const PackedOutcome& packed) { return packed.codec == action.codec; });
    if (found == out_.packed.end()) found = out_.packed.insert(found, {.codec = action.codec});
    ++found->times;
    found->bytes += graph_.tensors[action.tensor].bytes;
    found->packed_bytes += graph_.packed_bytes(action.tensor, action.codec);
  }

  void compute(const Action& action) {
    const GraphNode& node = graph_.nodes[action.node];
    const Algorithm &used = node.algorithms[action.algorithm], &best = fastest(node);
    if (runs_[action.node]++ == 0) {
      out_.algorithms_to_choose +=
          std::count_if(node.algorithms.begin(), node.algorithms.end(),
                        [](const Algorithm& a) { return a.on_host.empty(); }) > 1;
      for (const int t : used.on_host) {
        add(t, Fate::kOnHost);
        out_.on_host_bytes += graph_.tensors[t].bytes;
      }
      out_.algorithms_s += used.time_s - best.time_s;
      if (&used == &best || !used.on_host.empty()) return;
      ++out_.algorithms_changed;
      out_.workspace_saved_bytes += best.workspace_bytes - used.workspace_bytes;
      return;
    }
    out_.again_s += used.time_s;
    bool first = true;
    for (const int t : node.outputs) {
      if (graph_.tensors[t].alias_of >= 0) continue;
      out_.again_bytes += graph_.tensors[t].bytes;
      StorageOutcome& storage = add(t, Fate::kRecomputed);
      if (std::exchange(first, false)) storage.again_s += used.time_s;
    }
  }

  /// Attributes each idle time of the compute stream to the storage whose copy ends the wait.
  void count_waiting() {
    double free_s = 0;
    for (size_t a = 0; a < plan_.actions.size(); ++a) {
      const Action& action = plan_.actions[a];
      if (action.op == Op::kPrefetch) brought_by_[action.tensor] = static_cast<int>(a);
      if (!computes(action.op)) continue;
      const auto& span = timeline_.actions[a];
      wait(span.start_s - free_s, span.start_s, copies_before(action));
      free_s = span.end_s;
    }
    std::vector<int> all;
    for (size_t a = 0; a < plan_.actions.size(); ++a)
      if (copies(plan_.actions[a].op)) all.push_back(static_cast<int>(a));
    wait(timeline_.makespan_s - free_s, timeline_.makespan_s, all);
  }

  std::vector<int> copies_before(const Action& action) const {
    std::vector<int> out;
    for (const int wait : action.waits)
      if (copies(plan_.actions[wait].op)) out.push_back(wait);
    if (action.op != Op::kCompute) return out;
    for (const auto* list : {&graph_.nodes[action.node].inputs, &graph_.nodes[action.node].mutates})
      for (const int t : *list)
        if (brought_by_[graph_.root(t)] >= 0) out.push_back(brought_by_[graph_.root(t)]);
    return out;
  }

  void wait(double waited_s, double until_s, const std::vector<int>& on) {
    if (waited_s <= 0) return;
    out_.waited_s += waited_s;
    for (const int copy : on)
      if (timeline_.actions[copy].end_s >= until_s - kNoTime_s) {
        of(plan_.actions[copy].tensor).waited_s += waited_s;
        return;
      }
  }

  const Graph& graph_;
  const Plan& plan_;
  const Timeline& timeline_;
  PlanOutcome out_;
  std::vector<std::optional<StorageOutcome>> of_;  // per tensor
  std::vector<int> runs_;
  std::vector<int> brought_by_;  // per tensor: its last fetch
  int a_ = 0;
};

void add_to(OutcomeRow& row, const StorageOutcome& storage, const Graph& graph) {
  ++row.storages;
  row.made_once += !storage.make_again_s;
  row.bytes += graph.tensors[storage.tensor].bytes;
  row.copied_s += storage.copied_s;
  row.waited_s += storage.waited_s;
  row.again_s += storage.again_s;
  row.packed_s += storage.packed_s;
  row.round_trip_s += storage.round_trip_s;
  row.make_again_s += storage.make_again_s.value_or(0);
}

Json to_json(const OutcomeRow& row) {
  Json json = {{"decision", name(row.fate)},
               {"storages", row.storages},
               {"bytes", row.bytes},
               {"copied_s", row.copied_s},
               {"waited_s", row.waited_s},
               {"again_s", row.again_s},
               {"packed_s", row.packed_s},
               {"round_trip_s", row.round_trip_s},
               {"make_again_s", row.make_again_s},
               {"made_once", row.made_once},
               {"why", why(row)}};
  if (!row.layer.empty()) json["layer"] = row.layer;
  return json;
}

std::string why_offloaded(const OutcomeRow& row) {
  const std::string hidden = row.waited_s <= kNoTime_s ? "hidden behind computing"
                                                       : fmt::format("computing waits {} for them",
                                                                     format_seconds(row.waited_s));
  if (row.made_once == row.storages)
    return fmt::format("cannot be recomputed; copies {}, {}", format_seconds(row.copied_s), hidden);
  if (row.made_once > 0)
    return fmt::format("{} of {} cannot be recomputed, the others take {}; copies {}, {}",
                       row.made_once, row.storages, format_seconds(row.make_again_s),
                       format_seconds(row.copied_s), hidden);
  if (row.round_trip_s < row.make_again_s)
    return fmt::format("copies {} < again {}; {}", format_seconds(row.round_trip_s),
                       format_seconds(row.make_again_s), hidden);
  return fmt::format("copies {}, {}; again {} of computing", format_seconds(row.copied_s), hidden,
                     format_seconds(row.make_again_s));
}

}  // namespace

std::string_view name(Fate fate) { return kFateNames[static_cast<size_t>(fate)]; }

PlanOutcome outcome_of(const Graph& graph, const Plan& plan, const Timeline& timeline) {
  return Count(graph, plan, timeline).count();
}

std::vector<OutcomeRow> rows_by_fate(const PlanOutcome& outcome, const Graph& graph) {
  std::vector<OutcomeRow> rows;
  for (const Fate fate : kFates) {
    rows.push_back({.fate = fate});
    for (const StorageOutcome& storage : outcome.storages)
      if (std::find(storage.fates.begin(), storage.fates.end(), fate) != storage.fates.end())
        add_to(rows.back(), storage, graph);
  }
  return rows;
}

std::vector<OutcomeRow> rows_by_layer(const PlanOutcome& outcome, const Graph& graph) {
  std::map<std::string, int> order;
  for (const GraphNode& node : graph.nodes)
    order.emplace(node.layer, static_cast<int>(order.size()));
  std::map<std::pair<int, Fate>, OutcomeRow> rows;
  for (const StorageOutcome& storage : outcome.storages)
    for (const Fate fate : storage.fates) {
      OutcomeRow& row = rows[{order[storage.layer], fate}];
      row.layer = storage.layer.empty() ? "(no layer)" : storage.layer;
      row.fate = fate;
      add_to(row, storage, graph);
    }
  std::vector<OutcomeRow> out;
  out.reserve(rows.size());
  for (auto& [key, row] : rows) out.push_back(std::move(row));
  return out;
}

std::string why(const OutcomeRow& row) {
  if (row.storages == 0) return "";
  switch (row.fate) {
    case Fate::kKept:
      return row.made_once == row.storages
                 ? fmt::format("fits; copies would take {}", format_seconds(row.round_trip_s))
                 : fmt::format("fits; copies would take {}, again {}",
                               format_seconds(row.round_trip_s), format_seconds(row.make_again_s));
    case Fate::kOffloaded:
      return why_offloaded(row);
    case Fate::kOnHost:
      return fmt::format("updated where it lies; copies would take {}",
                         format_seconds(row.round_trip_s));
    case Fate::kRecomputed:
      return row.again_s <= row.round_trip_s
                 ? fmt::format("again {} < copies {}", format_seconds(row.again_s),
                               format_seconds(row.round_trip_s))
                 : fmt::format("again {}; with copies, {}, no faster step was found",
                               format_seconds(row.again_s), format_seconds(row.round_trip_s));
    case Fate::kCompressed:
      return fmt::format("packing {}; copies {}", format_seconds(row.packed_s),
                         format_seconds(row.round_trip_s));
  }
  return "";
}

std::string error_in_words(const Codec& codec) {
  return codec.max_error == 0
             ? "without loss"
             : fmt::format("off by up to {:.3g} of a block's largest", codec.max_error);
}

std::string format_seconds(double seconds) {
  if (seconds > 0 && seconds < 1e-3) return fmt::format("{:.3g} µs", 1e6 * seconds);
  return seconds < 1 ? fmt::format("{:.3g} ms", 1e3 * seconds) : fmt::format("{:.3g} s", seconds);
}

Json to_json(const PlanOutcome& outcome, const Graph& graph) {
  Json decisions = Json::array(), layers = Json::array();
  for (const OutcomeRow& row : rows_by_fate(outcome, graph)) decisions.push_back(to_json(row));
  for (const OutcomeRow& row : rows_by_layer(outcome, graph)) layers.push_back(to_json(row));
  Json packed = Json::array();
  for (const PackedOutcome& by : outcome.packed) {
    const Codec& codec = graph.codecs[by.codec];
    packed.push_back({{"codec", codec.name},
                      {"error", error_in_words(codec)},
                      {"times", by.times},
                      {"bytes", by.bytes},
                      {"packed_bytes", by.packed_bytes},
                      {"encode_bytes_per_s", codec.encode_bytes_per_s},
                      {"decode_bytes_per_s", codec.decode_bytes_per_s}});
  }
  return {{"decisions", decisions},
          {"layers", layers},
          {"packed", packed},
          {"algorithms",
           {{"changed", outcome.algorithms_changed},
            {"to_choose", outcome.algorithms_to_choose},
            {"cost_s", outcome.algorithms_s},
            {"workspace_saved_bytes", outcome.workspace_saved_bytes}}},
          {"step",
           {{"once_s", outcome.once_s},
            {"again_s", outcome.again_s},
            {"packed_s", outcome.packed_s},
            {"algorithms_s", outcome.algorithms_s},
            {"waited_s", outcome.waited_s},
            {"behind_s", outcome.behind_s},
            {"predicted_s", outcome.expected_s()}}},
          {"moved",
           {{"out_bytes", outcome.to_host_bytes},
            {"in_bytes", outcome.to_device_bytes},
            {"on_host_bytes", outcome.on_host_bytes},
            {"again_bytes", outcome.again_bytes}}}};
}

}  // namespace dovetail::plan
