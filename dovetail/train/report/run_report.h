#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace dovetail {

/// Write `report.html` into a run's folder from the files that lie there (docs/training.md): one
/// self-contained page, no network. Works while the run is still training; only config.toml and
/// metrics.jsonl must be there. Returns the page's path. Throws UserError when the folder is no
/// run's, or a line of one of its files cannot be read.
std::filesystem::path write_report(const std::filesystem::path& run_folder);

/// What the page shows: verdict, figures, curves (thinned), samples, config, machine, decisions,
/// commands. Keys in docs/reports.md.
nlohmann::ordered_json report_data(const std::filesystem::path& run_folder);

/// Which of the points of a curve to draw: all of at most `max_points`; of a longer curve the
/// lowest and the highest of each of max_points / 2 - 1 buckets of equal length, so that spikes
/// stay visible, and both ends. Ascending indices.
inline constexpr size_t kMaxPlotPoints = 4000;
std::vector<size_t> thin_out(const std::vector<double>& y, size_t max_points = kMaxPlotPoints);

}  // namespace dovetail
