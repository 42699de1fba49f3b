#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/base/schema/schema.h"
#include "dovetail/mx/format.h"

/// Recipes: quantization of the three tensors of a Linear in training, as data.
namespace dovetail::mx {

/// Elements that share a scale. Microscaling: 1x32 along each product's reduction; 32x32 only for
/// weights, with one copy for both products. FP8 (float8.h): 1x128 along the reduction; 128x128
/// only for weights; one scale for the whole tensor.
enum class Blocks { k1x32, k32x32, k1x128, k128x128, kTensor };
/// Returns "1x32", "32x32", "1x128", "128x128" or "tensor".
std::string_view name(Blocks blocks);

/// Quantization of one operand of a Linear's products. Without `format`, it stays in high
/// precision.
struct OperandRecipe {
  std::optional<Format> format = std::nullopt;
  Blocks blocks = Blocks::k1x32;
  ScaleMode scale_mode = ScaleMode::kRoundUp;  ///< rule for power-of-two scales
  bool float32_scales = false;                 ///< FP8 only: scales are not powers of two
  /// Whole tensors only. If > 0: delayed scaling, by the largest magnitude in this number of
  /// earlier steps.
  int64_t history = 0;
  Rounding rounding = Rounding::kNearestEven;  ///< only microscaled gradients may be stochastic

  bool is_microscaling() const { return blocks == Blocks::k1x32 || blocks == Blocks::k32x32; }
  bool operator==(const OperandRecipe&) const = default;
};

enum class Operand { kWeight, kActivation, kGradient };
constexpr std::array<Operand, 3> kOperands = {Operand::kWeight, Operand::kActivation,
                                              Operand::kGradient};
/// Returns "weight", "activation" or "gradient".
std::string_view name(Operand operand);

/// Quantization of a Linear: its weight, its input and the gradient of its output.
struct LinearRecipe {
  OperandRecipe weight, activation, gradient;

  bool quantizes() const { return weight.format || activation.format || gradient.format; }
  OperandRecipe& of(Operand operand);
  const OperandRecipe& of(Operand operand) const;
  bool operator==(const LinearRecipe&) const = default;
};

struct Recipe {
  std::string name, help;
  LinearRecipe linear;
  int64_t high_precision_ends = 0;  ///< blocks at each end of the model that are not quantized
};

/// Recipe in the form in which users write it, [[precision.recipes]]. The built-in recipes in
/// recipe.cpp have the same form.
struct RecipeSection {
  struct OperandSection {
    std::string format = "e4m3";  ///< format name, or "none"
    std::string blocks = "1x32";
    std::string scale_mode = "round_up";
    int64_t history = 0;
    std::string rounding = "nearest_even";
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
/// - delayed scaling of blocks.
Recipe make_recipe(const RecipeSection& section);

/// Returns bf16 and the quantizing recipes that come with Dovetail.
const std::vector<Recipe>& built_in_recipes();

/// Finds a recipe by name. Throws UserError listing the names if there is none.
const Recipe& find_recipe(const std::vector<Recipe>& recipes, std::string_view name);

}  // namespace dovetail::mx
