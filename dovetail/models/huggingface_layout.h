#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dovetail/models/config.h"

/// Mapping between GPT models of this project (Dovetail) and models of Hugging Face `transformers`.
/// Import and export use the same functions.
namespace dovetail::models {

enum class HuggingfaceArchitecture { kLlama, kMixtral, kGpt2 };

/// Layout of one parameter of GPT in Hugging Face files. The files may split its rows among several
/// tensors. Example: attention.qkv is split into q_proj, k_proj and v_proj.
struct TensorLayout {
  /// Tensor in the files that holds some rows of the parameter.
  struct Part {
    std::string name;  ///< name of the tensor in the files
    int64_t rows = 0;  ///< number of rows of the parameter that the tensor holds
  };
  std::string ours;         ///< name of the parameter in GPT
  std::vector<Part> parts;  ///< tensors that hold the parameter, in the order of its rows
  int64_t columns = 0;      ///< columns of the parameter; 0: the parameter is a vector
  bool transposed = false;  ///< true if the files store (in, out) instead of (out, in)

  /// Returns the shape that `part` has in the file.
  std::vector<int64_t> shape_of(const Part& part) const;
};

/// Calls `visit` with the layout of every parameter of a model with this (resolved) config. The
/// layouts are not collected in a list: a config.json can ask for more of them than memory holds.
/// `visit` may stop the walk by throwing an exception.
void visit_huggingface_tensors(HuggingfaceArchitecture architecture, const ModelConfig& config,
                               const std::function<void(const TensorLayout&)>& visit);

/// Returns the architecture that can express `config`. If there is none, throws UserError that
/// names, for each architecture, the first key that it cannot express.
HuggingfaceArchitecture huggingface_architecture(const ModelConfig& config);

/// Returns the content of config.json for `config`, without the entries for the tokenizer.
nlohmann::json to_huggingface_config(HuggingfaceArchitecture architecture,
                                     const ModelConfig& config);

struct HuggingfaceModel {
  HuggingfaceArchitecture architecture;
  ModelConfig config;  ///< zeros replaced by their defaults (resolve_model_config)
};
/// Parses the content of a config.json. Throws UserError that names the entry which is not
/// supported. `name` is the file's name in error messages.
HuggingfaceModel from_huggingface_config(const nlohmann::json& json, const std::string& name);

}  // namespace dovetail::models
