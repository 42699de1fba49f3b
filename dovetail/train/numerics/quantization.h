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

namespace dovetail::models {
class GPT;
}  // namespace dovetail::models

namespace dovetail::comm {
class Group;
}  // namespace dovetail::comm

namespace dovetail::mx {
class Linear;
}  // namespace dovetail::mx

namespace dovetail::train {

/// Throws UserError for mistakes that can be found without a model. Examples: an unknown recipe, an
/// override without layers, a recipe name that is taken, high_precision_ends without effect.
void check_precision(const PrecisionSection& config);

/// Returns true if the run's recipe or an override quantizes something. `config` has passed
/// check_precision.
bool quantizes(const PrecisionSection& config);

/// Throws UserError if `device` has no native products. For runs with precision.gemm = "native".
void check_native(const mx::NativeDevice& device);

/// Quantized Linears of a model. If the run's recipe quantizes, it applies to the Linears of all
/// blocks, except for overrides. The head stays in high precision.
class Quantization {
 public:
  /// Gives each Linear of `model` its recipe. `name` is the run's resolved recipe ("mxfp8",
  /// "bf16"). Throws UserError if an override matches no Linear, and names the Linears. Also throws
  /// if an override changes no recipe or quantizes under fp64. If native products are not possible,
  /// the error names the first layer and tensor.
  Quantization(models::GPT& model, const PrecisionSection& config, const std::string& name);

  /// Call before a step's first forward pass. Stochastic rounding is determined by `seed`, the
  /// layer's index and the order of its backward calls. `count`: true if `statistics` of the step
  /// will be read.
  void begin_step(uint64_t seed, bool count = true);

  /// Call after a step that was not skipped. Stores the step's amax values, maxima over all ranks,
  /// for delayed scaling.
  void end_step(comm::Group& group);

  /// State of delayed scaling in a checkpoint: "quantization.amax.<layer>.<operand>". Empty without
  /// delayed scaling.
  std::map<std::string, at::Tensor> tensors() const;
  static constexpr std::string_view kTensorPrefix = "quantization.";
  /// Copies rank 0's `tensors` to all ranks. Throws UserError if a tensor is missing, surplus or of
  /// another length.
  void load(const std::map<std::string, at::Tensor>& tensors, comm::Group& group);

  /// Returns statistics of quantization since `begin_step`, a line of quantization.jsonl:
  ///
  ///   {"step", "tensors": [{"layer", "tensor", "format", "blocks", "scale_mode", "underflow",
  ///   "saturation", "saturating_blocks", "saturating_blocks_under_floor", "non_finite_blocks",
  ///   "sqnr_db", "amax", "scales": [minimum, maximum exponent]}]}
  ///
  /// "underflow" and "saturation" are fractions of elements. "saturating_blocks" is a fraction of
  /// blocks; "saturating_blocks_under_floor" is the fraction that scale_mode floor would saturate.
  /// "sqnr_db" is null if there is no error.
  nlohmann::ordered_json statistics(int64_t step) const;
  /// Returns warnings about a line of `statistics`. A tensor underflows if it loses more than
  /// kMostUnderflow of its elements to zero. It saturates if more than kMostSaturation of its
  /// blocks do. Each warning names the worst weight, activation or gradient. Each tensor is warned
  /// of once.
  std::vector<std::string> warnings(const nlohmann::ordered_json& statistics);
  static constexpr double kMostUnderflow = 0.25, kMostSaturation = 0.01;

  /// Recipe of every Linear that could be quantized, in the order of `quantizable_linears`.
  const std::vector<mx::LinearRecipe>& recipes() const { return recipes_; }
  /// Quantized Linears in the order of the model; empty if nothing is quantized.
  const std::vector<std::shared_ptr<mx::Linear>>& layers() const { return layers_; }

 private:
  std::vector<mx::LinearRecipe> recipes_;
  std::vector<std::shared_ptr<mx::Linear>> layers_;
  std::set<std::string> warned_;
};

}  // namespace dovetail::train
