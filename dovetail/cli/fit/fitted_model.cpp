#include "dovetail/cli/fit/fitted_model.h"

#include <exception>
#include <nlohmann/json.hpp>

#include "dovetail/base/error.h"
#include "dovetail/fit/mixture/mixture.h"
#include "dovetail/io/safetensors.h"

namespace dovetail::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kKey = "dovetail.fit";

std::filesystem::path file_of(const std::filesystem::path& run) {
  return run / "model.safetensors";
}

using Shapes = std::map<std::string, std::vector<int64_t>>;

/// Returns the shapes that the tensors of the model must have. Dimensions that the model is free to
/// choose come from its own tensors.
Shapes shapes_of(const FittedModel& model) {
  const auto dim = std::ssize(model.columns);
  const auto first = [&](const char* name) {
    const auto found = model.tensors.find(name);
    return found != model.tensors.end() && found->second.dim() > 0 ? found->second.size(-1) : 0;
  };
  if (model.model == "gmm") {
    const int64_t num = first("weights");
    return {
        {"weights", {num}},
        {"means", {num, dim}},
        {"covariances", fit::covariance_shape(fit::parse_covariance(model.covariance), num, dim)}};
  }
  if (model.model == "linear") return {{"coefficients", {dim}}, {"intercept", {}}};
  if (model.model == "logistic") {
    const auto classes = std::ssize(model.classes);
    const int64_t outputs = classes == 2 ? 1 : classes;
    return {{"coefficients", {outputs, dim}}, {"intercepts", {outputs}}};
  }
  if (model.model == "pca") return {{"directions", {dim, first("directions")}}, {"mean", {dim}}};
  return {};
}

void check_tensors(const FittedModel& model, const std::filesystem::path& path) {
  const Shapes shapes = shapes_of(model);
  bool fits = shapes.size() == model.tensors.size();
  for (const auto& [name, shape] : shapes) {
    const auto found = model.tensors.find(name);
    fits = fits && found != model.tensors.end() && found->second.sizes() == shape &&
           found->second.scalar_type() == at::kDouble;
  }
  if (!fits)
    throw UserError(fmt::format("the tensors are no model {} over {} columns", model.model,
                                model.columns.size()),
                    "fit the model again", path.string());
}

}  // namespace

void save_model(const std::filesystem::path& run, const FittedModel& model) {
  const Json words = {{"model", model.model},
                      {"columns", model.columns},
                      {"target", model.target},
                      {"classes", model.classes},
                      {"covariance", model.covariance}};
  io::write_safetensors(file_of(run), model.tensors, {{kKey, words.dump()}});
}

FittedModel load_model(const std::filesystem::path& run) {
  const std::filesystem::path path = file_of(run);
  if (!std::filesystem::exists(path))
    throw UserError(
        fmt::format("{} holds no model: it has no {}", run.string(), path.filename().string()),
        "give the folder of a finished `dovetail fit`");
  const io::SafetensorsFile file(path);
  const auto found = file.metadata().find(kKey);
  const Json words = found == file.metadata().end()
                         ? Json()
                         : Json::parse(found->second, nullptr, /*allow_exceptions=*/false);
  FittedModel model;
  try {
    words.at("model").get_to(model.model);
    words.at("columns").get_to(model.columns);
    words.at("target").get_to(model.target);
    words.at("classes").get_to(model.classes);
    words.at("covariance").get_to(model.covariance);
    if (model.model == "gmm") fit::parse_covariance(model.covariance);
  } catch (const std::exception&) {
    throw UserError("this is no model of `dovetail fit`", "give the folder of a finished run",
                    path.string());
  }
  for (const std::string& name : file.names()) model.tensors.emplace(name, file.read(name));
  check_tensors(model, path);
  return model;
}

}  // namespace dovetail::cli
