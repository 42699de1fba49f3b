#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/plan/model/check.h"

namespace dovetail::plan {

/// Treatment of a storage between its uses.
enum class Fate {
  kKept,
  kOffloaded,  ///< copied to the host and back
  kOnHost,     ///< stays on the host, where its node changes it
  kRecomputed,
  kCompressed,
};
std::string_view name(Fate fate);

/// Result of a plan for one storage. Covers storages with a gap between two uses (find_gaps). Also
/// covers storages that the plan copies, packs or recomputes. Seconds are per step.
struct StorageOutcome {
  int tensor = -1;
  std::string layer;        ///< layer of the node that computes it, else of its first user
  std::vector<Fate> fates;  ///< kKept alone, or all other fates that occur
  double copied_s = 0;      ///< sum of its copies, each by itself
  double waited_s = 0;      ///< compute stream idle because of its copies
  /// Duration of reruns of its node. The time of a node with several outputs counts for the first
  /// one.
  double again_s = 0;
  double packed_s = 0;      ///< duration of compressing and decompressing it
  double round_trip_s = 0;  ///< one copy to the host and one back
  /// Duration of one more run of its node; nullopt if the node may run only once.
  std::optional<double> make_again_s;
};

/// Total of one codec in a step. A storage counts once per compression.
struct PackedOutcome {
  int codec = -1, times = 0;
  int64_t bytes = 0, packed_bytes = 0;
};

/// Costs of a plan, computed from its actions alone. The expected step time (expected_s) is the sum
/// of `once_s`, `again_s`, `packed_s`, `algorithms_s`, `waited_s` and `behind_s`.
struct PlanOutcome {
  std::vector<StorageOutcome> storages;  ///< ascending by tensor
  double once_s = 0;                     ///< each node once, by its fastest algorithm on the device
  double again_s = 0;                    ///< all runs of nodes after their first
  double packed_s = 0;
  /// Extra time of first runs by algorithms that are not the fastest.
  double algorithms_s = 0;
  double waited_s = 0;  ///< compute stream idle, or finished before the last copy
  double behind_s = 0;  ///< slowdown of computing during copies (Bandwidth::slowdown)
  /// Nodes with a slower algorithm than the fastest, and nodes that have a choice. Algorithms that
  /// update tensors in host memory do not count.
  int algorithms_changed = 0, algorithms_to_choose = 0;
  int64_t workspace_saved_bytes =
      0;  ///< sum over changed algorithms, each relative to its node's fastest
  int64_t to_host_bytes = 0, to_device_bytes = 0, again_bytes = 0, on_host_bytes = 0;
  std::vector<PackedOutcome> packed;  ///< one entry per codec in use

  double expected_s() const {
    return once_s + again_s + packed_s + algorithms_s + waited_s + behind_s;
  }
};
PlanOutcome outcome_of(const Graph& graph, const Plan& plan, const Timeline& timeline);

/// Totals of the storages of one layer, or of all layers, with one fate. A storage with several
/// fates counts in the row of each.
struct OutcomeRow {
  std::string layer;  ///< empty: all layers
  Fate fate = Fate::kKept;
  int storages = 0, made_once = 0;  ///< made_once: number of them whose node may run only once
  int64_t bytes = 0;
  double copied_s = 0, waited_s = 0, again_s = 0, packed_s = 0, round_trip_s = 0, make_again_s = 0;
};
/// Returns one row for each fate, also for fates without storages.
std::vector<OutcomeRow> rows_by_fate(const PlanOutcome& outcome, const Graph& graph);
/// Returns a row for each pair of layer and fate that occurs, in the order in which layers first
/// run.
std::vector<OutcomeRow> rows_by_layer(const PlanOutcome& outcome, const Graph& graph);

/// Returns the reason for the decision, in times of the graph, for example "again 2.1 ms < copies 8
/// ms".
std::string why(const OutcomeRow& row);

/// Returns the error bound of a codec: "without loss", "off by up to 0.0625 of a block's largest".
std::string error_in_words(const Codec& codec);

/// Formats a duration: "85 µs", "2.14 ms", "1.3 s".
std::string format_seconds(double seconds);

/// Returns {"decisions": [row], "layers": [row], "packed": [{"codec", "error", ...}], "algorithms":
/// {...}, "step": {"once_s", ..., "predicted_s"}, "moved": {...}}. "moved" contains the bytes that
/// are copied, updated on the host or recomputed.
nlohmann::ordered_json to_json(const PlanOutcome& outcome, const Graph& graph);

}  // namespace dovetail::plan
