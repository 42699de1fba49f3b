#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace dovetail::train {

/// Drawings for a run's report, as SVG. `record` is the content of memory_plan.json
/// (docs/training.md). Colours are variables of the page's style sheet.

/// Draws the memory of one step over time. It shows simulated bytes stacked by purpose, measured
/// bytes, bytes with all tensors kept, and the budget. A purpose is a kind of tensor, such as
/// weights or activations.
std::string memory_chart(const nlohmann::ordered_json& record);

/// Draws the times at which the step computes and copies, simulated and measured. The time axis is
/// the same as in memory_chart.
std::string streams_chart(const nlohmann::ordered_json& record);

/// Draws the predicted seconds per step against the memory budget. The budget of the run is marked.
/// Returns an empty string if there are fewer than two budgets.
std::string curve_chart(const nlohmann::ordered_json& record);

/// Returns the colour of the purpose with this index in memory_chart, as a variable of the style
/// sheet. Example: "var(--m0)".
std::string purpose_colour(size_t purpose);

}  // namespace dovetail::train
