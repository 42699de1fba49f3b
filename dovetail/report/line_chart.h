#pragma once

#include <string>
#include <utility>
#include <vector>

namespace dovetail::report {

/// Data of a line chart with logarithmic axes.
struct LineChart {
  struct Line {
    std::string name;
    std::vector<std::pair<double, double>> points;  ///< (x, y), x rising; x and y above zero
  };
  std::string title, subtitle, x_label, y_label;
  std::vector<Line> lines;
};

/// Returns the chart as an SVG document of 760 x 460 pixels. Both axes are logarithmic. The x axis
/// has a mark at each power of two, the y axis at each power of ten. Throws InternalError if the
/// chart has no point, or if a coordinate is not above zero.
std::string line_chart_svg(const LineChart& chart);

}  // namespace dovetail::report
