#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace dovetail::cli {

/// Fitted model of `dovetail fit`, as its run folder holds it in model.safetensors. D is the number
/// of columns, K of components, M of outputs (fit::LogisticResult). Tensors are float64, by model:
///
/// - gmm: weights (K), means (K, D), covariances (fit::Mixture)
/// - linear: coefficients (D), intercept ()
/// - logistic: coefficients (M, D), intercepts (M)
/// - pca: directions (D, components), mean (D)
struct FittedModel {
  std::string model;                 ///< name of the model: "gmm", "linear", "logistic" or "pca"
  std::vector<std::string> columns;  ///< D names of the table's columns
  std::map<std::string, at::Tensor> tensors;
  std::string target = {};                ///< name of the target; empty if the model has none
  std::vector<std::string> classes = {};  ///< names of the classes of logistic
  std::string covariance = {};            ///< structure of the covariances of gmm
};

/// Writes the model into the folder of a run.
void save_model(const std::filesystem::path& run, const FittedModel& model);
/// Reads the model of a run. Throws UserError if the folder has none, or if its tensors do not fit.
FittedModel load_model(const std::filesystem::path& run);

}  // namespace dovetail::cli
