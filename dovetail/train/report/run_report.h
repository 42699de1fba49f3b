#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace dovetail::train {

/// Writes `report.html` into a run's folder, from the files in it (docs/training.md). The page is
/// self-contained and needs no network. The run may still be training. Only config.toml and
/// metrics.jsonl must exist. Returns the page's path. Throws UserError if the folder is not a run's
/// folder, or if a line of its files cannot be read.
std::filesystem::path write_report(const std::filesystem::path& run_folder);

/// Returns the content of the report page: verdict, figures, curves (reduced by thin_out), samples,
/// config, machine, decisions, commands. Keys are in docs/reports.md.
nlohmann::ordered_json report_data(const std::filesystem::path& run_folder);

/// Maximum number of points of a curve in a report.
inline constexpr size_t kMaxPlotPoints = 4000;
/// Returns the indices of the points of curve `y` to be drawn, ascending. A curve of at most
/// `max_points` is drawn in full. A longer curve keeps both ends, and is cut into max_points / 2 -
/// 1 buckets of equal length. Each bucket keeps its minimum and maximum, so that spikes stay
/// visible.
std::vector<size_t> thin_out(const std::vector<double>& y, size_t max_points = kMaxPlotPoints);

}  // namespace dovetail::train
