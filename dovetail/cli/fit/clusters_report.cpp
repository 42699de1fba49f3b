#include "dovetail/cli/fit/clusters_report.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "dovetail/base/machine.h"
#include "dovetail/report/page.h"

namespace dovetail::cli {
namespace {

constexpr double kWidth = 760, kHeight = 460, kLeft = 70, kRight = 16, kTop = 24, kBottom = 40;

/// Hues are a golden angle apart, so that consecutive clusters have very different colours.
std::string colour(int64_t cluster) {
  return fmt::format("hsl({:.0f} 62% 52%)",
                     std::fmod(210.0 + 137.508 * static_cast<double>(cluster), 360.0));
}

/// A drawing whose axes end at its outermost points.
class Plot {
 public:
  Plot(double x_low, double x_high, double y_low, double y_high) {
    const auto widen = [](double& low, double& high) {
      const double margin = high > low ? 0.04 * (high - low) : std::max(1.0, std::abs(low));
      low -= margin;
      high += margin;
    };
    widen(x_low, x_high);
    widen(y_low, y_high);
    x_low_ = x_low, x_scale_ = (kWidth - kLeft - kRight) / (x_high - x_low);
    y_low_ = y_low, y_scale_ = (kHeight - kTop - kBottom) / (y_high - y_low);
  }

  double x(double value) const { return kLeft + (value - x_low_) * x_scale_; }
  double y(double value) const { return kHeight - kBottom - (value - y_low_) * y_scale_; }

  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(body_), format, std::forward<Args>(args)...);
  }
  void text(double px, double py, const char* anchor, const std::string& words) {
    add("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>", px, py, anchor,
        report::escape_html(words));
  }
  void axes(const std::string& x_words, const std::string& y_words) {
    add("<path class=\"grid\" fill=\"none\" d=\"M{0} {1}V{2}H{3}\"/>", kLeft, kTop,
        kHeight - kBottom, kWidth - kRight);
    text(kWidth - kRight, kHeight - 8, "end", x_words);
    text(4, 14, "start", y_words);
  }
  std::string svg() const {
    return fmt::format("<svg class=\"plot\" viewBox=\"0 0 {} {}\" role=\"img\">{}</svg>", kWidth,
                       kHeight, body_);
  }

 private:
  double x_low_, x_scale_, y_low_, y_scale_;
  std::string body_;
};

/// Returns (N, 2) float64, contiguous.
at::Tensor project(const at::Tensor& x, const fit::PrincipalPlane& plane) {
  return (x.to(at::kDouble) - plane.mean).matmul(plane.directions).contiguous();
}

std::string scatter(const ClustersPage& page) {
  const at::Tensor points = project(page.sample, page.plane),
                   centres = project(page.centres, page.plane);
  const at::Tensor all = at::cat({points, centres});
  const auto low = std::get<0>(all.min(0)), high = std::get<0>(all.max(0));
  Plot plot(low[0].item<double>(), high[0].item<double>(), low[1].item<double>(),
            high[1].item<double>());
  const auto axis = [&](int i) {
    return fmt::format("component {} ({:.1f} % of the variance)", i + 1, 100 * page.plane.share[i]);
  };
  plot.axes(axis(0), axis(1));
  const auto* at = points.const_data_ptr<double>();
  const auto* label = page.labels.const_data_ptr<int32_t>();
  for (int64_t i = 0; i < points.size(0); ++i)
    plot.add("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.2\" fill=\"{}\" fill-opacity=\"0.7\"/>",
             plot.x(at[2 * i]), plot.y(at[2 * i + 1]), colour(label[i]));
  at = centres.const_data_ptr<double>();
  constexpr int64_t kNumbered = 64;
  for (int64_t c = 0; c < centres.size(0); ++c) {
    const double x = plot.x(at[2 * c]), y = plot.y(at[2 * c + 1]);
    plot.add(
        "<path d=\"M{:.1f} {:.1f}l10 10m0 -10l-10 10\" stroke=\"var(--ink)\" stroke-width=\"2\" "
        "fill=\"none\"/>",
        x - 5, y - 5);
    if (centres.size(0) <= kNumbered) plot.text(x + 8, y - 6, "start", std::to_string(c));
  }
  return plot.svg();
}

std::string curve(const std::string& measure, const std::vector<double>& values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  Plot plot(1, static_cast<double>(values.size()), *low, *high);
  plot.axes("iteration", measure);
  std::string path;
  for (size_t i = 0; i < values.size(); ++i)
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? 'M' : 'L',
                        plot.x(static_cast<double>(i + 1)), plot.y(values[i]));
  plot.add("<path fill=\"none\" stroke=\"var(--c0)\" stroke-width=\"1.8\" d=\"{}\"/>", path);
  for (const double value : {*low, *high})
    plot.text(kLeft - 8, plot.y(value) + 4, "end", fmt::format("{:.4g}", value));
  plot.text(plot.x(1), kHeight - kBottom + 18, "middle", "1");
  plot.text(plot.x(static_cast<double>(values.size())), kHeight - kBottom + 18, "middle",
            std::to_string(values.size()));
  return plot.svg();
}

std::string sizes_table(const at::Tensor& counts) {
  const auto* count = counts.const_data_ptr<int64_t>();
  const auto all = static_cast<double>(counts.sum().item<int64_t>());
  std::string html = "<table>\n<tr><th>cluster</th><th>rows</th><th>share</th></tr>\n";
  for (int64_t c = 0; c < counts.numel(); ++c)
    html += fmt::format(
        "<tr><td><span style=\"color:{}\">●</span> {}</td><td>{}</td><td>{:.2f} %</td></tr>\n",
        colour(c), c, format_grouped(count[c]), 100 * static_cast<double>(count[c]) / all);
  return html + "</table>\n";
}

std::string chart(const std::string& title, const std::string& body) {
  return fmt::format("<div class=\"chart wide\"><div class=\"top\"><h3>{}</h3></div>{}</div>\n",
                     report::escape_html(title), body);
}

}  // namespace

std::string clusters_page(const ClustersPage& page) {
  std::string html = report::page_head(page.title);
  html += fmt::format(
      "<header><div>\n<div class=\"brand\"><b>Dovetail</b> {} report</div>\n<h1>{}</h1>\n"
      "<p class=\"verdict\">{}</p>\n<p class=\"where\">{}</p>\n</div></header>\n",
      report::escape_html(page.algorithm), report::escape_html(page.title),
      report::escape_html(page.verdict), report::escape_html(page.where));
  html += "<div class=\"tiles\">\n";
  for (const auto& [label, value] : page.figures)
    html += fmt::format(
        "<div class=\"tile\"><div class=\"label\">{}</div><div class=\"value\">{}</div></div>\n",
        report::escape_html(label), report::escape_html(value));
  html += "</div>\n<h2>Clusters</h2>\n<div class=\"charts\">\n";
  html += chart("A sample of the rows and the centres (crosses) along two principal components",
                scatter(page));
  if (page.curve.size() > 1)
    html += chart(fmt::format("By iteration: {}", page.measure), curve(page.measure, page.curve));
  html += "</div>\n<h2>Sizes</h2>\n<div class=\"card\">" + sizes_table(page.counts) + "</div>\n";
  html += fmt::format("<h2>Reproduce</h2>\n<div class=\"command\"><pre>{}</pre></div>\n",
                      report::escape_html(page.command));
  return html + "</main>\n</body>\n</html>\n";
}

}  // namespace dovetail::cli
