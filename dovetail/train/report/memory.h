#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace dovetail::train {

/// Drawings of memory_plan.json for the report, as SVG. Colours are variables of the page's style
/// sheet.

/// Draws bytes over one step: simulated bytes stacked by purpose, measured bytes, bytes with all
/// tensors kept, and the budget.
std::string memory_chart(const nlohmann::ordered_json& record);

/// Draws when the step computes and copies, simulated and measured. The time axis is the same as in
/// memory_chart.
std::string streams_chart(const nlohmann::ordered_json& record);

/// Draws seconds per step against the budget. The requested budget is marked.
std::string curve_chart(const nlohmann::ordered_json& record);

/// Returns the style sheet's colour of a purpose: "var(--m0)".
std::string purpose_colour(size_t purpose);

}  // namespace dovetail::train
