#pragma once

#include <string>
#include <utility>
#include <vector>

namespace dovetail::report {

struct LineChart {
  struct Line {
    std::string name;
    std::vector<std::pair<double, double>> points;  ///< x rising, both above zero
  };
  std::string title, subtitle, x_label, y_label;
  std::vector<Line> lines;
};

/// The chart as an SVG document of 760 x 460, both axes logarithmic: a power of two at each mark of
/// x, of ten at each of y. InternalError without a point, or with one that is not above zero.
std::string line_chart_svg(const LineChart& chart);

}  // namespace dovetail::report
