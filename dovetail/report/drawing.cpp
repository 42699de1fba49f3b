#include "dovetail/report/drawing.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "dovetail/base/error.h"

namespace dovetail::report {
namespace {

constexpr double kCharacter = 7.6;  // pixels of a digit at 12 pixels, in the widest usual font

/// Returns 10^floor(log10(x)).
double power_below(double x) { return std::pow(10, std::floor(std::log10(x) + 1e-9)); }

/// Returns about `count` multiples of 1, 2 or 5 times a power of ten from low to high.
std::vector<double> round_values(double low, double high, int count) {
  const double raw = (high - low) / count, power = power_below(raw), share = raw / power;
  const double step = (share < 1.5 ? 1 : share < 3.5 ? 2 : share < 7.5 ? 5 : 10) * power;
  std::vector<double> marks;
  for (double i = std::ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i)
    marks.push_back(i == 0 ? 0 : i * step);
  return marks;
}

/// Removes "+" and leading zeros from the exponent of a number.
std::string with_short_exponent(std::string text) {
  const size_t e = text.find('e');
  if (e == std::string::npos) return text;
  size_t digit = e + 1;
  if (text[digit] == '+')
    text.erase(digit, 1);
  else
    ++digit;
  while (digit + 1 < text.size() && text[digit] == '0') text.erase(digit, 1);
  return text;
}

}  // namespace

Scale Scale::linear(double low, double high) {
  Scale scale;
  const double size = std::max(std::abs(low), std::abs(high));
  // Marks of a narrower range would be equal in ten digits.
  const double least = size == 0 ? 2 : high == low ? 0.2 * size : 1e-8 * size;
  if (high - low < least) {
    const double middle = low / 2 + high / 2;
    low = middle - least / 2;
    high = middle + least / 2;
  }
  scale.low_ = low;
  scale.high_ = high;
  return scale;
}

Scale Scale::around(double low, double high) {
  const double margin = 0.05 * (high - low);
  const bool from_zero = low >= 0 && low < 0.35 * high, to_zero = high <= 0 && high > 0.35 * low;
  return linear(from_zero ? 0 : low - margin, to_zero ? 0 : high + margin);
}

Scale Scale::logarithmic(double low, double high) {
  DOVETAIL_CHECK(low > 0, "a logarithmic axis from {}", low);
  Scale scale;
  const double margin = high > low ? std::pow(high / low, 0.05) : 2;
  scale.kind_ = Kind::kLogarithmic;
  scale.low_ = low / margin;
  scale.high_ = high * margin;
  return scale;
}

Scale Scale::robust(double low, double high, double unit) {
  DOVETAIL_CHECK(unit > 0 && low < high, "a robust axis from {} to {} in units of {}", low, high,
                 unit);
  Scale scale;
  scale.kind_ = Kind::kRobust;
  scale.unit_ = unit;
  const double from = std::asinh(low / unit), to = std::asinh(high / unit);
  scale.low_ = unit * std::sinh(from - 0.05 * (to - from));
  scale.high_ = unit * std::sinh(to + 0.05 * (to - from));
  return scale;
}

Scale Scale::of(const std::vector<double>& values) {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  DOVETAIL_CHECK(low <= high, "an axis of no value");
  return low > 0 && high > 50 * low ? logarithmic(low, high) : around(low, high);
}

double Scale::warped(double value) const {
  return kind_ == Kind::kLinear        ? value
         : kind_ == Kind::kLogarithmic ? std::log(value)
                                       : std::asinh(value / unit_);
}

double Scale::at(double value) const {
  return (warped(value) - warped(low_)) / (warped(high_) - warped(low_));
}

/// Returns the powers of ten from `smallest` to the larger end of the axis.
std::vector<double> Scale::powers(double smallest) const {
  std::vector<double> marks;
  const double most = std::max(std::abs(low_), std::abs(high_)) * (1 + 1e-9);
  for (double power = std::ceil(std::log10(smallest) - 1e-9); std::pow(10, power) <= most; ++power)
    marks.push_back(std::pow(10, power));
  return marks;
}

std::vector<double> Scale::marks(int count) const {
  if (kind_ == Kind::kLinear) return round_values(low_, high_, count);
  std::vector<double> candidates = powers(kind_ == Kind::kLogarithmic ? low_ : unit_);
  if (kind_ == Kind::kLogarithmic && candidates.size() < 3) {
    const double from = power_below(low_);
    candidates.clear();
    for (double power = from; power <= high_; power *= 10)
      for (const double digit : {1, 2, 5})
        if (digit * power >= low_ && digit * power <= high_) candidates.push_back(digit * power);
    if (candidates.size() < 3) candidates = round_values(low_, high_, count);
  }
  if (kind_ == Kind::kRobust) {
    const size_t positive = candidates.size();
    for (size_t i = 0; i < positive; ++i) candidates.push_back(-candidates[i]);
    candidates.insert(candidates.begin(), 0);
  }
  // Candidates are in the order of importance. A mark needs a distance from the others.
  std::vector<double> marks;
  const double gap = 0.6 / count;
  for (const double mark : candidates) {
    const bool free = std::ranges::all_of(
        marks, [&](double other) { return std::abs(at(mark) - at(other)) >= gap; });
    if (free && mark >= low_ && mark <= high_) marks.push_back(mark);
  }
  std::ranges::sort(marks);
  return marks;
}

std::string short_number(double value, int digits) {
  if (!std::isfinite(value)) return "none";
  // {:g} would write 123,456 as 1.235e5 with four digits.
  const double size = std::abs(value);
  const int whole = size >= 1 && size < 1e7 ? static_cast<int>(std::log10(size)) + 1 : 0;
  return with_short_exponent(fmt::format("{:.{}g}", value, std::max(digits, whole)));
}

std::vector<std::string> mark_texts(const std::vector<double>& marks) {
  std::vector<std::string> texts;
  for (int digits = 1; digits <= 12; ++digits) {
    texts.clear();
    double error = 0, gap = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < marks.size(); ++i) {
      texts.push_back(short_number(marks[i], digits));
      const double nearest = i > 0 ? std::abs(marks[i] - marks[i - 1])
                                   : (marks.size() > 1 ? std::abs(marks[1] - marks[0]) : 0);
      gap = std::min(gap, nearest);
      error = std::max(error, std::abs(std::strtod(texts.back().c_str(), nullptr) - marks[i]));
    }
    if (error <= 1e-3 * gap) break;
  }
  return texts;
}

