#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dovetail::report {

/// Style sheet and script of report.html, the page about a training run. Pages embed them, so that
/// they need no other file.
extern const std::string_view kReportStyle;
extern const std::string_view kReportScript;

/// Returns the beginning of an HTML page, up to the open `<main>` element. It includes the style
/// sheet. The caller appends the content, then closes `main`, `body` and `html`.
std::string page_head(const std::string& title);

/// Returns `text` with special characters escaped, for use in an HTML element or attribute.
std::string escape_html(const std::string& text);

/// Card with one figure: a label, its value and a remark in small print.
struct Tile {
  std::string label, value, note = {};
};
/// Returns a row of cards. A value of more than eight characters is smaller and may wrap, so that
/// each value fits its card.
std::string tiles_html(const std::vector<Tile>& tiles);

/// Entry of a chart's legend: a colour and the words for it.
struct LegendItem {
  std::string colour, words;
};
/// Size of a chart: half the page's width, or all of it.
enum class ChartWidth { kHalf, kFull };
/// Returns a box with a title, a legend and the chart `body`, which is HTML such as an SVG element.
std::string chart_box(ChartWidth width, const std::string& title,
                      const std::vector<LegendItem>& legend, const std::string& body);

}  // namespace dovetail::report
