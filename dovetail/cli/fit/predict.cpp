#include "dovetail/cli/fit/predict.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/cli/parse/output.h"
#include "dovetail/fit/mixture/mixture.h"

namespace dovetail::cli {
namespace {

/// Lines of a file of predictions for some rows.
struct Predictions {
  std::vector<std::string> first = {};  ///< text before the numbers of each row; empty: none
  at::Tensor numbers;                   ///< (rows, numbers of a line) float64
};

/// Predictions of one model.
struct Predictor {
  std::vector<std::string> names;  ///< names of the columns of a line
  std::function<Predictions(const at::Tensor& rows)> predict;
};

std::vector<std::string> numbered(const char* word, int64_t count) {
  std::vector<std::string> names;
  for (int64_t i = 0; i < count; ++i) names.push_back(fmt::format("{}{}", word, i));
  return names;
}

template <class Name>
std::vector<std::string> texts_of(const at::Tensor& labels, const Name& name) {
  std::vector<std::string> texts;
  const at::Tensor list = labels.contiguous();
  const auto* label = list.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < list.numel(); ++i) texts.push_back(name(label[i]));
  return texts;
}

Predictor linear(const FittedModel& model) {
  return {.names = {"prediction"}, .predict = [&](const at::Tensor& rows) {
            const at::Tensor sums = rows.to(at::kDouble).matmul(model.tensors.at("coefficients"));
            return Predictions{.numbers = (sums + model.tensors.at("intercept")).unsqueeze(1)};
          }};
}

Predictor logistic(const FittedModel& model) {
  std::vector<std::string> names = {"prediction"};
  for (const std::string& name : model.classes) names.push_back("probability_of_" + name);
  return {.names = names, .predict = [&](const at::Tensor& rows) {
            at::Tensor scores = rows.to(at::kDouble).matmul(model.tensors.at("coefficients").t()) +
                                model.tensors.at("intercepts");
            if (scores.size(1) == 1) scores = at::cat({at::zeros_like(scores), scores}, 1);
            return Predictions{
                .first = texts_of(
                    scores.argmax(1),
                    [&](int64_t i) { return csv_field(model.classes[static_cast<size_t>(i)]); }),
                .numbers = at::softmax(scores, 1)};
          }};
}

Predictor components(const FittedModel& model) {
  return {.names = numbered("component", model.tensors.at("directions").size(1)),
          .predict = [&](const at::Tensor& rows) {
            return Predictions{.numbers = (rows.to(at::kDouble) - model.tensors.at("mean"))
                                              .matmul(model.tensors.at("directions"))};
          }};
}

Predictor mixture(const FittedModel& model) {
  const fit::Mixture mixture{.weights = model.tensors.at("weights"),
                             .means = model.tensors.at("means"),
                             .covariances = model.tensors.at("covariances"),
                             .structure = fit::parse_covariance(model.covariance)};
  std::vector<std::string> names = {"label", "log_likelihood"};
  for (const std::string& name : numbered("probability_of_", mixture.weights.size(0)))
    names.push_back(name);
  return {.names = names,
          .predict = [mixture, roots = fit::precision_roots(mixture)](const at::Tensor& rows) {
            const at::Tensor scores = fit::log_densities(rows.contiguous(), mixture, roots);
            const at::Tensor all = at::logsumexp(scores, 1, /*keepdim=*/true);
            return Predictions{
                .first = texts_of(scores.argmax(1), [](int64_t i) { return std::to_string(i); }),
                .numbers = at::cat({all, (scores - all).exp()}, 1)};
          }};
}

Predictor predictor_of(const FittedModel& model) {
  if (model.model == "gmm") return mixture(model);
  if (model.model == "linear") return linear(model);
  return model.model == "logistic" ? logistic(model) : components(model);
}

}  // namespace

at::Tensor columns_of(const FittedModel& model, const data::Matrix& matrix) {
  std::vector<int64_t> places;
  for (const std::string& name : model.columns) {
    const auto found = std::ranges::find(matrix.columns, name);
    if (found == matrix.columns.end())  // a number, which the reader took for a place
      throw UserError(
          fmt::format("the model needs a column named {}, but the table has none", printable(name)),
          "rename the table's columns as in the table of the fit");
    places.push_back(found - matrix.columns.begin());
  }
  return matrix.x.index_select(1, at::tensor(places, at::kLong));
}

void write_predictions(const std::filesystem::path& path, const FittedModel& model,
                       const at::Tensor& x, const std::vector<int64_t>& left_out) {
  constexpr int64_t kPiece = 16384;
  const Predictor predictor = predictor_of(model);
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path());
  AtomicFile file(path);
  std::string text = "row";
  for (const std::string& name : predictor.names) text += "," + csv_field(name);
  text += "\n";
  auto skip = left_out.begin();
  int64_t row = 0;
  for (const at::Tensor& rows : x.split(kPiece)) {
    const Predictions found = predictor.predict(rows);
    const at::Tensor numbers = found.numbers.contiguous();
    const auto* number = numbers.const_data_ptr<double>();
    for (int64_t i = 0; i < rows.size(0); ++i, ++row) {
      for (; skip != left_out.end() && *skip == row; ++skip) ++row;
      text += std::to_string(row);
      if (!found.first.empty()) text += "," + found.first[static_cast<size_t>(i)];
      for (int64_t p = 0; p < numbers.size(1); ++p)
        fmt::format_to(std::back_inserter(text), ",{}", *number++);
      text += "\n";
    }
    file.write(text);
    text.clear();
  }
  file.write(text);
  file.commit();
}

}  // namespace dovetail::cli
