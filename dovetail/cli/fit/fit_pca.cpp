#include <ATen/ATen.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "dovetail/base/machine.h"
#include "dovetail/cli/fit/cluster_charts.h"
#include "dovetail/cli/fit/clusters.h"
#include "dovetail/cli/fit/fit_models.h"
#include "dovetail/cli/fit/fitted_model.h"
#include "dovetail/fit/components/principal_components.h"
#include "dovetail/report/drawing.h"
#include "dovetail/train/run/progress.h"

namespace dovetail::cli {
namespace {

using Json = nlohmann::ordered_json;

/// Returns (N, components): coordinates of each row along the directions.
at::Tensor scores(const at::Tensor& x, const at::Tensor& mean, const at::Tensor& directions) {
  constexpr int64_t kPiece = 16384;
  std::vector<at::Tensor> pieces;
  for (const at::Tensor& rows : x.split(kPiece))
    pieces.push_back((rows.to(at::kDouble) - mean).matmul(directions));
  return at::cat(pieces).contiguous();
}

}  // namespace

void fit_pca(const FitOptions& options, const FitContext& context, FitOutcome& outcome) {
  const data::Matrix& matrix = context.matrix;
  const fit::TableData data("pca", matrix.x, context.workers);
  train::TerminalLine terminal;
  const fit::PrincipalResult result = fit::fit_principal(
      data,
      {.components = options.components,
       .solver = fit::parse_principal_solver(options.solver),
       .iterations = options.iterations,
       .tolerance = options.tolerance,
       .seed = static_cast<uint64_t>(options.seed),
       .state = context.state.stopped()},
      [&](const fit::PrincipalIteration& line) {
        context.state.add({line.residual, line.explained, line.seconds}, line.state);
        if (context.shows && terminal.on_terminal())
          terminal.show(fmt::format(" iteration {}/{}  residual {:.3g}  {:.2f} % of the variance",
                                    line.iteration, options.iterations, line.residual,
                                    100 * line.explained));
      });
  const auto list = [](const at::Tensor& x) {
    return std::vector<double>(x.const_data_ptr<double>(), x.const_data_ptr<double>() + x.numel());
  };
  Json& json = outcome.result;
  json["columns"] = data.columns();
  json["components"] = options.components;
  json["iterations"] = result.iterations;
  json["converged"] = result.converged;
  json["variances"] = list(result.variances);
  json["shares"] = list(result.shares);
  outcome.verdict =
      fmt::format("{} rows of {} columns: {} after {} iteration{}.", format_grouped(data.rows()),
                  data.columns(), result.converged ? "converged" : "not converged",
                  result.iterations, result.iterations == 1 ? "" : "s");
  double sum = 0;
  std::vector<report::Bar> bars;
  std::vector<double> upto;
  std::vector<std::string> names;
  for (int64_t i = 0; i < options.components; ++i) {
    const auto share = result.shares[i].item<double>();
    sum += share;
    names.push_back(fmt::format("component{}", i));
    upto.push_back(100 * sum);
    bars.push_back(
        {.name = std::to_string(i),
         .colour = "var(--c0)",
         .tooltip = fmt::format("component {}: {:.4g} % of the variance", i, 100 * share),
         .value = 100 * share});
    outcome.figures.emplace_back(
        fmt::format("component {}", i),
        fmt::format("{:.2f} % of the variance, {:.2f} % up to here", 100 * share, 100 * sum));
  }
  const at::Tensor &mean = data.mean(), &x = data.x();
  outcome.tiles = {{.label = "components", .value = format_grouped(options.components)},
                   {.label = "explained variance", .value = fmt::format("{:.2f} %", 100 * sum)},
                   {.label = "columns", .value = format_grouped(data.columns())},
                   {.label = "passes", .value = format_grouped(result.iterations)}};
  outcome.sections = [=, &context] {
    std::vector<double> residuals;
    for (const std::vector<double>& line : context.state.lines()) residuals.push_back(line[0]);
    const std::string cumulative =
        report::series_chart("components", "% of the variance", {{"sum", "var(--c1)", upto}});
    std::vector<std::string> charts = {
        report::chart_box(report::ChartWidth::kHalf, "Variance along each component", {},
                          report::bar_chart("component", "% of the variance", bars))};
    if (!cumulative.empty())
      charts.push_back(report::chart_box(
          report::ChartWidth::kHalf, "Variance of the first components together", {}, cumulative));
    charts.push_back(iterations_chart("residual", residuals));
    if (options.components > 1) {
      const at::Tensor rows = sample_rows(x, at::zeros({x.size(0)}, at::kInt), options.seed).x;
      charts.push_back(points_chart(
          fmt::format("{} rows along two components", format_grouped(rows.size(0))),
          scores(rows, mean, result.directions.narrow(1, 0, 2)), {"component 0", "component 1"}));
    }
    return std::vector<PageSection>{{"Components", charts_html(charts)}};
  };
  outcome.write = [=, &matrix, &context](const train::RunFolder& run) {
    const std::filesystem::path& folder = run.path();
    write_table(folder / "components.csv", matrix.columns, result.directions.t().contiguous());
    write_table(folder / "mean.csv", matrix.columns, mean.unsqueeze(0));
    save_model(folder, {.model = "pca",
                        .columns = matrix.columns,
                        .tensors = {{"directions", result.directions}, {"mean", mean}}});
    write_table(folder / "scores.csv", names, scores(x, mean, result.directions));
    write_iterations(run, context.state.lines(), {"residual", "explained", "seconds"});
  };
}

}  // namespace dovetail::cli
