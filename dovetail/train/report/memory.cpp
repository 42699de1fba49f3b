#include "dovetail/train/report/memory.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "dovetail/base/error.h"
#include "dovetail/train/report/run_files.h"

namespace dovetail::train {
namespace {

using Json = nlohmann::ordered_json;

std::string mib(const Json& bytes) {
  return bytes.is_number() ? fmt::format("{:.1f} MiB", bytes.get<double>() / (1 << 20)) : "";
}
std::string ms(const Json& seconds) {
  return seconds.is_number() ? fmt::format("{:.4g} ms", 1e3 * seconds.get<double>()) : "";
}

/// Returns the difference of `measured` from `predicted`: "+1.9 %".
std::string difference(const Json& predicted, const Json& measured) {
  if (!predicted.is_number() || !measured.is_number() || predicted.get<double>() <= 0) return "";
  return fmt::format("{:+.1f} %", 100 * (measured.get<double>() / predicted.get<double>() - 1));
}

Json predicted_and_measured(const Json& record) {
  const Json &step = record.at("step"), &peak = record.at("peak");
  Json rows = Json::array();
  if (record.contains("process")) {
    const Json& process = record.at("process");
    rows.push_back({"process", "", mib(process.at("predicted_bytes")),
                    mib(process.at("measured_bytes")),
                    difference(process.at("predicted_bytes"), process.at("measured_bytes"))});
  }
  for (Json row :
       Json{{"step", ms(step.at("keep_all_s")), ms(step.at("predicted_s")),
             ms(step.at("measured_s")), difference(step.at("predicted_s"), step.at("measured_s"))},
            {"peak", mib(peak.at("keep_all_bytes")), mib(peak.at("predicted_bytes")),
             mib(peak.at("measured_bytes")),
             difference(peak.at("predicted_bytes"), peak.at("measured_bytes"))},
            {"all places", "", mib(peak.at("places_bytes")), mib(peak.at("used_bytes")), ""},
            {"budget", "", mib(record.at("budget_bytes")), "", ""},
            {"floor", "", mib(record.at("floor_bytes")), "", ""}})
    rows.push_back(std::move(row));
  return rows;
}

/// Returns the step time that a technique costs.
std::string cost(const Json& row, const Json& step) {
  const std::string decision = row.at("decision");
  if (row.at("storages") == 0 || decision == "kept") return "";
  if (decision == "updated on the host") return "no copies";
  if (decision == "recomputed") return ms(step.at("again_s"));
  if (decision == "compressed") return ms(step.at("packed_s"));
  return fmt::format("{} waiting, {} computing slower", ms(step.at("waited_s")),
                     ms(step.at("behind_s")));
}

Json decision_rows(const Json& record) {
  Json rows = Json::array();
  for (const Json& row : record.at("decisions"))
    rows.push_back({row.at("decision"), row.at("storages").dump(), mib(row.at("bytes")),
                    cost(row, record.at("step"))});
  for (const Json& packed : record.at("packed"))
    rows.push_back(
        {packed.at("codec"), packed.at("times").dump(),
         fmt::format("{} as {}", mib(packed.at("bytes")), mib(packed.at("packed_bytes"))),
         packed.at("error")});
  const Json& algorithms = record.at("algorithms");
  if (algorithms.at("to_choose") != 0)
    rows.push_back({"algorithms changed",
                    fmt::format("{} of {}", algorithms.at("changed").dump(),
                                algorithms.at("to_choose").dump()),
                    mib(algorithms.at("workspace_saved_bytes")), ms(algorithms.at("cost_s"))});
  return rows;
}

Json layer_rows(const Json& record) {
  Json rows = Json::array();
  for (const Json& row : record.at("layers"))
    rows.push_back({row.at("layer"), row.at("decision"), row.at("storages").dump(),
                    mib(row.at("bytes")), row.at("why")});
  return rows;
}

std::string in_words(const Json& record) {
  const Json &step = record.at("step"), &peak = record.at("peak");
  std::string text = fmt::format(
      "A step within {} of the {} that it takes with everything kept. Its plan was expected to "
      "take {}",
      mib(record.at("budget_bytes")), mib(peak.at("keep_all_bytes")), ms(step.at("predicted_s")));
  if (step.at("measured_s").is_number())
    text += fmt::format(" and took {}", ms(step.at("measured_s")));
  return text + fmt::format("; with everything kept {}.", ms(step.at("keep_all_s")));
}

}  // namespace

Json make_memory(const RunFiles& run) {
  const Json& record = run.memory_plan;
  if (record.is_null()) return nullptr;
  try {
    Json legend = Json::array();
    for (size_t p = 0; p < record.at("memory").at("purposes").size(); ++p)
      legend.push_back(
          {{"words", record.at("memory").at("purposes").at(p)}, {"colour", purpose_colour(p)}});
    legend.push_back({{"words", "measured"}, {"colour", "var(--ink)"}});
    legend.push_back({{"words", "everything kept"}, {"colour", "var(--soft)"}});
    legend.push_back({{"words", "budget"}, {"colour", "var(--bad)"}});
    return {{"words", in_words(record)},          {"legend", legend},
            {"chart", memory_chart(record)},      {"streams", streams_chart(record)},
            {"curve", curve_chart(record)},       {"compared", predicted_and_measured(record)},
            {"decisions", decision_rows(record)}, {"layers", layer_rows(record)}};
  } catch (const Json::exception& error) {
    throw UserError(fmt::format("{}: {}", (run.folder / "memory_plan.json").string(), error.what()),
                    "the file is damaged, or of another version of Dovetail");
  }
}

}  // namespace dovetail::train
