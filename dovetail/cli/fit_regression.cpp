#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/log.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/schema.h"
#include "dovetail/cli/fit_models.h"
#include "dovetail/hybrid/regression.h"
#include "dovetail/train/progress.h"

namespace dovetail::cli {
namespace {

using Json = nlohmann::ordered_json;

/// The table without its target.
struct TargetSplit {
  at::Tensor x, target;
  std::vector<std::string> columns;
};

TargetSplit split(const Matrix& matrix, const std::string& target) {
  const auto found = std::ranges::find(matrix.columns, target);
  if (found == matrix.columns.end()) {
    const std::string near = nearest_word(target, matrix.columns);
    throw UserError(fmt::format("--target: no column is named {}", target),
                    near.empty() ? fmt::format("the columns are {}", fmt::join(matrix.columns, ", "))
                                 : fmt::format("did you mean {}?", near));
  }
  user_check(matrix.columns.size() > 1, "--target: {} is the only column", target);
  const auto column = static_cast<int64_t>(found - matrix.columns.begin());
  TargetSplit parts{.x = {}, .target = matrix.x.select(1, column).to(at::kDouble), .columns = matrix.columns};
  parts.columns.erase(parts.columns.begin() + column);
  const int64_t after = matrix.x.size(1) - column - 1;
  parts.x = at::cat({matrix.x.narrow(1, 0, column), matrix.x.narrow(1, column + 1, after)}, 1).contiguous();
  return parts;
}

std::string number(double value) { return fmt::format("{:.6g}", value); }

}  // namespace

void fit_linear_model(const FitOptions& options, const FitContext& context, FitOutcome& outcome) {
  const TargetSplit parts = split(context.matrix, options.target);
  hybrid::RegressionData data(parts.x, parts.target, context.workers);
  const hybrid::LinearResult result = hybrid::fit_linear(data, options.l2);
  std::vector<std::string> dependent;
  for (const int64_t column : result.dependent) dependent.push_back(parts.columns[static_cast<size_t>(column)]);
  if (!dependent.empty() && context.shows)
    log_warning("those before them determine the columns {}: their coefficients are 0", fmt::join(dependent, ", "));
  Json& json = outcome.result;
  json["target"] = options.target;
  json["columns"] = parts.columns.size();
  json["l2"] = options.l2;
  json["r2"] = std::isfinite(result.r2) ? Json(result.r2) : Json();
  json["rmse"] = result.rmse;
  json["intercept"] = result.intercept;
  json["dependent"] = dependent;
  outcome.verdict = fmt::format("{} from {} columns of {} rows.", options.target, parts.columns.size(),
                                format_grouped(parts.x.size(0)));
  outcome.figures = {{"R2", std::isfinite(result.r2) ? number(result.r2) : "none: the target is constant"},
                     {"root mean square error", number(result.rmse)}};
  std::vector<std::string> columns = {"intercept"};
  columns.insert(columns.end(), parts.columns.begin(), parts.columns.end());
  const at::Tensor row = at::cat({at::tensor({result.intercept}, at::kDouble), result.coefficients}).unsqueeze(0);
  outcome.write = [=](const RunFolder& run) { write_table(run.path() / "coefficients.csv", columns, row); };
}

void fit_logistic_model(const FitOptions& options, const FitContext& context, FitOutcome& outcome) {
  constexpr int64_t kMostClasses = 1000;
  const TargetSplit parts = split(context.matrix, options.target);
  const auto [values, classes] = at::_unique(parts.target, /*sorted=*/true, /*return_inverse=*/true);
  user_check(values.numel() >= 2, "--target: {} is {} in every row", options.target, values[0].item<double>());
  user_check(values.numel() <= kMostClasses, "--target: {} has {} different values, more than {} classes",
             options.target, values.numel(), kMostClasses);
  hybrid::RegressionData data(parts.x, classes, context.workers);
  TerminalLine terminal;
  const hybrid::LogisticResult result =
      hybrid::fit_logistic(data, values.numel(),
                           {.l2 = options.l2,
                            .iterations = options.iterations,
                            .tolerance = options.tolerance,
                            .state = context.state.stopped()},
                           [&](const hybrid::LogisticIteration& line) {
                             context.state.add({line.loss, line.gradient, line.seconds}, line.state);
                             if (context.shows && terminal.on_terminal())
                               terminal.show(fmt::format(" iteration {}/{}  loss {:.6g}  gradient {:.3g}",
                                                         line.iteration, options.iterations, line.loss, line.gradient));
                           });
  const auto* value = values.const_data_ptr<double>();
  Json& json = outcome.result;
  json["target"] = options.target;
  json["columns"] = parts.columns.size();
  json["classes"] = std::vector<double>(value, value + values.numel());
  json["l2"] = options.l2;
  json["iterations"] = result.iterations;
  json["converged"] = result.converged;
  json["loss"] = result.loss;
  json["accuracy"] = result.accuracy;
  outcome.verdict = fmt::format("{} ({} classes) from {} columns of {} rows: {} after {} iterations.", options.target,
                                values.numel(), parts.columns.size(), format_grouped(parts.x.size(0)),
                                result.converged ? "converged" : "not converged", result.iterations);
  outcome.figures = {{"accuracy on these rows", number(result.accuracy)}, {"loss of a row", number(result.loss)}};
  // The class of each line: of two classes the second, whose score it is.
  std::vector<std::string> columns = {"class", "intercept"};
  columns.insert(columns.end(), parts.columns.begin(), parts.columns.end());
  const at::Tensor of = values.narrow(0, values.numel() == 2 ? 1 : 0, result.coefficients.size(0)).unsqueeze(1);
  const at::Tensor rows = at::cat({of, result.intercepts.unsqueeze(1), result.coefficients}, 1);
  outcome.write = [=, &context](const RunFolder& run) {
    write_table(run.path() / "coefficients.csv", columns, rows);
    write_iterations(run, context.state.lines(), {"loss", "gradient", "seconds"});
  };
}

}  // namespace dovetail::cli
