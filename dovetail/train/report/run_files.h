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
  std::string config_text;
  /// Lines of the files metrics.jsonl etc., by rising step.
  std::vector<nlohmann::ordered_json> metrics, timings, quantization, experts, balance;
  nlohmann::ordered_json machine, samples, memory_plan;  ///< null if the file is absent
};

/// Reads the files of a run. Throws UserError with file and line if one cannot be read.
RunFiles read_run(const std::filesystem::path& folder);

/// Value of a figure that is not known.
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// Returns the number under `key` in a line of metrics; NaN if it is absent or null.
double number_of(const nlohmann::ordered_json& line, const char* key);

/// Returns the value at a path of keys, or null.
nlohmann::ordered_json value_at(const nlohmann::ordered_json& json,
                                std::initializer_list<const char*> keys);

/// Returns the charts of the page, as an array of
/// {title, format, scale, series: [{name, style, points: [[step, tokens, hours, value], ...]}]}.
nlohmann::ordered_json make_charts(const RunFiles& run);

/// Returns an object for each line of experts.jsonl, over all layers together. Keys: "step", "most"
/// (largest load of an expert), "dropped" (largest share), "entropy" (smallest). "bytes_sent" and
/// "waited_s" are per step and rank; they exist if the line has all-to-all traffic.
std::vector<nlohmann::ordered_json> experts_by_step(const RunFiles& run);

/// Returns the report's section about experts; null without experts. Keys: "first" and "last"
/// (steps), "layers": [{"layer", "map", "plan"}], "bands": [{"colour", "words"}]. "map" is an SVG
/// of the load of each expert over time.
nlohmann::ordered_json make_experts(const RunFiles& run);

/// Returns the report's section about the memory plan; null without one. Keys: "words", "legend":
/// [{"words", "colour"}], "chart", "streams" and "curve" (SVG). Further keys: "compared",
/// "decisions" and "layers" (rows of tables). Throws UserError if memory_plan.json is not in the
/// format that `train` writes.
nlohmann::ordered_json make_memory(const RunFiles& run);

}  // namespace dovetail::train
