#include <ATen/ATen.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "dovetail/base/error.h"
#include "dovetail/base/machine.h"
#include "dovetail/cli/fit/cluster_charts.h"
#include "dovetail/cli/fit/clusters.h"
#include "dovetail/cli/fit/fit_models.h"
#include "dovetail/cli/fit/fitted_model.h"
#include "dovetail/fit/mixture/mixture.h"
#include "dovetail/report/drawing.h"
#include "dovetail/train/run/progress.h"

namespace dovetail::cli {
namespace {

using Json = nlohmann::ordered_json;

Json nested(const at::Tensor& x) {
  if (x.dim() == 0) return x.item<double>();
  Json list = Json::array();
  for (int64_t i = 0; i < x.size(0); ++i) list.push_back(nested(x[i]));
  return list;
}

/// Returns the table with float32 rows, which k-means takes. Columns of a float64 table are centred
/// first.
data::Matrix narrowed(const data::Matrix& matrix, const fit::MixtureData& data) {
  if (matrix.x.scalar_type() == at::kFloat) return matrix;
  data::Matrix narrow = matrix;
  narrow.origin = data.mean();
  const at::Tensor centred = matrix.x - narrow.origin;
  constexpr double kLeast = 1e-18, kMost = 1e18;  // squares within float32
  const double largest = centred.abs().max().item<double>();
  if (largest != 0 && (largest < kLeast || largest > kMost))
    throw UserError(fmt::format("dovetail fit gmm: k-means, which finds the start, takes float32, "
                                "but the rows lie up to {:.3g} from their mean",
                                largest),
                    fmt::format("scale the columns to between {:g} and {:g}", kLeast, kMost));
  narrow.x = centred.to(at::kFloat);
  return narrow;
}

fit::Mixture start_of(const FitOptions& options, const FitContext& context,
                      fit::MixtureData& data) {
  const data::Matrix matrix = narrowed(context.matrix, data);
  fit::KMeansData clusters(matrix.x, context.workers);
  const fit::KMeansResult means =
      fit::lloyd(clusters, centres_by(options.init, matrix, clusters, options.k, options.seed));
  return data.of_labels(means.labels, matrix.original(means.centres),
                        fit::parse_covariance(options.covariance), options.regularization);
}

fit::MixtureResult iterate(const FitOptions& options, const FitContext& context,
                           fit::MixtureData& data) {
  const std::vector<at::Tensor>& stopped = context.state.stopped();
  fit::Mixture start;
  if (stopped.empty())
    start = start_of(options, context, data);
  else
    start.structure = fit::parse_covariance(options.covariance);
  train::TerminalLine terminal;
  return fit::fit_mixture(
      data, start,
      {.iterations = options.iterations,
       .tolerance = options.tolerance,
       .regularization = options.regularization,
       .state = stopped},
      [&](const fit::MixtureIteration& line) {
        context.state.add({line.log_likelihood, line.seconds}, line.state);
        if (context.shows && terminal.on_terminal())
          terminal.show(fmt::format(" iteration {}/{}  log-likelihood of a row {:.6g}  {} rows/s",
                                    line.iteration, options.iterations, line.log_likelihood,
                                    format_count(static_cast<double>(data.rows()) / line.seconds)));
      });
}

void write(const train::RunFolder& run, const FitOptions& options, const FitContext& context,
           const fit::MixtureResult& result) {
  const fit::Mixture& mixture = result.mixture;
  const data::Matrix& matrix = context.matrix;
  const std::filesystem::path& folder = run.path();
  write_table(folder / "means.csv", matrix.columns, mixture.means);
  write_labels(folder / "labels.csv", result.labels, matrix.left_out);
  run.write_json("mixture.json", {{"columns", matrix.columns},
                                  {"weights", nested(mixture.weights)},
                                  {"means", nested(mixture.means)},
                                  {"covariances", nested(mixture.covariances)}});
  save_model(folder, {.model = "gmm",
                      .columns = matrix.columns,
                      .tensors = {{"weights", mixture.weights},
                                  {"means", mixture.means},
                                  {"covariances", mixture.covariances}},
                      .covariance = options.covariance});
  write_iterations(run, context.state.lines(), {"log_likelihood", "seconds"});
}

/// Returns a chart of the weights, in the order of the components.
std::string weights_chart(const at::Tensor& weights) {
  std::vector<report::Bar> bars;
  for (int64_t i = 0; i < weights.numel(); ++i) {
    const auto weight = weights[i].item<double>();
    bars.push_back({.name = std::to_string(i),
                    .colour = cluster_colour(i),
                    .tooltip = fmt::format("component {}: weight {:.6g}", i, weight),
                    .value = weight});
  }
  return report::chart_box(report::ChartWidth::kHalf, "Weights of the components", {},
                           report::bar_chart("component", "weight", bars));
}

std::vector<PageSection> sections(const FitOptions& options, const FitContext& context,
                                  const fit::MixtureResult& result, const at::Tensor& counts) {
  std::vector<double> curve;
  for (const std::vector<double>& line : context.state.lines()) curve.push_back(line[0]);
  const RowSample sample = sample_rows(context.matrix.x, result.labels, options.seed);
  return {{"Clusters", charts_html({clusters_chart({.sample = sample.x,
                                                    .labels = sample.labels,
                                                    .centres = result.mixture.means,
                                                    .counts = counts}),
                                    sizes_chart(counts), weights_chart(result.mixture.weights),
                                    iterations_chart("log-likelihood of a row", curve)})},
          {"Sizes", sizes_table(counts)}};
}

}  // namespace

void fit_gmm(const FitOptions& options, const FitContext& context, FitOutcome& outcome) {
  const data::Matrix& matrix = context.matrix;
  fit::MixtureData data(matrix.x, context.workers);
  const fit::MixtureResult result = iterate(options, context, data);
  const fit::Mixture& mixture = result.mixture;
  const at::Tensor counts = at::bincount(result.labels, {}, options.k);
  Json& json = outcome.result;
  json["columns"] = matrix.columns.size();
  json["k"] = options.k;
  json["covariance"] = options.covariance;
  json["iterations"] = result.iterations;
  json["converged"] = result.converged;
  json["log_likelihood"] = result.log_likelihood;
  json["bic"] = result.bic;
  json["aic"] = result.aic;
  json["weights"] = nested(mixture.weights);
  json["counts"] = std::vector<int64_t>(counts.const_data_ptr<int64_t>(),
                                        counts.const_data_ptr<int64_t>() + options.k);
  outcome.verdict =
      fmt::format("{} rows of {} columns in {} components: {} after {} iterations.",
                  format_grouped(data.rows()), matrix.columns.size(), options.k,
                  result.converged ? "converged" : "not converged", result.iterations);
  outcome.figures = {{"log-likelihood of a row", fmt::format("{:.6g}", result.log_likelihood)},
                     {"BIC", fmt::format("{:.6g}", result.bic)},
                     {"AIC", fmt::format("{:.6g}", result.aic)},
                     {"parameters", format_grouped(mixture.num_parameters())},
                     {"rows", format_grouped(data.rows())}};
  for (const auto& [label, value] : {std::pair("log-likelihood of a row", result.log_likelihood),
                                     {"BIC", result.bic},
                                     {"AIC", result.aic}})
    outcome.tiles.push_back(number_tile(label, value));
  outcome.tiles.push_back(
      {.label = "parameters", .value = format_grouped(mixture.num_parameters())});
  outcome.tiles.push_back({.label = "iterations", .value = format_grouped(result.iterations)});
  outcome.sections = [=, &context] { return sections(options, context, result, counts); };
  outcome.write = [=, &context](const train::RunFolder& run) {
    write(run, options, context, result);
  };
}

}  // namespace dovetail::cli
