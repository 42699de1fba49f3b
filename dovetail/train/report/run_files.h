#pragma once

#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dovetail/train/config/run_config.h"

namespace dovetail::train {

/// Files of a run from which its report is made (docs/training.md).
struct RunFiles {
  std::filesystem::path folder;
  RunConfig config;
  std::string config_text;  ///< content of config.toml, from which `config` is parsed
  /// Lines of metrics.jsonl, timings.jsonl and so on, by rising step; empty if the file is absent.
  std::vector<nlohmann::ordered_json> metrics, timings, quantization, experts, balance;
  /// Content of machine.json, samples.json and memory_plan.json; null if the file is absent.
  nlohmann::ordered_json machine, samples, memory_plan;
};

/// Reads the files of a run's folder. config.toml and metrics.jsonl must exist. Throws UserError
/// with file and line if a file cannot be read.
RunFiles read_run(const std::filesystem::path& folder);

/// Stands for an unknown number in the report.
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// Returns the number under `key` in a line of a .jsonl file; NaN if it is absent or null.
double number_of(const nlohmann::ordered_json& line, const char* key);

/// Returns the value json[key1][key2]... for `keys`, or null if it does not exist.
nlohmann::ordered_json value_at(const nlohmann::ordered_json& json,
                                std::initializer_list<const char*> keys);

/// Returns the line charts of the report, as an array of
/// {title, format, scale, series: [{name, style, points: [[step, tokens, hours, value], ...]}]}.
nlohmann::ordered_json make_charts(const RunFiles& run);

/// Returns an object for each line of experts.jsonl. Values are over all layers
/// (ExpertLoad::statistics):
///
/// - "step"
/// - "most": largest load of an expert in any layer
/// - "dropped": largest share of dropped choices in any layer
/// - "entropy": smallest entropy of any layer
/// - "bytes_sent" and "waited_s": means per step and rank, only if the line has all-to-all traffic
std::vector<nlohmann::ordered_json> experts_by_step(const RunFiles& run);

/// Returns the data of the report's section about experts; null without experts. Keys: "first" and
/// "last" (steps), "layers": [{"layer", "map", "plan"}], "bands": [{"colour", "words"}]. "map" is
/// an SVG of the load of each expert over time. "plan" describes the layer's ExpertLayout, "bands"
/// the colours of loads in a map.
nlohmann::ordered_json make_experts(const RunFiles& run);

/// Returns the data of the report's section about the memory plan; null without one. Keys: "words"
/// (a summary), "legend": [{"words", "colour"}], "chart", "streams" and "curve" (SVG,
/// report/memory.h). The keys "compared" (predicted and measured values), "decisions" and "layers"
/// have the rows of tables. Throws UserError if memory_plan.json is not in the format that `train`
/// writes.
nlohmann::ordered_json make_memory(const RunFiles& run);

}  // namespace dovetail::train
