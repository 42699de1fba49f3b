#pragma once

#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dovetail/train/config/run_config.h"

namespace dovetail {

/// The files of a run that its report is made from (docs/training.md).
struct RunFiles {
  std::filesystem::path folder;
  RunConfig config;
  std::string config_text;
  std::vector<nlohmann::ordered_json> metrics, timings, quantization, experts,
      balance;                                           ///< lines, by rising step
  nlohmann::ordered_json machine, samples, memory_plan;  ///< null when absent
};

/// Throws UserError naming file and line of what cannot be read.
RunFiles read_run(const std::filesystem::path& folder);

constexpr double kNaN =
    std::numeric_limits<double>::quiet_NaN();  ///< value of a figure that is not known

/// Number under `key` of a line of metrics; NaN if it is absent or null.
double number_of(const nlohmann::ordered_json& line, const char* key);

/// The value at a path of keys, or null.
nlohmann::ordered_json value_at(const nlohmann::ordered_json& json,
                                std::initializer_list<const char*> keys);

/// The charts of the page: [{title, format, scale, series: [{name, style, points: [[step, tokens,
/// hours, value],
/// ...]}]}].
nlohmann::ordered_json make_charts(const RunFiles& run);

/// Of experts.jsonl what charts show of all layers together: {"step", "most": the largest load,
/// "dropped": the largest share, "entropy": the least, "bytes_sent" and "waited_s" of a step and
/// rank}.
std::vector<nlohmann::ordered_json> experts_by_step(const RunFiles& run);

/// {"first", "last" step, "layers": [{"layer", "map": SVG of the load of each expert over time,
/// "plan"}], "bands":
/// [{"colour", "words"}]}; null without experts.
nlohmann::ordered_json make_experts(const RunFiles& run);

/// Of a run with a memory plan {"words", "legend": [{"words", "colour"}], "chart", "streams",
/// "curve": SVG, "compared", "decisions", "layers": rows of tables}; null without. UserError where
/// memory_plan.json is not as `train` writes it.
nlohmann::ordered_json make_memory(const RunFiles& run);

}  // namespace dovetail
