#pragma once

#include <ATen/core/Tensor.h>

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/mx/native.h"
#include "dovetail/train/config/run_config.h"

namespace dovetail {

class GPT;
class Group;
class Linear;

/// Throws UserError for mistakes that show without a model: an unknown recipe, an override without
/// layers, a name of a recipe that is taken. So are high_precision_ends without effect.
void check_precision(const PrecisionSection& config);

/// True if the run's recipe or an override's quantizes something. Of a config that check_precision
/// accepts.
bool quantizes(const PrecisionSection& config);

/// Of a run under precision.gemm = "native": throws UserError if `device` has no native products.
void check_native(const mx::NativeDevice& device);

/// The quantized Linears of a model: those of all blocks if the run's recipe quantizes, as the
/// overrides say. The head stays in high precision.
class Quantization {
 public:
  /// Gives each Linear of `model` its recipe. `name` is the run's recipe as resolved ("mxfp8",
  /// "bf16"). Throws UserError for an override that matches no Linear, naming the Linears. So it
  /// does for an override that changes no recipe or quantizes under fp64. Native products that
  /// cannot be are refused with the first layer and tensor.
  Quantization(GPT& model, const PrecisionSection& config, const std::string& name);

  /// Before a step's first forward pass. Stochastic rounding follows from `seed`, the layer's place
  /// and the order of its backward calls. `count`: whether `statistics` of the step will be read.
  void begin_step(uint64_t seed, bool count = true);

  /// After a step that was not skipped: puts its largest magnitudes, over all ranks, where delayed
  /// scaling reads them.
  void end_step(Group& group);

  /// What delayed scaling knows, as it stands in a checkpoint:
  /// "quantization.amax.<layer>.<operand>". Empty without it.
  std::map<std::string, at::Tensor> tensors() const;
  static constexpr std::string_view kTensorPrefix = "quantization.";
  /// Rank 0's `tensors` to all ranks. Throws UserError for what is missing, too much or of another
  /// length.
  void load(const std::map<std::string, at::Tensor>& tensors, Group& group);

  /// What quantization did since `begin_step`, a line of quantization.jsonl: {"step", "tensors":
  /// [{"layer", "tensor", "format", "blocks", "scale_mode", "underflow", "saturation" (shares of
  /// elements), "saturating_blocks", "saturating_blocks_under_floor" (shares of blocks: scale_mode
  /// floor would have done that), "non_finite_blocks", "sqnr_db" (null without error), "amax",
  /// "scales": [least, largest exponent]}]}.
  nlohmann::ordered_json statistics(int64_t step) const;
  /// Warnings about such a line, in words: the worst of the weights, of the activations and of the
  /// gradients that lose more than kMostUnderflow of their elements to zero, or saturate in more
  /// than kMostSaturation of their blocks. Each tensor counts once.
  std::vector<std::string> warnings(const nlohmann::ordered_json& statistics);
  static constexpr double kMostUnderflow = 0.25, kMostSaturation = 0.01;

  /// Of every Linear that could be quantized, in the order of `quantizable_linears`.
  const std::vector<mx::LinearRecipe>& recipes() const { return recipes_; }
  /// In the order of the model; empty when nothing is quantized.
  const std::vector<std::shared_ptr<Linear>>& layers() const { return layers_; }

 private:
  std::vector<mx::LinearRecipe> recipes_;
  std::vector<std::shared_ptr<Linear>> layers_;
  std::set<std::string> warned_;
};

}  // namespace dovetail
