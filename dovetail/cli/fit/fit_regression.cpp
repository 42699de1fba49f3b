#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/log.h"
#include "dovetail/base/machine.h"
#include "dovetail/cli/fit/cluster_charts.h"
#include "dovetail/cli/fit/clusters.h"
#include "dovetail/cli/fit/coefficients_chart.h"
#include "dovetail/cli/fit/fit_models.h"
#include "dovetail/cli/fit/fitted_model.h"
#include "dovetail/fit/regression/regression.h"
#include "dovetail/train/run/progress.h"

namespace dovetail::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string number(double value) { return fmt::format("{:.6g}", value); }

}  // namespace

void fit_linear_model(const FitOptions& options, const FitContext& context, FitOutcome& outcome) {
  const data::Matrix& matrix = context.matrix;
  fit::RegressionData data(matrix.x, matrix.target, context.workers);
  const fit::LinearResult result = fit::fit_linear(data, {.l2 = options.l2});
  std::vector<std::string> dependent;
  for (const int64_t column : result.dependent)
    dependent.push_back(matrix.columns[static_cast<size_t>(column)]);
  if (!dependent.empty() && context.shows)
    log_warning("those before them determine the columns {}: their coefficients are 0",
                fmt::join(dependent, ", "));
  Json& json = outcome.result;
  json["target"] = options.target;
  json["columns"] = matrix.columns.size();
  json["l2"] = options.l2;
  json["r2"] = std::isfinite(result.r2) ? Json(result.r2) : Json();
  json["rmse"] = result.rmse;
  json["intercept"] = result.intercept;
  json["dependent"] = dependent;
  outcome.verdict = fmt::format("{} from {} columns of {} rows.", options.target,
                                matrix.columns.size(), format_grouped(matrix.x.size(0)));
  outcome.figures = {
      {"R2", std::isfinite(result.r2) ? number(result.r2) : "none: the target is constant"},
      {"root mean square error", number(result.rmse)}};
  const double r2 = result.r2, rmse = result.rmse, constant = result.intercept;
  const at::Tensor slopes = result.coefficients;
  const std::string target = options.target;
  outcome.tiles = {number_tile("R2", r2),
                   number_tile("root mean square error", rmse),
                   {.label = "columns", .value = format_grouped(slopes.numel())}};
  outcome.sections = [=, &matrix] {
    const RowSample sample = sample_rows(matrix.x, matrix.target, 0);
    const at::Tensor predicted = sample.x.to(at::kDouble).matmul(slopes) + constant;
    return std::vector<PageSection>{
        {"Model", charts_html({coefficients_chart(matrix, slopes.unsqueeze(0), {target}),
                               points_chart(fmt::format("{} rows: prediction and target",
                                                        format_grouped(sample.x.size(0))),
                                            at::stack({predicted, sample.labels}, 1),
                                            {"prediction", target})})}};
  };
  std::vector<std::string> columns = {"intercept"};
  columns.insert(columns.end(), matrix.columns.begin(), matrix.columns.end());
  const at::Tensor intercept = at::scalar_tensor(result.intercept, at::kDouble);
  const at::Tensor row = at::cat({intercept.unsqueeze(0), result.coefficients}).unsqueeze(0);
  const FittedModel model{
      .model = "linear",
      .columns = matrix.columns,
      .tensors = {{"coefficients", result.coefficients}, {"intercept", intercept}},
      .target = matrix.target_name};
  outcome.write = [=](const train::RunFolder& run) {
    write_table(run.path() / "coefficients.csv", columns, row);
    save_model(run.path(), model);
  };
}

void fit_logistic_model(const FitOptions& options, const FitContext& context, FitOutcome& outcome) {
  constexpr int64_t kMostClasses = 1000;
  const data::Matrix& matrix = context.matrix;
  const auto num_classes = std::ssize(matrix.classes);
  user_check(num_classes >= 2, "--target: {} is {} in every row", options.target,
             printable(matrix.classes[0]));
  user_check(num_classes <= kMostClasses,
             "--target: {} has {} different values, more than {} classes", options.target,
             num_classes, kMostClasses);
  fit::RegressionData data(matrix.x, matrix.target, context.workers);
  train::TerminalLine terminal;
  const fit::LogisticResult result = fit::fit_logistic(
      data, num_classes,
      {.l2 = options.l2,
       .iterations = options.iterations,
       .tolerance = options.tolerance,
       .state = context.state.stopped()},
      [&](const fit::LogisticIteration& line) {
        context.state.add({line.loss, line.gradient, line.seconds}, line.state);
        if (context.shows && terminal.on_terminal())
          terminal.show(fmt::format(" iteration {}/{}  loss {:.6g}  gradient {:.3g}",
                                    line.iteration, options.iterations, line.loss, line.gradient));
      });
  Json& json = outcome.result;
  json["target"] = options.target;
  json["columns"] = matrix.columns.size();
  json["classes"] = Json::array();
  for (const std::string& name : matrix.classes) {
    const Json number = Json::parse(name, nullptr, /*allow_exceptions=*/false);
    const bool exact = matrix.numeric_classes && number.is_number() && number.dump() == name;
    json["classes"].push_back(exact ? number : Json(printable(name)));
  }
  json["l2"] = options.l2;
  json["iterations"] = result.iterations;
  json["converged"] = result.converged;
  json["loss"] = result.loss;
  json["accuracy"] = result.accuracy;
  outcome.verdict = fmt::format(
      "{} ({} classes) from {} columns of {} rows: {} after {} iterations.", options.target,
      num_classes, matrix.columns.size(), format_grouped(matrix.x.size(0)),
      result.converged ? "converged" : "not converged", result.iterations);
  outcome.figures = {{"accuracy on these rows", number(result.accuracy)},
                     {"loss of a row", number(result.loss)}};
  outcome.tiles = {number_tile("accuracy on these rows", result.accuracy),
                   number_tile("loss of a row", result.loss),
                   {.label = "classes", .value = format_grouped(num_classes)},
                   {.label = "columns", .value = format_grouped(std::ssize(matrix.columns))},
                   {.label = "iterations", .value = format_grouped(result.iterations)}};
  // Class of each line. With two classes it is the second, to which the score belongs.
  std::vector<std::string> columns = {"class", "intercept"};
  columns.insert(columns.end(), matrix.columns.begin(), matrix.columns.end());
  const std::vector<std::string> names(matrix.classes.begin() + (num_classes == 2 ? 1 : 0),
                                       matrix.classes.end());
  const at::Tensor rows = at::cat({result.intercepts.unsqueeze(1), result.coefficients}, 1);
  const FittedModel model{
      .model = "logistic",
      .columns = matrix.columns,
      .tensors = {{"coefficients", result.coefficients}, {"intercepts", result.intercepts}},
      .target = matrix.target_name,
      .classes = matrix.classes};
  const at::Tensor slopes = result.coefficients;
  outcome.sections = [=, &context, &matrix] {
    std::vector<double> losses, gradients;
    for (const std::vector<double>& line : context.state.lines()) {
      losses.push_back(line[0]);
      gradients.push_back(line[1]);
    }
    return std::vector<PageSection>{
        {"Model", charts_html({coefficients_chart(matrix, slopes, names),
                               iterations_chart("loss of a row", losses),
                               iterations_chart("largest element of the gradient", gradients)})}};
  };
  outcome.write = [=, &context](const train::RunFolder& run) {
    write_table(run.path() / "coefficients.csv", columns, rows, names);
    save_model(run.path(), model);
    write_iterations(run, context.state.lines(), {"loss", "gradient", "seconds"});
  };
}

}  // namespace dovetail::cli
