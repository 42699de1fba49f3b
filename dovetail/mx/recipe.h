#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/base/schema/schema.h"
#include "dovetail/mx/format.h"

/// Recipes: the number formats in which the weight, the input and the output gradient of a Linear
/// are quantized in training.
namespace dovetail::mx {

/// Elements that share one scale. FP8 is described in float8.h.
///   k1x32     microscaling: 32 elements along the reduction of each product
///   k32x32    microscaling of weights: 32 x 32 elements, with one copy for all products
///   k1x128    FP8: 128 elements along the reduction of each product
///   k128x128  FP8 of weights: 128 x 128 elements
///   kTensor   FP8: the whole tensor
///   k1x16     NVFP4 (nvfp4.h): 16 elements along the reduction of each product
///   k16x16    NVFP4 of weights: 16 x 16 elements, with one copy for all products
enum class Blocks { k1x32, k32x32, k1x128, k128x128, kTensor, k1x16, k16x16 };
/// Returns "1x32", "32x32", "1x128", "128x128", "tensor", "1x16" or "16x16".
std::string_view name(Blocks blocks);

/// Quantization of one operand of a Linear's products. If `format` is not set, the operand stays in
/// high precision.
struct OperandRecipe {
  std::optional<Format> format = std::nullopt;
  Blocks blocks = Blocks::k1x32;
  ScaleMode scale_mode = ScaleMode::kRoundUp;  ///< rule for power-of-two scales
  bool float32_scales = false;                 ///< FP8 only: scales are any float32 numbers
  /// Delayed scaling, for kTensor only: number of earlier steps whose largest magnitude sets the
  /// scale. 0: the tensor's own largest magnitude sets the scale.
  int64_t history = 0;
  /// kStochastic is allowed only for gradients in microscaling formats and NVFP4.
  Rounding rounding = Rounding::kNearestEven;
  /// NVFP4 only: random Hadamard transform (nvfp4.h) of the operand in the product that gives the
  /// weight's gradient. Both operands of the product must have it.
  bool hadamard = false;

  bool is_microscaling() const { return blocks == Blocks::k1x32 || blocks == Blocks::k32x32; }
  bool is_nvfp4() const { return blocks == Blocks::k1x16 || blocks == Blocks::k16x16; }
  /// Returns true if codes of the operand can be kept for backward instead of its numbers.
  bool keeps_codes() const { return format && !is_nvfp4(); }
  bool operator==(const OperandRecipe&) const = default;
};

/// Tensors of a Linear that a recipe may quantize: its weight, its input, the gradient of its
/// output.
enum class Operand { kWeight, kActivation, kGradient };
constexpr std::array<Operand, 3> kOperands = {Operand::kWeight, Operand::kActivation,
                                              Operand::kGradient};
/// Returns "weight", "activation" or "gradient".
std::string_view name(Operand operand);

/// Quantization of a Linear: its weight, its input (activation) and the gradient of its output.
struct LinearRecipe {
  OperandRecipe weight, activation, gradient;

  /// Returns true if at least one operand is quantized.
  bool quantizes() const { return weight.format || activation.format || gradient.format; }
  OperandRecipe& of(Operand operand);
  const OperandRecipe& of(Operand operand) const;
  bool operator==(const LinearRecipe&) const = default;
};

struct Recipe {
  std::string name, help;
  LinearRecipe linear;
  /// Number of transformer blocks at each end of the model that stay in high precision.
  int64_t high_precision_ends = 0;
};

/// Recipe as users write it in a config, in [[precision.recipes]]. The built-in recipes in
/// recipe.cpp have the same form.
struct RecipeSection {
  struct OperandSection {
    std::string format = "e4m3";  ///< format name, or "none": not quantized
    std::string blocks = "1x32";
    std::string scale_mode = "round_up";
    int64_t history = 0;
    std::string rounding = "nearest_even";
    bool hadamard = false;
    void describe(Section& s);
  };
  std::string name, help;
  int64_t high_precision_ends = 0;
  OperandSection weight, activation, gradient;
  void describe(Section& s);
};

/// Makes a recipe. Throws UserError, naming recipe and operand, for
/// - stochastic rounding of a tensor that forward and backward both read,
/// - square blocks of a tensor other than a weight,
/// - a float32 scale for blocks of 32,
/// - FP8 blocks with an element format or scale mode that FP8 lacks,
/// - delayed scaling of blocks,
/// - NVFP4 blocks with another format than E2M1 or another scale mode than "e4m3", and the reverse,
/// - a Hadamard transform of a weight, outside NVFP4, or of one operand alone,
/// - options of an operand with format "none".
Recipe make_recipe(const RecipeSection& section);

/// Throws UserError that begins with `of` if only one of activation and gradient has a Hadamard
/// transform. Their product would then be wrong.
void check_hadamard(const LinearRecipe& recipe, std::string_view of);

/// Returns the recipes that come with Dovetail: "bf16", which quantizes nothing, and recipes that
/// quantize.
const std::vector<Recipe>& built_in_recipes();

/// Finds a recipe by name. Throws UserError listing the names if there is none.
const Recipe& find_recipe(const std::vector<Recipe>& recipes, std::string_view name);

}  // namespace dovetail::mx
