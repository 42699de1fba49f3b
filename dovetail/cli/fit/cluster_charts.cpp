#include "dovetail/cli/fit/cluster_charts.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "dovetail/base/machine.h"
#include "dovetail/fit/kmeans/cluster_metrics.h"
#include "dovetail/report/drawing.h"
#include "dovetail/report/page.h"

namespace dovetail::cli {
namespace {

using report::ChartWidth;
using report::Drawing;

constexpr int64_t kNamed = 12;    // clusters in a legend
constexpr int64_t kDrawn = 2000;  // clusters in a picture

/// Returns at most `most` clusters, largest first. Equal ones keep their order.
std::vector<int64_t> by_size(const at::Tensor& counts, int64_t most) {
  std::vector<int64_t> order(static_cast<size_t>(counts.numel()));
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto* count = counts.const_data_ptr<int64_t>();
  std::ranges::stable_sort(order, [&](int64_t a, int64_t b) { return count[a] > count[b]; });
  order.resize(std::min(order.size(), static_cast<size_t>(most)));
  return order;
}

/// Returns the share of each cluster in the rows, in percent, (K) float64.
at::Tensor percents(const at::Tensor& counts) {
  return 100 * counts.to(at::kDouble) / counts.sum();
}

/// One coordinate of a picture: its scale, and the value that is drawn at 0.
struct Coordinate {
  report::Scale scale;
  double zero = 0;
  std::string words = {};  ///< remark on the scale
  int marks = 8;
};

/// Returns the largest part of the sorted values (N) that lies in a twentieth of their range.
double densest_part(const double* sorted, int64_t count) {
  const double width = (sorted[count - 1] - sorted[0]) / 20;
  int64_t most = 0;
  for (int64_t first = 0, last = 0; last < count; ++last) {
    while (sorted[last] - sorted[first] > width) ++first;
    most = std::max(most, last - first + 1);
  }
  return static_cast<double>(most) / static_cast<double>(count);
}

/// Chooses a scale for values (N). A linear one does not tell rows apart if most of them lie in a
/// small part of it.
Coordinate coordinate_of(const at::Tensor& values) {
  const at::Tensor sorted = std::get<0>(values.sort());
  const auto* value = sorted.const_data_ptr<double>();
  const int64_t count = values.numel();
  const double low = value[0], high = value[count - 1], middle = value[count / 2];
  // The quantile 0.2 of |v - median| is a quarter of the deviation of normal values.
  const double near = std::get<0>((values - middle).abs().sort())[count / 5].item<double>(),
               unit = 4 * near;
  if (densest_part(value, count) < 0.5 || unit == 0)
    return {.scale = report::Scale::around(low, high)};
  return {.scale = report::Scale::robust(low - middle, high - middle, unit),
          .zero = middle,
          .words = fmt::format("; from the median, logarithmic beyond ±{}",
                               report::short_number(unit, 2))};
}

/// Returns an axis with the numbers of K clusters.
Coordinate cluster_axis(int64_t k) {
  return {.scale = report::Scale::linear(-0.5, static_cast<double>(k) - 0.5),
          .marks = static_cast<int>(std::min<int64_t>(8, k))};
}

Drawing drawing_of(const Coordinate& x, const Coordinate& y,
                   const std::vector<std::string>& names) {
  return {1110,
          460,
          {.scale = x.scale, .label = names[0] + x.words, .marks = 10},
          {.scale = y.scale, .label = names[1] + y.words, .marks = y.marks}};
}

void add_point(Drawing& drawing, double x, double y, const std::string& colour) {
  drawing.add("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.4\" fill=\"{}\" fill-opacity=\"0.7\"/>",
              drawing.x(x), drawing.y(y), colour);
}

/// Draws crosses at the centres of the largest clusters, with their numbers if there are few.
void add_centres(Drawing& drawing, const at::Tensor& centres, const at::Tensor& counts,
                 double x_zero, double y_zero) {
  constexpr int64_t kNumbered = 64;
  const bool few = centres.size(0) <= kNumbered;
  const double arm = few ? 5 : 2.5;
  const auto* at = centres.const_data_ptr<double>();
  for (const int64_t c : by_size(counts, kDrawn)) {
    const double x = drawing.x(at[2 * c] - x_zero), y = drawing.y(at[2 * c + 1] - y_zero);
    drawing.add(
        "<path d=\"M{0:.1f} {1:.1f}l{2} {2}m0 -{2}l-{2} {2}\" stroke=\"var(--ink)\" "
        "stroke-width=\"{3}\" fill=\"none\"><title>centre {4}</title></path>",
        x - arm, y - arm, 2 * arm, few ? 2 : 1, c);
    if (few)
      drawing.add(
          "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"start\" style=\"fill: var(--ink); "
          "font-weight: 600\">{}</text>",
          std::min(x + 8, drawing.right() - 8), std::max(y - 6, 12.0), c);
  }
}

std::vector<report::LegendItem> legend_of(const at::Tensor& counts) {
  std::vector<report::LegendItem> legend;
  const at::Tensor percent = percents(counts);
  const int64_t more = counts.numel() - kNamed;
  for (const int64_t cluster : by_size(counts, kNamed))
    legend.push_back({cluster_colour(cluster),
                      fmt::format("{} ({:.3g} %)", cluster, percent[cluster].item<double>())});
  if (more > 0)
    legend.push_back({"transparent", fmt::format("and {} smaller", format_grouped(more))});
  return legend;
}

}  // namespace

/// Hues are a golden angle apart.
std::string cluster_colour(int64_t index) {
  return fmt::format("hsl({:.0f} 62% 52%)",
                     std::fmod(210.0 + 137.508 * static_cast<double>(index), 360.0));
}

std::string clusters_chart(const Clusters& clusters) {
  const fit::PicturePlane plane =
      fit::picture_plane(clusters.sample, clusters.labels, clusters.centres);
  at::Tensor points = plane.project(clusters.sample), centres = plane.project(clusters.centres);
  const auto axis = [&](int i) {
    return fmt::format("component {} of the centres ({:.1f} % of the rows' variance)", i + 1,
                       100 * plane.share[i]);
  };
  std::vector<std::string> names = {axis(0), axis(1)};
  const bool on_a_line = plane.share[1] == 0;
  if (on_a_line) {  // rows are drawn at the height of their cluster
    names[1] = "cluster";
    points.select(1, 1).copy_(clusters.labels);
    centres.select(1, 1).copy_(at::arange(centres.size(0)));
  }
  const at::Tensor all = at::cat({points, centres});
  const Coordinate x = coordinate_of(all.select(1, 0)),
                   y = on_a_line ? cluster_axis(centres.size(0)) : coordinate_of(all.select(1, 1));
  Drawing drawing = drawing_of(x, y, names);
  const auto* label = clusters.labels.const_data_ptr<int32_t>();
  const auto* at = points.const_data_ptr<double>();
  for (int64_t i = 0; i < points.size(0); ++i)
    add_point(drawing, at[2 * i] - x.zero, at[2 * i + 1] - y.zero, cluster_colour(label[i]));
  add_centres(drawing, centres, clusters.counts, x.zero, y.zero);
  return report::chart_box(
      ChartWidth::kFull,
      fmt::format("{} rows and the centres (crosses){}", format_grouped(points.size(0)),
                  plane.has_units ? ", each column divided by its interquartile range" : ""),
      legend_of(clusters.counts), drawing.svg());
}

std::string points_chart(const std::string& title, const at::Tensor& points,
                         const std::vector<std::string>& names) {
  const Coordinate x = coordinate_of(points.select(1, 0)), y = coordinate_of(points.select(1, 1));
  Drawing drawing = drawing_of(x, y, names);
  const at::Tensor flat = points.contiguous();
  const auto* at = flat.const_data_ptr<double>();
  for (int64_t i = 0; i < points.size(0); ++i)
    add_point(drawing, at[2 * i] - x.zero, at[2 * i + 1] - y.zero, "var(--c0)");
  return report::chart_box(ChartWidth::kFull, title, {}, drawing.svg());
}

std::string sizes_chart(const at::Tensor& counts) {
  std::vector<report::Bar> bars;
  const auto* count = counts.const_data_ptr<int64_t>();
  const at::Tensor percent = percents(counts);
  for (const int64_t c : by_size(counts, kDrawn))
    bars.push_back({.name = std::to_string(c),
                    .colour = cluster_colour(c),
                    .tooltip = fmt::format("cluster {}: {} rows ({:.2f} %)", c,
                                           format_grouped(count[c]), percent[c].item<double>()),
                    .value = static_cast<double>(count[c])});
  return report::chart_box(ChartWidth::kHalf, "Sizes of the clusters, largest first", {},
                           report::bar_chart("cluster", "rows", bars));
}

std::string sizes_table(const at::Tensor& counts) {
  constexpr int64_t kMost = 1000, kOpen = 32;
  const auto* count = counts.const_data_ptr<int64_t>();
  const at::Tensor percent = percents(counts);
  std::string html = fmt::format(
      "<details{}><summary>{} clusters{}</summary>\n<div class=\"card\"><table>\n"
      "<tr><th>cluster</th><th>rows</th><th>share</th></tr>\n",
      counts.numel() <= kOpen ? " open" : "", format_grouped(counts.numel()),
      counts.numel() > kMost ? fmt::format(", the {} largest", format_grouped(kMost)) : "");
  for (const int64_t c : by_size(counts, kMost))
    html += fmt::format(
        "<tr><td><span style=\"color:{}\">●</span> {}</td><td>{}</td><td>{:.2f} %</td></tr>\n",
        cluster_colour(c), c, format_grouped(count[c]), percent[c].item<double>());
  return html + "</table></div></details>\n";
}

}  // namespace dovetail::cli
