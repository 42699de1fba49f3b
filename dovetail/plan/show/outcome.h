#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/plan/model/check.h"

namespace dovetail::plan {

/// What a plan does with a storage between its uses.
enum class Fate {
  kKept,
  kOffloaded,  ///< copied to the host and back
  kOnHost,     ///< its node changed it where it lies on the host
  kRecomputed,
  kCompressed,
};
std::string_view name(Fate fate);

/// A storage that some node does not use between two that do (find_gaps), or that a plan moves,
/// packs or makes again all the same. Seconds are of a step.
struct StorageOutcome {
  int tensor = -1;
  std::string layer;        ///< of the node that makes it, else of the first that uses it
  std::vector<Fate> fates;  ///< kKept alone, or all others that it meets
  double copied_s = 0;      ///< of its copies, each by itself
  double waited_s = 0;      ///< computing stood still for them
  double again_s =
      0;  ///< of the runs of its node after the first; of a node with several, those of its first
  double packed_s = 0;      ///< of compressing and decompressing it
  double round_trip_s = 0;  ///< one copy there and one back
  std::optional<double>
      make_again_s;  ///< one more run of its node; nothing where that may run only once
};

/// What is compressed by one codec in a step; a storage counts as often as that happens.
struct PackedOutcome {
  int codec = -1, times = 0;
  int64_t bytes = 0, packed_bytes = 0;
};

/// What a plan comes to, from its actions alone. What a step is expected to take (expected_s) is
/// the sum of `once_s`, `again_s`, `packed_s`, `algorithms_s`, `waited_s` and `behind_s`.
struct PlanOutcome {
  std::vector<StorageOutcome> storages;  ///< by tensor
  double once_s = 0;   ///< every node once, by its fastest algorithm on the device
  double again_s = 0;  ///< of all runs after the first
  double packed_s = 0;
  double algorithms_s =
      0;                ///< first runs by algorithms that are not the fastest, beyond the fastest
  double waited_s = 0;  ///< computing stood still, or had ended before the last copy
  double behind_s = 0;  ///< what computing falls behind during copies (Bandwidth::slowdown)
  int algorithms_changed = 0,
      algorithms_to_choose = 0;       ///< nodes, of those that find nothing on the host
  int64_t workspace_saved_bytes = 0;  ///< by these, each against that of its node's fastest
  int64_t to_host_bytes = 0, to_device_bytes = 0, again_bytes = 0, on_host_bytes = 0;
  std::vector<PackedOutcome> packed;  ///< by each codec that is used

  double expected_s() const {
    return once_s + again_s + packed_s + algorithms_s + waited_s + behind_s;
  }
};
PlanOutcome outcome_of(const Graph& graph, const Plan& plan, const Timeline& timeline);

/// Storages of one layer, or of all, that meet one fate; one that meets several is in a row of
/// each.
struct OutcomeRow {
  std::string layer;  ///< empty: of all
  Fate fate = Fate::kKept;
  int storages = 0, made_once = 0;  ///< made_once: of them, whose node may run only once
  int64_t bytes = 0;
  double copied_s = 0, waited_s = 0, again_s = 0, packed_s = 0, round_trip_s = 0, make_again_s = 0;
};
/// One for each fate, none left out.
std::vector<OutcomeRow> rows_by_fate(const PlanOutcome& outcome, const Graph& graph);
/// In the order in which layers first run, those that occur.
std::vector<OutcomeRow> rows_by_layer(const PlanOutcome& outcome, const Graph& graph);

/// Why, in the graph's own figures: "again 2.1 ms < copies 8 ms".
std::string why(const OutcomeRow& row);

/// "without loss", "off by up to 0.0625 of a block's largest".
std::string error_in_words(const Codec& codec);

/// "85 µs", "2.14 ms", "1.3 s".
std::string format_seconds(double seconds);

/// {"decisions": [row], "layers": [row], "packed": [{"codec", "error", ...}], "algorithms": {...},
/// "step": {"once_s",
/// ..., "predicted_s"}, bytes moved}.
nlohmann::ordered_json to_json(const PlanOutcome& outcome, const Graph& graph);

}  // namespace dovetail::plan
