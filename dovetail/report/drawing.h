#pragma once

#include <fmt/format.h>

#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/report/page.h"

namespace dovetail::report {

/// Map from the values of one axis to its length, with the values that get a mark.
class Scale {
 public:
  Scale() = default;  ///< linear, from 0 to 1
  /// Linear from `low` to `high`. A range without width is widened around its value.
  static Scale linear(double low, double high);
  /// Linear with a margin beyond the values on both sides. 0 stays an end if all values are on one
  /// side of it and reach near it.
  static Scale around(double low, double high);
  /// Logarithmic; `low` must be above 0.
  static Scale logarithmic(double low, double high);
  /// asinh(value / unit): about linear from -unit to unit and logarithmic beyond. `unit` must be
  /// above 0.
  static Scale robust(double low, double high, double unit);
  /// `around` or, if the largest value is more than 50 times the smallest and all are above 0,
  /// `logarithmic`. Values that are not finite do not count. At least one must be finite.
  static Scale of(const std::vector<double>& values);

  /// Returns 0 for the low end of the axis and 1 for the high end.
  double at(double value) const;
  /// Returns about `count` round values on the axis, ascending.
  std::vector<double> marks(int count) const;
  bool is_logarithmic() const { return kind_ == Kind::kLogarithmic; }
  double low() const { return low_; }
  double high() const { return high_; }

 private:
  enum class Kind { kLinear, kLogarithmic, kRobust };
  double warped(double value) const;
  std::vector<double> powers(double smallest) const;

  Kind kind_ = Kind::kLinear;
  double low_ = 0, high_ = 1, unit_ = 1;
};

/// Returns the texts of marks, with as few digits as tell them apart: "2.24594e14", "0.5".
std::vector<std::string> mark_texts(const std::vector<double>& marks);

/// Returns a number with `digits` significant digits at most, without "+" and zeros in an exponent:
/// "2.246e14", "1234", "0.05". Numbers that are not finite: "none".
std::string short_number(double value, int digits = 4);

/// Horizontal or vertical axis of a Drawing.
struct Axis {
  Scale scale = {};
  std::string label = {};
  double unit = 1;  ///< marks show values divided by this number
  int marks = 6;    ///< wanted number of marks; 0: an axis without marks
};

/// Pixels that a text of a drawing occupies at most, at the 12 pixels of the style sheet.
double text_width(const std::string& text);
/// Returns `text`, cut to `length` characters, with an ellipsis if anything was cut.
std::string shortened(const std::string& text, size_t length);

/// Picture with two axes in the colours of the style sheet, as an SVG element. Coordinates are in
/// the values of the axes. No mark or label leaves the picture.
class Drawing {
 public:
  /// `left` is the least space left of the axes, in pixels. The labels of the y axis may need more.
  Drawing(double width, double height, Axis x, Axis y, double left = 66);

  double x(double value) const;
  double y(double value) const;
  double left() const { return left_; }
  double right() const { return width_ - kRight; }
  double bottom() const { return height_ - kBottom; }

  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(body_), format, std::forward<Args>(args)...);
  }
  /// Adds a text at a pixel. `anchor` is "start", "middle" or "end".
  void text(double px, double py, const char* anchor, const std::string& words);
  /// Adds a line through points (x, y). Points that are not finite interrupt it.
  void line(const std::vector<std::pair<double, double>>& points, const std::string& style);
  /// Adds a line of steps: each value holds until the next point.
  void steps(const std::vector<std::pair<double, double>>& points, const std::string& style);
  std::string svg() const;

  static constexpr double kRight = 14, kTop = 22, kBottom = 34;

 private:
  void draw_axes();

  double width_, height_, left_;
  Axis x_, y_;
  std::string body_;
};

/// Line of a chart: values by x = `first`, `first` + 1 and so on.
struct Series {
  std::string name, colour;
  std::vector<double> values;
};
/// Draws lines over a whole-numbered x axis. Values that are not finite are gaps. Returns an empty
/// string if no series has two values.
std::string series_chart(const std::string& x_label, const std::string& y_label,
                         const std::vector<Series>& series);

/// Bar of a chart.
struct Bar {
  std::string name, colour, tooltip;
  double value;
};
/// Draws vertical bars in the given order. Names are drawn if there is room for all.
std::string bar_chart(const std::string& x_label, const std::string& y_label,
                      const std::vector<Bar>& bars);

}  // namespace dovetail::report
