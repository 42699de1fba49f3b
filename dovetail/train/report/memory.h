#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace dovetail {

/// Drawings of memory_plan.json for the page, as SVG: colours are variables of its style sheet.

/// Bytes over one step: simulated by purpose, stacked; measured; with everything kept; the budget.
std::string memory_chart(const nlohmann::ordered_json& record);

/// What computes and copies when, as simulated and as measured, over the same time as memory_chart.
std::string streams_chart(const nlohmann::ordered_json& record);

/// Seconds of a step against its budget, the one that was asked for marked.
std::string curve_chart(const nlohmann::ordered_json& record);

/// The style sheet's colour of a purpose: "var(--m0)".
std::string purpose_colour(size_t purpose);

}  // namespace dovetail
