#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dovetail/models/gpt.h"
#include "dovetail/mx/linear.h"
#include "dovetail/train/config.h"

namespace dovetail {

/// Throws UserError for what can be known to be wrong without a model: an unknown recipe, an override without layers, a
/// recipe of the user's with a name that is taken.
void check_precision(const PrecisionSection& config);

/// The quantized Linears of a model: those of all blocks if the run's recipe quantizes, as the overrides say. The head
/// stays in high precision.
class Quantization {
 public:
  /// Gives each Linear of `model` its recipe. `name` is the run's recipe as resolved ("mxfp8", "bf16"). Throws
  /// UserError for an override that matches no Linear, naming those there are, and for one that quantizes under fp64.
  Quantization(GPT& model, const PrecisionSection& config, const std::string& name);

  /// Before a step's first forward pass. Stochastic rounding follows from `seed`, the layer's place and the order of
  /// its backward calls.
  void begin_step(uint64_t seed);

  /// The recipe of Linears that no override names.
  const mx::LinearRecipe& base() const { return base_; }
  /// In the order of the model; empty when nothing is quantized.
  const std::vector<std::shared_ptr<Linear>>& layers() const { return layers_; }

 private:
  mx::LinearRecipe base_;
  std::vector<std::shared_ptr<Linear>> layers_;
};

}  // namespace dovetail
