#include "dovetail/cli/plan/plan_output.h"

#include <fmt/format.h>

#include "dovetail/cli/parse/output.h"

namespace dovetail::cli {
namespace {

using plan::format_seconds;

std::string rate(double bytes_per_s) { return fmt::format("{:.2f} GB/s", bytes_per_s / 1e9); }

std::string cost_of(const plan::OutcomeRow& row, const plan::PlanOutcome& outcome,
                    const plan::Graph& graph) {
  if (row.storages == 0) return "-";
  switch (row.fate) {
    case plan::Fate::kKept:
      return "-";
    case plan::Fate::kOffloaded:
      return fmt::format("{} waiting, {} computing slower during {} of copies ({} out, {} in)",
                         format_seconds(outcome.waited_s), format_seconds(outcome.behind_s),
                         format_seconds(row.copied_s), rate(graph.bandwidth.to_host),
                         rate(graph.bandwidth.to_device));
    case plan::Fate::kOnHost:
      return "no copies";
    case plan::Fate::kRecomputed:
      return format_seconds(outcome.again_s);
    case plan::Fate::kCompressed:
      return format_seconds(outcome.packed_s);
  }
  return "";
}

}  // namespace

std::string mib(int64_t bytes) {
  return fmt::format("{:.1f}", static_cast<double>(bytes) / (1 << 20));
}

std::string decision_table(const plan::PlanOutcome& outcome, const plan::Graph& graph) {
  std::vector<std::vector<std::string>> rows = {{"decision", "storages", "MiB", "cost in time"}};
  for (const plan::OutcomeRow& row : rows_by_fate(outcome, graph))
    rows.push_back({std::string(plan::name(row.fate)), fmt::format("{}", row.storages),
                    mib(row.bytes), cost_of(row, outcome, graph)});
  if (outcome.algorithms_to_choose > 0)
    rows.push_back(
        {"algorithms changed",
         fmt::format("{} of {}", outcome.algorithms_changed, outcome.algorithms_to_choose),
         mib(outcome.workspace_saved_bytes),
         fmt::format("{} (MiB of workspace saved)", format_seconds(outcome.algorithms_s))});
  std::string text = format_table(rows, Heading::kFirstRow);
  for (const plan::PackedOutcome& packed : outcome.packed) {
    const plan::Codec& codec = graph.codecs[packed.codec];
    text += fmt::format("{}: {} MiB as {} MiB, {} ({} in, {} out)\n", codec.name, mib(packed.bytes),
                        mib(packed.packed_bytes), plan::error_in_words(codec),
                        rate(codec.encode_bytes_per_s), rate(codec.decode_bytes_per_s));
  }
  return text;
}

std::string layer_table(const plan::PlanOutcome& outcome, const plan::Graph& graph) {
  std::vector<std::vector<std::string>> rows = {{"layer", "decision", "storages", "MiB", "why"}};
  std::string last;
  for (const plan::OutcomeRow& row : rows_by_layer(outcome, graph)) {
    rows.push_back({row.layer == last ? "" : row.layer, std::string(plan::name(row.fate)),
                    fmt::format("{}", row.storages), mib(row.bytes), plan::why(row)});
    last = row.layer;
  }
  return format_table(rows, Heading::kFirstRow);
}

std::string curve_table(const std::vector<plan::TradeOff>& curve, int64_t keep_all_bytes,
                        double once_s) {
  std::vector<std::vector<std::string>> rows = {
      {"budget", "of all kept", "step", "of each operation once"}};
  for (const plan::TradeOff& point : curve)
    rows.push_back({mib(point.budget_bytes) + " MiB",
                    fmt::format("{:.2f}x", static_cast<double>(point.budget_bytes) /
                                               static_cast<double>(keep_all_bytes)),
                    format_seconds(point.expected_s),
                    fmt::format("{:.3f}x", point.expected_s / once_s)});
  return format_table(rows, Heading::kFirstRow);
}

}  // namespace dovetail::cli
