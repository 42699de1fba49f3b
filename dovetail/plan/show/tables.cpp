#include "dovetail/plan/show/tables.h"

#include <fmt/format.h>
#include "dovetail/base/table.h"

namespace dovetail::plan {
namespace {

std::string rate(double bytes_per_s) { return fmt::format("{:.2f} GB/s", bytes_per_s / 1e9); }

std::string cost_of(const OutcomeRow& row, const PlanOutcome& outcome, const Graph& graph) {
  if (row.storages == 0) return "-";
  switch (row.fate) {
    case Fate::kKept:
      return "-";
    case Fate::kOffloaded:
      return fmt::format("{} waiting, {} computing slower during {} of copies ({} out, {} in)",
                         format_seconds(outcome.waited_s), format_seconds(outcome.behind_s),
                         format_seconds(row.copied_s), rate(graph.bandwidth.to_host),
                         rate(graph.bandwidth.to_device));
    case Fate::kOnHost:
      return "no copies";
    case Fate::kRecomputed:
      return format_seconds(outcome.again_s);
    case Fate::kCompressed:
      return format_seconds(outcome.packed_s);
  }
  return "";
}

}  // namespace

std::string mib(int64_t bytes) {
  return fmt::format("{:.1f}", static_cast<double>(bytes) / (1 << 20));
}

std::string decision_table(const PlanOutcome& outcome, const Graph& graph) {
  std::vector<std::vector<std::string>> rows = {{"decision", "storages", "MiB", "cost in time"}};
  for (const OutcomeRow& row : rows_by_fate(outcome, graph))
    rows.push_back({std::string(name(row.fate)), fmt::format("{}", row.storages), mib(row.bytes),
                    cost_of(row, outcome, graph)});
  if (outcome.algorithms_to_choose > 0)
    rows.push_back(
        {"algorithms changed",
         fmt::format("{} of {}", outcome.algorithms_changed, outcome.algorithms_to_choose),
         mib(outcome.workspace_saved_bytes),
         fmt::format("{} (MiB of workspace saved)", format_seconds(outcome.algorithms_s))});
  std::string text = format_table(rows, Heading::kFirstRow);
  for (const PackedOutcome& packed : outcome.packed) {
    const Codec& codec = graph.codecs[packed.codec];
    text += fmt::format("{}: {} MiB as {} MiB, {} ({} in, {} out)\n", codec.name, mib(packed.bytes),
                        mib(packed.packed_bytes), error_in_words(codec),
                        rate(codec.encode_bytes_per_s), rate(codec.decode_bytes_per_s));
  }
  return text;
}

std::string layer_table(const PlanOutcome& outcome, const Graph& graph) {
  std::vector<std::vector<std::string>> rows = {{"layer", "decision", "storages", "MiB", "why"}};
  std::string last;
  for (const OutcomeRow& row : rows_by_layer(outcome, graph)) {
    rows.push_back({row.layer == last ? "" : row.layer, std::string(name(row.fate)),
                    fmt::format("{}", row.storages), mib(row.bytes), why(row)});
    last = row.layer;
  }
  return format_table(rows, Heading::kFirstRow);
}

std::string curve_table(const std::vector<TradeOff>& curve, int64_t keep_all_bytes, double once_s) {
  std::vector<std::vector<std::string>> rows = {
      {"budget", "of all kept", "step", "of each operation once"}};
  for (const TradeOff& point : curve)
    rows.push_back({mib(point.budget_bytes) + " MiB",
                    fmt::format("{:.2f}x", static_cast<double>(point.budget_bytes) /
                                               static_cast<double>(keep_all_bytes)),
                    format_seconds(point.expected_s),
                    fmt::format("{:.3f}x", point.expected_s / once_s)});
  return format_table(rows, Heading::kFirstRow);
}

}  // namespace dovetail::plan
