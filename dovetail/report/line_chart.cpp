#include "dovetail/report/line_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "dovetail/base/error.h"

namespace dovetail::report {
namespace {

constexpr double kChartWidth = 760, kChartHeight = 460, kChartLeft = 80, kChartRight = 150,
                 kChartTop = 64, kChartBottom = 56;
constexpr std::array<const char*, 6> kColors = {"#0072b2", "#d55e00", "#009e73",
                                                "#cc79a7", "#56b4e9", "#e69f00"};

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text)
    result += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  return result;
}

/// Logarithmic axis from one integer power of `base` to another, mapped to [from, to].
struct PowerAxis {
  double base, from, to;
  int low, high;
  PowerAxis(double base, double smallest, double largest, double from, double to)
      : base(base),
        from(from),
        to(to),
        low(static_cast<int>(std::floor(std::log(smallest) / std::log(base) + 1e-9))),
        high(std::max(low + 1,
                      static_cast<int>(std::ceil(std::log(largest) / std::log(base) - 1e-9)))) {}
  double at(double value) const {
    return from + (to - from) * (std::log(value) / std::log(base) - low) / (high - low);
  }
};

void add_text(std::string& svg, double x, double y, const char* anchor, const std::string& text,
              int size = 12) {
  fmt::format_to(std::back_inserter(svg),
                 R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}" font-size="{}">{}</text>)", x, y,
                 anchor, size, escaped(text));
  svg += '\n';
}

void add_rule(std::string& svg, double x1, double y1, double x2, double y2) {
  fmt::format_to(std::back_inserter(svg),
                 R"(<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" stroke="#ddd"/>)", x1, y1,
                 x2, y2);
  svg += '\n';
}

void add_line(std::string& svg, const LineChart::Line& line, const char* color, const PowerAxis& x,
              const PowerAxis& y) {
  std::string points;
  for (const auto& [px, py] : line.points)
    fmt::format_to(std::back_inserter(points), "{:.1f},{:.1f} ", x.at(px), y.at(py));
  fmt::format_to(std::back_inserter(svg),
                 R"(<polyline points="{}" fill="none" stroke="{}" stroke-width="2"/>)", points,
                 color);
  svg += '\n';
}

}  // namespace

std::string line_chart_svg(const LineChart& chart) {
  double x_low = 1e300, x_high = 0, y_low = 1e300, y_high = 0;
  for (const auto& line : chart.lines)
    for (const auto& [x, y] : line.points) {
      DOVETAIL_CHECK(x > 0 && y > 0, "a point ({}, {}) on logarithmic axes", x, y);
      x_low = std::min(x_low, x), x_high = std::max(x_high, x), y_low = std::min(y_low, y),
      y_high = std::max(y_high, y);
    }
  DOVETAIL_CHECK(x_high > 0, "a chart without points");
  const PowerAxis x(2, x_low, x_high, kChartLeft, kChartWidth - kChartRight),
      y(10, y_low, y_high, kChartHeight - kChartBottom, kChartTop);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" font-family=\"sans-serif\">\n<rect width=\"{0}\" height=\"{1}\" "
      "fill=\"white\"/>\n",
      kChartWidth, kChartHeight);
  add_text(svg, kChartLeft, 24, "start", chart.title, 16);
  add_text(svg, kChartLeft, 44, "start", chart.subtitle);
  for (int i = x.low; i <= x.high; ++i) {
    const double at = x.at(std::pow(2.0, i));
    add_rule(svg, at, y.from, at, y.to);
    add_text(svg, at, y.from + 18, "middle", fmt::format("{:g}", std::pow(2.0, i)));
  }
  for (int i = y.low; i <= y.high; ++i) {
    const double at = y.at(std::pow(10.0, i));
    add_rule(svg, x.from, at, x.to, at);
    add_text(svg, kChartLeft - 8, at + 4, "end", fmt::format("{:g}", std::pow(10.0, i)));
  }
  add_text(svg, (x.from + x.to) / 2, kChartHeight - 14, "middle", chart.x_label);
  add_text(svg, 12, kChartTop - 8, "start", chart.y_label);
  for (size_t i = 0; i < chart.lines.size(); ++i) {
    const char* color = kColors[i % kColors.size()];
    const auto& line = chart.lines[i];
    if (line.points.empty()) continue;
    add_line(svg, line, color, x, y);
    const double key = kChartTop + 20.0 * static_cast<double>(i);
    fmt::format_to(std::back_inserter(svg),
                   R"(<rect x="{:.1f}" y="{:.1f}" width="14" height="4" fill="{}"/>)",
                   kChartWidth - kChartRight + 14, key - 4, color);
    svg += '\n';
    add_text(svg, kChartWidth - kChartRight + 34, key + 2, "start", line.name);
  }
  return svg + "</svg>\n";
}

}  // namespace dovetail::report
