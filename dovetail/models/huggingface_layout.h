#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dovetail/models/config.h"

/// How our models and those of `transformers` correspond; both directions read the same tables.
namespace dovetail {

enum class HuggingfaceArchitecture { kLlama, kMixtral, kGpt2 };

/// One of our parameters as Hugging Face tensors: its rows in order, `rows` of each; `transposed`
/// where theirs is (in, out). A vector has 0 columns.
struct TensorLayout {
  struct Part {
    std::string name;
    int64_t rows = 0;
  };
  std::string ours;
  std::vector<Part> parts;
  int64_t columns = 0;
  bool transposed = false;

  /// Shape of a part in the file.
  std::vector<int64_t> shape_of(const Part& part) const;
};

/// Calls `visit` with every parameter of a model of this (resolved) config. No list of them is
/// made: a config.json can ask for more than memory holds, and `visit` ends the walk by an
/// exception.
void visit_huggingface_tensors(HuggingfaceArchitecture architecture, const ModelConfig& config,
                               const std::function<void(const TensorLayout&)>& visit);

/// The architecture that can express `config`. Throws UserError naming the first key that none can.
HuggingfaceArchitecture huggingface_architecture(const ModelConfig& config);

/// config.json without what belongs to the tokenizer.
nlohmann::json to_huggingface_config(HuggingfaceArchitecture architecture,
                                     const ModelConfig& config);

struct HuggingfaceModel {
  HuggingfaceArchitecture architecture;
  ModelConfig config;  ///< resolved
};
/// Throws UserError naming what is not supported; `name` stands in errors.
HuggingfaceModel from_huggingface_config(const nlohmann::json& json, const std::string& name);

}  // namespace dovetail
