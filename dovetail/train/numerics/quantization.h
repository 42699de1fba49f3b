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

#include "dovetail/mx/amax_history.h"
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

/// Throws UserError for mistakes in [precision] that can be found without a model. Examples: an
/// unknown recipe, an override without layers, a recipe name that is taken. It also throws if
/// high_precision_ends has no effect. This key of a recipe is the number of blocks at each end of
/// the model that are not quantized.
void check_precision(const PrecisionSection& config);

/// Returns all values of precision.recipe except "auto": dtypes, built-in recipes, then the recipes
/// in `config`.
std::vector<std::string> precision_names(const PrecisionSection& config);

/// Returns true if precision.recipe or an override quantizes an operand of a Linear. `config` has
/// passed check_precision.
bool quantizes(const PrecisionSection& config);

/// Throws UserError if `device` cannot multiply quantized operands natively, without decoding them.
/// For runs with precision.gemm = "native".
void check_native(const mx::NativeDevice& device);

/// Quantized Linears of a model. Operands of a Linear are its weight, its input (activation) and
/// the gradient of its output. A recipe gives each operand a format, or leaves it in high
/// precision. The recipe in use (Precision::name) applies to the Linears of all blocks, except
/// where an override applies. The head stays in high precision.
///
/// With delayed scaling, a scale follows from the largest magnitudes (amax) of earlier steps.
class Quantization {
 public:
  /// Sets the recipe of each Linear of `model`. `name` is Precision::name ("mxfp8", "bf16"). Throws
  /// UserError in these cases:
  ///
  /// - An override matches no Linear. The error names the Linears.
  /// - An override changes no recipe, or quantizes under fp64.
  /// - Native products are required, but not possible. The error names the first layer and operand.
  Quantization(models::GPT& model, const PrecisionSection& config, const std::string& name);

  /// Call before a step's first forward pass. Stochastic rounding depends on `seed`, the index of
  /// the layer and the order of its backward calls. `count`: true if `statistics` will be called
  /// for this step.
  void begin_step(uint64_t seed, bool count = true);

  /// Call after each step that was not skipped, on all ranks together. For delayed scaling, stores
  /// the step's amax values: the maxima over all ranks. Does not wait for a GPU.
  void end_step(comm::Group& group);

  /// Returns the amax values that delayed scaling has stored, for a checkpoint. Names are
  /// "quantization.amax.<layer>.<operand>". Empty without delayed scaling.
  std::map<std::string, at::Tensor> tensors() const;
  /// Prefix of the names in `tensors()`.
  static constexpr std::string_view kTensorPrefix = "quantization.";
  /// Restores the amax values of a checkpoint: copies rank 0's `tensors` to all ranks. Throws
  /// UserError if a tensor is missing, unknown or of another length.
  void load(const std::map<std::string, at::Tensor>& tensors, comm::Group& group);

  /// Returns statistics of quantization since `begin_step`, as a line of quantization.jsonl:
  ///
  ///   {"step", "tensors": [{"layer", "tensor", "format", "blocks", "scale_mode", "underflow",
  ///   "saturation", "saturating_blocks", "saturating_blocks_under_floor", "non_finite_blocks",
  ///   "sqnr_db", "amax", "scales": [minimum, maximum exponent]}]}
  ///
  /// "underflow" is the fraction of elements that rounding made zero, "saturation" the fraction
  /// beyond the format's range. "saturating_blocks" is the fraction of blocks with such elements.
  /// "saturating_blocks_under_floor" is the same fraction if scale_mode were floor. "sqnr_db" is
  /// the signal-to-noise ratio in dB, or null if there is no error.
  nlohmann::ordered_json statistics(int64_t step) const;
  /// Returns warnings about a line that `statistics` has returned. There are two kinds:
  ///
  /// - Underflow: rounding makes more than the fraction kMostUnderflow of a tensor's elements zero.
  /// - Saturation: more than the fraction kMostSaturation of a tensor's blocks have elements beyond
  ///   the format's range.
  ///
  /// Each kind gives at most one warning for weights, one for activations and one for gradients. It
  /// names the layer with the highest fraction. Later calls do not warn of the same tensor and kind
  /// again.
  std::vector<std::string> warnings(const nlohmann::ordered_json& statistics);
  static constexpr double kMostUnderflow = 0.25, kMostSaturation = 0.01;

  /// Returns the recipe of every Linear that a recipe may quantize, in the order of
  /// mx::quantizable_linears.
  const std::vector<mx::LinearRecipe>& recipes() const { return recipes_; }
  /// Returns the Linears that are quantized, in the order of the model. Empty if none is.
  const std::vector<std::shared_ptr<mx::Linear>>& layers() const { return layers_; }

 private:
  std::vector<mx::LinearRecipe> recipes_;
  std::vector<std::shared_ptr<mx::Linear>> layers_;
  /// Histories of all operands with delayed scaling and the same length. `names` are in the order
  /// of the histories: "<layer>.<operand>".
  struct Delayed {
    std::vector<std::string> names;
    mx::AmaxHistories histories;
  };
  void make_histories();

  std::vector<Delayed> delayed_;
  std::set<std::string> warned_;  ///< kinds and tensors that `warnings` has counted
};

}  // namespace dovetail::train
