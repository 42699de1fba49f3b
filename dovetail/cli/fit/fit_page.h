#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

#include "dovetail/report/page.h"

namespace dovetail::cli {

/// Section of a page: a heading and HTML.
struct PageSection {
  std::string heading, html;
};

/// Content of report.html, the page about a clustering or another fit.
struct FitPage {
  /// `algorithm` is shown above the title. `verdict` is a summary in one sentence. `where` names
  /// the table's file and the CPU. `command` is a command line that repeats the fit.
  std::string title, algorithm, verdict, where, command;
  std::vector<report::Tile> tiles;
  std::vector<PageSection> sections;
};
/// Returns an HTML page that needs no other file.
std::string fit_page(const FitPage& page);

/// Returns HTML with `charts` side by side. Empty charts are left out.
std::string charts_html(const std::vector<std::string>& charts);

/// Returns a card: the number with four digits, and with twelve as remark.
report::Tile number_tile(const std::string& label, double value);

/// Returns a chart of `values` by iteration, with `measure` as title. Empty for fewer than two
/// values.
std::string iterations_chart(const std::string& measure, const std::vector<double>& values);

/// Returns the section about executors and nodes; empty if `result`, the output of --json, has
/// none. It shows share of the rows, alpha and times of each. `lines` are the lines of
/// iterations.jsonl; their shares and end times are drawn if they have them.
std::vector<PageSection> worker_sections(const nlohmann::ordered_json& result,
                                         const std::vector<nlohmann::ordered_json>& lines);

}  // namespace dovetail::cli