double text_width(const std::string& text) {
  const auto characters = std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U; });
  return kCharacter * static_cast<double>(characters);
}

std::string shortened(const std::string& text, size_t length) {
  std::string cut;
  size_t characters = 0;
  for (const char c : text) {
    if ((static_cast<unsigned char>(c) & 0xc0U) != 0x80U && ++characters > length) {
      while (!cut.empty() && (static_cast<unsigned char>(cut.back()) & 0xc0U) == 0x80U)
        cut.pop_back();
      cut.pop_back();
      return cut + "…";
    }
    cut += c;
  }
  return cut;
}

Drawing::Drawing(double width, double height, Axis x, Axis y, double left)
    : width_(width), height_(height), left_(left), x_(std::move(x)), y_(std::move(y)) {
  draw_axes();
}

double Drawing::x(double value) const {
  return left_ + x_.scale.at(value) * (width_ - left_ - kRight);
}

double Drawing::y(double value) const { return bottom() - y_.scale.at(value) * (bottom() - kTop); }

void Drawing::text(double px, double py, const char* anchor, const std::string& words) {
  add("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>", px, py, anchor,
      escape_html(words));
}

void Drawing::draw_axes() {
  const auto texts_of = [](const Axis& axis, const std::vector<double>& marks) {
    std::vector<double> shown = marks;
    for (double& mark : shown) mark /= axis.unit;
    return mark_texts(shown);
  };
  const auto marks_of = [](const Axis& axis) {
    return axis.marks > 0 ? axis.scale.marks(axis.marks) : std::vector<double>();
  };
  const std::vector<double> rows = marks_of(y_);
  const std::vector<std::string> row_texts = texts_of(y_, rows);
  for (const std::string& words : row_texts) left_ = std::max(left_, text_width(words) + 14);
  for (size_t i = 0; i < rows.size(); ++i) {
    add("<line class=\"grid\" x1=\"{1:.1f}\" x2=\"{2:.1f}\" y1=\"{0:.1f}\" y2=\"{0:.1f}\"/>",
        y(rows[i]), left_, right());
    text(left_ - 8, y(rows[i]) + 4, "end", row_texts[i]);
  }
  const std::vector<double> columns = marks_of(x_);
  const std::vector<std::string> column_texts = texts_of(x_, columns);
  double free = 0;  // right end of the last text
  for (size_t i = 0; i < columns.size(); ++i) {
    const double at = x(columns[i]), half = text_width(column_texts[i]) / 2;
    add("<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2:.1f}\"/>", at, kTop,
        bottom());
    const double begin = std::min(at - half, width_ - 2 * half);
    if (begin < free) continue;
    free = begin + 2 * half + 6;
    text(begin + half, bottom() + 17, "middle", column_texts[i]);
  }
  add("<path class=\"grid\" fill=\"none\" d=\"M{0:.1f} {1}V{2:.1f}H{3:.1f}\"/>", left_, kTop,
      bottom(), right());
  const auto fitting = [&](const std::string& label) {
    return shortened(label, static_cast<size_t>((width_ - 20) / kCharacter));
  };
  if (!x_.label.empty()) text(right(), height_ - 3, "end", fitting(x_.label));
  if (!y_.label.empty()) text(4, 12, "start", fitting(y_.label));
}

