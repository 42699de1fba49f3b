#include <ATen/ATen.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "dovetail/base/file.h"
#include "dovetail/base/machine.h"
#include "dovetail/cli/clusters.h"
#include "dovetail/cli/clusters_report.h"
#include "dovetail/cli/fit_models.h"
#include "dovetail/hybrid/mixture.h"
#include "dovetail/train/progress.h"

namespace dovetail::cli {
namespace {

using Json = nlohmann::ordered_json;

Json nested(const at::Tensor& x) {
  if (x.dim() == 0) return x.item<double>();
  Json list = Json::array();
  for (int64_t i = 0; i < x.size(0); ++i) list.push_back(nested(x[i]));
  return list;
}

hybrid::MixtureResult iterate(const FitOptions& options, hybrid::MixtureData& data, const hybrid::Mixture& start,
                              std::vector<hybrid::MixtureIteration>& lines) {
  TerminalLine terminal;
  return hybrid::fit_mixture(
      data, start,
      {.iterations = options.iterations, .tolerance = options.tolerance, .regularization = options.regularization},
      [&](const hybrid::MixtureIteration& line) {
        lines.push_back(line);
        if (terminal.on_terminal())
          terminal.show(fmt::format(" iteration {}/{}  log-likelihood of a row {:.6g}  {} rows/s", line.iteration,
                                    options.iterations, line.log_likelihood,
                                    format_count(static_cast<double>(data.rows()) / line.seconds)));
      });
}

}  // namespace

void fit_gmm(const FitOptions& options, const FitContext& context, FitOutcome& outcome) {
  const Matrix& matrix = context.matrix;
  hybrid::MixtureData data(matrix.x, context.runtime);
  const hybrid::Mixture start = [&] {
    hybrid::KMeansData clusters(matrix.x, context.runtime);
    const hybrid::KMeansResult means =
        hybrid::lloyd(clusters, centres_by(options.init, clusters, options.k, options.seed));
    return data.of_labels(means.labels, means.centres, hybrid::parse_covariance(options.covariance),
                          options.regularization);
  }();
  std::vector<hybrid::MixtureIteration> lines;
  const hybrid::MixtureResult result = iterate(options, data, start, lines);
  const hybrid::Mixture& mixture = result.mixture;
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
  json["counts"] = std::vector<int64_t>(counts.const_data_ptr<int64_t>(), counts.const_data_ptr<int64_t>() + options.k);
  json["report"] = (context.folder.path() / "report.html").string();
  outcome.verdict = fmt::format("{} rows of {} columns in {} components: {} after {} iterations.",
                                format_grouped(data.rows()), matrix.columns.size(), options.k,
                                result.converged ? "converged" : "not converged", result.iterations);
  outcome.figures = {{"log-likelihood of a row", fmt::format("{:.6g}", result.log_likelihood)},
                     {"BIC", fmt::format("{:.6g}", result.bic)},
                     {"AIC", fmt::format("{:.6g}", result.aic)},
                     {"parameters", format_grouped(mixture.num_parameters())},
                     {"rows", format_grouped(data.rows())}};

  const std::filesystem::path& folder = context.folder.path();
  write_table(folder / "means.csv", matrix.columns, mixture.means);
  write_labels(folder / "labels.csv", result.labels, matrix.left_out);
  context.folder.write_json("mixture.json", {{"columns", matrix.columns},
                                             {"weights", nested(mixture.weights)},
                                             {"means", nested(mixture.means)},
                                             {"covariances", nested(mixture.covariances)}});
  std::string text;
  std::vector<double> curve;
  for (const hybrid::MixtureIteration& line : lines) {
    curve.push_back(line.log_likelihood);
    text += Json{{"step", line.iteration}, {"log_likelihood", line.log_likelihood}, {"seconds", line.seconds}}.dump() +
            "\n";
  }
  write_file_atomically(folder / "iterations.jsonl", text);
  const RowSample sample = sample_rows(matrix.x, result.labels, options.seed);
  write_file_atomically(folder / "report.html", clusters_page({.title = context.title,
                                                               .verdict = outcome.verdict,
                                                               .where = context.where,
                                                               .algorithm = "mixture",
                                                               .figures = outcome.figures,
                                                               .measure = "log-likelihood of a row",
                                                               .curve = curve,
                                                               .sample = sample.x,
                                                               .labels = sample.labels,
                                                               .centres = mixture.means,
                                                               .counts = counts,
                                                               .plane = hybrid::principal_plane(sample.x),
                                                               .command = context.command}));
}

}  // namespace dovetail::cli
