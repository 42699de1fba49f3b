#include "dovetail/cli/fit/coefficients_chart.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "dovetail/base/machine.h"
#include "dovetail/cli/fit/cluster_charts.h"
#include "dovetail/report/drawing.h"

namespace dovetail::cli {

std::string coefficients_chart(const data::Matrix& matrix, const at::Tensor& coefficients,
                               const std::vector<std::string>& names) {
  constexpr int64_t kColumns = 40, kNames = 12;
  constexpr double kRow = 20;
  const int64_t shown = std::min(kNames, coefficients.size(0)),
                columns = std::min(kColumns, coefficients.size(1));
  const at::Tensor effects = coefficients.narrow(0, 0, shown).to(at::kDouble) *
                             matrix.x.std(0, /*unbiased=*/false).to(at::kDouble);
  const at::Tensor order =
      std::get<1>(effects.abs().amax(0).sort(/*stable=*/true, /*dim=*/0, /*descending=*/true));
  double left = 66;
  std::vector<std::string> labels;
  for (int64_t i = 0; i < columns; ++i) {
    labels.push_back(
        report::shortened(matrix.columns[static_cast<size_t>(order[i].item<int64_t>())], 24));
    left = std::max(left, report::text_width(labels.back()) + 14);
  }
  report::Drawing drawing(
      1110, report::Drawing::kTop + report::Drawing::kBottom + kRow * static_cast<double>(columns),
      {.scale = report::Scale::around(std::min(0.0, effects.min().item<double>()),
                                      std::max(0.0, effects.max().item<double>())),
       .label = "coefficient times the column's standard deviation",
       .marks = 10},
      {.marks = 0}, left);
  std::vector<report::LegendItem> legend;
  for (int64_t c = 0; c < shown && coefficients.size(0) > 1; ++c)
    legend.push_back({cluster_colour(c), report::shortened(names[static_cast<size_t>(c)], 24)});
  for (int64_t i = 0; i < columns; ++i) {
    const auto column = order[i].item<int64_t>();
    const double y = report::Drawing::kTop + kRow * (static_cast<double>(i) + 0.5);
    drawing.text(drawing.left() - 8, y + 4, "end", labels[static_cast<size_t>(i)]);
    for (int64_t c = 0; c < shown; ++c) {
      const auto effect = effects[c][column].item<double>();
      drawing.add(
          "<path stroke=\"{3}\" stroke-width=\"1.5\" d=\"M{0:.1f} {1:.1f}H{2:.1f}\"/>"
          "<circle cx=\"{2:.1f}\" cy=\"{1:.1f}\" r=\"4\" fill=\"{3}\"><title>{4}: {5:.6g} a unit, "
          "{6:.6g} a standard deviation</title></circle>",
          drawing.x(0), y, drawing.x(effect), cluster_colour(c),
          report::escape_html(matrix.columns[static_cast<size_t>(column)]),
          coefficients[c][column].item<double>(), effect);
    }
  }
  return report::chart_box(report::ChartWidth::kFull,
                           columns < coefficients.size(1)
                               ? fmt::format("Coefficients: the largest {} of {} columns", columns,
                                             format_grouped(coefficients.size(1)))
                               : std::string("Coefficients"),
                           legend, drawing.svg());
}

}  // namespace dovetail::cli
