#pragma once

#include <string>
#include <utility>
#include <vector>

namespace dovetail::report {

struct LineChart {
  struct Line {
    std::string name;
    std::vector<std::pair<double, double>> points;  ///< x rising; x and y above zero
  };
  std::string title, subtitle, x_label, y_label;
  std::vector<Line> lines;
};

/// Returns the chart as an SVG document of 760 x 460. Both axes are logarithmic, with a mark at
/// each power of two on x and of ten on y. Throws InternalError without a point, or if a coordinate
/// is not above zero.
std::string line_chart_svg(const LineChart& chart);

}  // namespace dovetail::report
