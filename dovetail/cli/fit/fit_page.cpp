#include "dovetail/cli/fit/fit_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "dovetail/cli/fit/cluster_charts.h"
#include "dovetail/cli/fit/table_options.h"
#include "dovetail/report/drawing.h"

namespace dovetail::cli {
namespace {

using Json = nlohmann::ordered_json;
using report::ChartWidth;

/// Time of an executor or node in a picture, as parts of `all_s`.
struct Lane {
  std::string words;
  double busy_s, copy_s, idle_s, all_s;
};

/// Returns one lane for each executor, or for each node that has no executors. Words are the
/// figures that the terminal shows, too.
std::vector<Lane> lanes_of(const Json& result) {
  std::vector<Lane> lanes;
  auto words = TableOptions::worker_figures(result);
  size_t next = 0;
  const auto take_words = [&] {
    const auto& [label, text] = words.at(next++);
    return label + ": " + text;
  };
  const auto add_executors = [&](const Json& of) {
    for (const Json& executor : of.value("executors", Json::array())) {
      const auto busy = executor.at("busy_s").get<double>(),
                 copy = executor.at("copy_s").get<double>(),
                 idle = executor.at("idle_s").get<double>();
      lanes.push_back({take_words(), busy - copy, copy, idle, busy + idle});
    }
  };
  add_executors(result);
  const Json nodes = result.value("nodes", Json::array());
  double longest = 0;
  for (const Json& node : nodes) longest = std::max(longest, node.at("seconds").get<double>());
  for (const Json& node : nodes) {
    const std::string of_node = take_words();
    if (node.contains("executors")) {
      add_executors(node);
    } else {
      const auto busy = node.at("seconds").get<double>();
      lanes.push_back({of_node, busy, 0, longest - busy, longest});
    }
  }
  return lanes;
}

std::string lanes_chart(const std::vector<Lane>& lanes, bool of_nodes) {
  constexpr double kLane = 40, kBar = 16, kPercent = 100;
  const char* label = of_nodes ? "% of the longest node's seconds" : "% of its threads' time";
  report::Drawing drawing(
      1110,
      report::Drawing::kTop + report::Drawing::kBottom + kLane * static_cast<double>(lanes.size()),
      {.scale = report::Scale::linear(0, kPercent), .label = label, .marks = 10}, {.marks = 0}, 14);
  double top = report::Drawing::kTop;
  for (const Lane& lane : lanes) {
    drawing.text(drawing.left() + 4, top + 14, "start", report::shortened(lane.words, 140));
    double from = 0;
    for (const auto& [seconds, colour, name] : {std::tuple(lane.busy_s, "var(--c0)", "computing"),
                                                std::tuple(lane.copy_s, "var(--c3)", "copying"),
                                                std::tuple(lane.idle_s, "var(--m5)", "idle")}) {
      if (seconds <= 0 || lane.all_s <= 0) continue;
      const double until = from + kPercent * seconds / lane.all_s;
      drawing.add(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\"><title>{} "
          "{:.4g} s</title></rect>",
          drawing.x(from), top + 19, drawing.x(until) - drawing.x(from), kBar, colour, name,
          seconds);
      from = until;
    }
    top += kLane;
  }
  return drawing.svg();
}

/// Returns the share of each executor by iteration, and the seconds by which they ended apart.
std::vector<std::string> schedule_charts(const Json& result, const std::vector<Json>& lines) {
  if (lines.empty() || !lines[0].contains("executor_rows")) return {};
  const Json& executors =
      result.contains("executors") ? result.at("executors") : result.at("nodes")[0].at("executors");
  std::vector<report::Series> shares;
  std::vector<report::LegendItem> legend;
  for (const Json& executor : executors) {
    const auto index = static_cast<int64_t>(shares.size());
    shares.push_back({executor.at("name"), cluster_colour(index), {}});
    if (shares.size() <= 6) legend.push_back({shares.back().colour, shares.back().name});
  }
  std::vector<double> apart_ms;
  for (const Json& line : lines) {
    const auto rows = line.at("executor_rows").get<std::vector<double>>();
    const double all = std::reduce(rows.begin(), rows.end());
    for (size_t i = 0; i < rows.size(); ++i) shares.at(i).values.push_back(100 * rows[i] / all);
    apart_ms.push_back(1e3 * line.at("apart_s").get<double>());
  }
  const std::string share = report::series_chart("iteration", "% of the rows", shares),
                    apart = report::series_chart("iteration", "ms",
                                                 {{"apart", "var(--c1)", std::move(apart_ms)}});
  std::vector<std::string> charts;
  if (!share.empty())
    charts.push_back(report::chart_box(ChartWidth::kHalf, "Rows of each executor", legend, share));
  if (!apart.empty())
    charts.push_back(report::chart_box(
        ChartWidth::kHalf, "Time between the first executor that ended and the last", {}, apart));
  return charts;
}

}  // namespace

report::Tile number_tile(const std::string& label, double value) {
  const std::string text = report::short_number(value), exact = report::short_number(value, 12);
  return {.label = label, .value = text, .note = exact == text ? "" : exact};
}

std::string charts_html(const std::vector<std::string>& charts) {
  std::string html = "<div class=\"charts\">\n";
  for (const std::string& chart : charts) html += chart;
  return html + "</div>\n";
}

std::string iterations_chart(const std::string& measure, const std::vector<double>& values) {
  const std::string chart =
      report::series_chart("iteration", measure, {{measure, "var(--c0)", values}});
  return chart.empty()
             ? ""
             : report::chart_box(ChartWidth::kHalf, "By iteration: " + measure, {}, chart);
}

std::vector<PageSection> worker_sections(const Json& result, const std::vector<Json>& lines) {
  const std::vector<Lane> lanes = lanes_of(result);
  if (lanes.empty()) return {};
  const bool of_nodes =
      !result.contains("executors") && !result.at("nodes")[0].contains("executors");
  std::vector<std::string> charts = {report::chart_box(
      ChartWidth::kFull, of_nodes ? "Time of each node" : "Time of each executor",
      {{"var(--c0)", "computing"}, {"var(--c3)", "copying"}, {"var(--m5)", "idle"}},
      lanes_chart(lanes, of_nodes))};
  for (std::string& chart : schedule_charts(result, lines)) charts.push_back(std::move(chart));
  return {{of_nodes ? "Nodes" : "Executors", charts_html(charts)}};
}

std::string fit_page(const FitPage& page) {
  std::string html = report::page_head(page.title);
  html += fmt::format(
      "<header><div>\n<div class=\"brand\"><b>Dovetail</b> {} report</div>\n<h1>{}</h1>\n"
      "<p class=\"verdict\">{}</p>\n<p class=\"where\">{}</p>\n</div></header>\n",
      report::escape_html(page.algorithm), report::escape_html(page.title),
      report::escape_html(page.verdict), report::escape_html(page.where));
  html += report::tiles_html(page.tiles);
  for (const PageSection& section : page.sections)
    html += fmt::format("<h2>{}</h2>\n{}", report::escape_html(section.heading), section.html);
  html += fmt::format("<h2>Reproduce</h2>\n<div class=\"command\"><pre>{}</pre></div>\n",
                      report::escape_html(page.command));
  return html + "</main>\n</body>\n</html>\n";
}

}  // namespace dovetail::cli
