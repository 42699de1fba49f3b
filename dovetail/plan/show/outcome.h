#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/plan/model/check.h"

/// Report on a plan: the treatment of each storage, its cost and the reason.
namespace dovetail::plan {

/// Treatment of a storage between two of its uses.
enum class Fate {
  kKept,
  kOffloaded,  ///< copied to the host and back
  kOnHost,     ///< stays on the host; the node that changes it does so there
  kRecomputed,
  kCompressed,
};
std::string_view name(Fate fate);

/// Treatment of one storage by a plan, and its cost in seconds per step. There is one for each
/// storage with a gap between two uses (find_gaps). There is also one for each storage that the
/// plan copies, compresses or recomputes.
struct StorageOutcome {
  int tensor = -1;          ///< index of the storage
  std::string layer;        ///< layer of the first node that computes or uses it
  std::vector<Fate> fates;  ///< kKept alone, or all other fates that occur in its gaps
  double copied_s = 0;      ///< sum of the durations of its copies
  double waited_s = 0;      ///< time in which the compute stream only waits for its copies
  /// Duration of all runs of its node after the first. If a node has several outputs, the time
  /// counts for the first one.
  double again_s = 0;
  double packed_s = 0;  ///< duration of compressing and decompressing it
  /// Duration of one copy to the host and one back, whether the plan copies it or not.
  double round_trip_s = 0;
  /// Duration of one recomputation, whether the plan recomputes it or not; nullopt if it cannot be
  /// recomputed.
  std::optional<double> make_again_s;
};

/// Use of one codec in a step. `times` is the number of compressions. `bytes` and `packed_bytes`
/// are the sums of sizes before and after them.
struct PackedOutcome {
  int codec = -1, times = 0;
  int64_t bytes = 0, packed_bytes = 0;
};

/// Costs of a plan, computed from its actions. The expected step time (expected_s) is the sum of
/// `once_s`, `again_s`, `packed_s`, `algorithms_s`, `waited_s` and `behind_s`.
struct PlanOutcome {
  std::vector<StorageOutcome> storages;  ///< ascending by tensor
  /// Time of running each node once, by its fastest algorithm that updates nothing on the host.
  double once_s = 0;
  double again_s = 0;   ///< all recomputations: runs of nodes after their first
  double packed_s = 0;  ///< all compressions and decompressions
  /// Extra time of first runs because their algorithm is not the fastest.
  double algorithms_s = 0;
  /// Time in which the compute stream waits, including the wait for the last copy of the step.
  double waited_s = 0;
  double behind_s = 0;  ///< slowdown of computing during copies (Bandwidth::slowdown)
  /// `algorithms_changed`: number of nodes whose algorithm is not the fastest.
  /// `algorithms_to_choose`: number of nodes with several algorithms. Algorithms that update
  /// tensors in host memory do not count.
  int algorithms_changed = 0, algorithms_to_choose = 0;
  /// Workspace that the `algorithms_changed` nodes save. It is summed over these nodes: workspace
  /// of the node's fastest algorithm minus workspace of its chosen algorithm.
  int64_t workspace_saved_bytes = 0;
  /// Bytes per step that are copied to the host, copied to the device, recomputed (`again_bytes`),
  /// and updated in host memory (`on_host_bytes`).
  int64_t to_host_bytes = 0, to_device_bytes = 0, again_bytes = 0, on_host_bytes = 0;
  std::vector<PackedOutcome> packed;  ///< one entry per codec in use

  double expected_s() const {
    return once_s + again_s + packed_s + algorithms_s + waited_s + behind_s;
  }
};
/// Computes the costs of a plan. `timeline` is the result of `check`.
PlanOutcome outcome_of(const Graph& graph, const Plan& plan, const Timeline& timeline);

/// Totals of the storages with one fate, in one layer or in all. A storage with several fates
/// counts in the row of each. Seconds are sums of the members of StorageOutcome.
struct OutcomeRow {
  std::string layer;  ///< empty: all layers
  Fate fate = Fate::kKept;
  /// `storages`: number of storages. `made_once`: number of those that cannot be recomputed.
  int storages = 0, made_once = 0;
  int64_t bytes = 0;
  double copied_s = 0, waited_s = 0, again_s = 0, packed_s = 0, round_trip_s = 0, make_again_s = 0;
};
/// Returns one row per fate over all layers, also for fates without storages.
std::vector<OutcomeRow> rows_by_fate(const PlanOutcome& outcome, const Graph& graph);
/// Returns one row for each pair of layer and fate that occurs. Layers are in the order in which
/// they first run.
std::vector<OutcomeRow> rows_by_layer(const PlanOutcome& outcome, const Graph& graph);

/// Returns why the storages of a row got their fate, as a comparison of times estimated in the
/// graph. Example: "again 2.1 ms < copies 8 ms" (recomputing takes less time than copying).
std::string why(const OutcomeRow& row);

/// Returns the error bound of a codec as text. Examples: "without loss", "off by up to 0.0625 of a
/// block's largest".
std::string error_in_words(const Codec& codec);

/// Returns a duration as text. Examples: "85 µs", "2.14 ms", "1.3 s".
std::string format_seconds(double seconds);

/// Returns the outcome as JSON. Keys:
/// - "decisions": rows of rows_by_fate
/// - "layers": rows of rows_by_layer
/// - "packed": [{"codec", "error", ...}]
/// - "algorithms": {...}
/// - "step": {"once_s", ..., "predicted_s"}
/// - "moved": bytes that are copied, updated on the host and recomputed
nlohmann::ordered_json to_json(const PlanOutcome& outcome, const Graph& graph);

}  // namespace dovetail::plan
