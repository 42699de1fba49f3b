#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dovetail/models/config.h"

/// Mapping between models of Dovetail and of `transformers`. Import and export use the same tables.
namespace dovetail::models {

enum class HuggingfaceArchitecture { kLlama, kMixtral, kGpt2 };

/// Layout of one Dovetail parameter in Hugging Face files. Its rows are split among the tensors of
/// `parts`, in order. `transposed` is true if the file stores (in, out). A vector has 0 columns.
struct TensorLayout {
  struct Part {
    std::string name;
    int64_t rows = 0;
  };
  std::string ours;
  std::vector<Part> parts;
  int64_t columns = 0;
  bool transposed = false;

  /// Returns the shape of a part in the file.
  std::vector<int64_t> shape_of(const Part& part) const;
};

/// Calls `visit` with every parameter of a model of this (resolved) config. Does not build a list
/// of them, since a config.json can ask for more than memory holds. `visit` may stop the walk by
/// throwing an exception.
void visit_huggingface_tensors(HuggingfaceArchitecture architecture, const ModelConfig& config,
                               const std::function<void(const TensorLayout&)>& visit);

/// Returns the architecture that can express `config`. Throws UserError that names the first key
/// which no architecture can express.
HuggingfaceArchitecture huggingface_architecture(const ModelConfig& config);

/// Returns config.json without the tokenizer's entries.
nlohmann::json to_huggingface_config(HuggingfaceArchitecture architecture,
                                     const ModelConfig& config);

struct HuggingfaceModel {
  HuggingfaceArchitecture architecture;
  ModelConfig config;  ///< resolved
};
/// Parses a config.json. Throws UserError that names what is not supported. Errors give `name` as
/// the file.
HuggingfaceModel from_huggingface_config(const nlohmann::json& json, const std::string& name);

}  // namespace dovetail::models