void Drawing::line(const std::vector<std::pair<double, double>>& points, const std::string& style) {
  std::string path;
  bool drawn = false;
  for (const auto& [px, py] : points) {
    if (!std::isfinite(px) || !std::isfinite(py)) {
      drawn = false;
      continue;
    }
    fmt::format_to(std::back_inserter(path), "{}{:.1f} {:.1f}", drawn ? 'L' : 'M', x(px), y(py));
    drawn = true;
  }
  if (!path.empty()) add("<path fill=\"none\" {} d=\"{}\"/>", style, path);
}

void Drawing::steps(const std::vector<std::pair<double, double>>& points,
                    const std::string& style) {
  if (points.empty()) return;
  add("<path fill=\"none\" {} d=\"M{:.1f} {:.1f}", style, x(points[0].first), y(points[0].second));
  for (size_t i = 1; i < points.size(); ++i)
    add("H{:.1f}V{:.1f}", x(points[i].first), y(points[i].second));
  add("\"/>");
}

std::string Drawing::svg() const {
  return fmt::format("<svg class=\"plot\" viewBox=\"0 0 {} {}\" role=\"img\">{}</svg>", width_,
                     height_, body_);
}

std::string series_chart(const std::string& x_label, const std::string& y_label,
                         const std::vector<Series>& series) {
  size_t longest = 0;
  std::vector<double> all;
  for (const Series& one : series) {
    longest = std::max(longest, one.values.size());
    for (const double value : one.values)
      if (std::isfinite(value)) all.push_back(value);
  }
  if (longest < 2 || all.empty()) return "";
  const Scale y = Scale::of(all);
  Drawing drawing(
      540, 250,
      {.scale = Scale::linear(1, static_cast<double>(longest)),
       .label = x_label,
       .marks = std::min(6, static_cast<int>(longest) - 1)},
      {.scale = y, .label = y_label + (y.is_logarithmic() ? " (log scale)" : ""), .marks = 5});
  for (const Series& one : series) {
    std::vector<std::pair<double, double>> points;
    for (size_t i = 0; i < one.values.size(); ++i)
      points.emplace_back(static_cast<double>(i + 1), one.values[i]);
    drawing.line(points, fmt::format("stroke=\"{}\" stroke-width=\"1.8\"", one.colour));
  }
  return drawing.svg();
}

std::string bar_chart(const std::string& x_label, const std::string& y_label,
                      const std::vector<Bar>& bars) {
  double most = 0, least = std::numeric_limits<double>::infinity();
  for (const Bar& bar : bars) {
    most = std::max(most, bar.value);
    if (bar.value > 0) least = std::min(least, bar.value);
  }
  const bool log = most > 50 * least;
  const auto count = static_cast<double>(bars.size());
  double widest = 0;
  for (const Bar& bar : bars) widest = std::max(widest, text_width(bar.name) + 4);
  const bool named = widest * count <= 450;
  Drawing drawing(540, 250,
                  {.scale = Scale::linear(0, count), .label = x_label, .marks = named ? 0 : 6},
                  {.scale = log ? Scale::logarithmic(least / 1.5, most)
                                : Scale::linear(0, most > 0 ? 1.05 * most : 1),
                   .label = y_label + (log ? " (log scale)" : ""),
                   .marks = 5});
  for (size_t i = 0; i < bars.size(); ++i) {
    const auto place = static_cast<double>(i);
    const double left = drawing.x(place), width = drawing.x(place + 1) - left,
                 gap = width > 4 ? 0.12 * width : 0;
    const double top = bars[i].value > 0 ? drawing.y(bars[i].value) : drawing.bottom();
    drawing.add(
        "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" "
        "fill=\"{}\"><title>{}</title></rect>",
        left + gap, top, width - 2 * gap, drawing.bottom() - top, bars[i].colour,
        escape_html(bars[i].tooltip));
    if (named) drawing.text(left + width / 2, drawing.bottom() + 17, "middle", bars[i].name);
  }
  return drawing.svg();
}

}  // namespace dovetail::report
