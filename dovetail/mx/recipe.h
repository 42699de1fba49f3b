#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/base/schema/schema.h"
#include "dovetail/mx/format.h"

/// How the three tensors of a Linear are quantized in training, as data.
namespace dovetail::mx {

/// Elements that share a scale. 1x32: microscaling, along each product's reduction; 32x32 for
/// weights only, one copy for both products. The others are FP8 (float8.h): 1x128 along the
/// reduction, 128x128 for weights only, one scale for the whole tensor.
enum class Blocks { k1x32, k32x32, k1x128, k128x128, kTensor };
/// "1x32", "32x32", "1x128", "128x128", "tensor".
std::string_view name(Blocks blocks);

/// One operand of a Linear's products. `format` empty: high precision, as it comes.
struct OperandRecipe {
  std::optional<Format> format = std::nullopt;
  Blocks blocks = Blocks::k1x32;
  ScaleMode scale_mode = ScaleMode::kRoundUp;  ///< of scales that are powers of two
  bool float32_scales = false;                 ///< FP8 only: no powers of two
  int64_t history = 0;  ///< whole tensors only: > 0: delayed scaling, by the largest magnitude of
                        ///< so many earlier steps
  Rounding rounding = Rounding::kNearestEven;  ///< microscaled gradients only may be stochastic

  bool is_microscaling() const { return blocks == Blocks::k1x32 || blocks == Blocks::k32x32; }
  bool operator==(const OperandRecipe&) const = default;
};

enum class Operand { kWeight, kActivation, kGradient };
constexpr std::array<Operand, 3> kOperands = {Operand::kWeight, Operand::kActivation,
                                              Operand::kGradient};
/// "weight", "activation", "gradient".
std::string_view name(Operand operand);

/// Weight, input and output's gradient of a Linear.
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
  int64_t high_precision_ends = 0;  ///< so many blocks at either end of the model are not quantized
};

/// A recipe as users write it, [[precision.recipes]], and as ours are written in recipe.cpp.
struct RecipeSection {
  struct OperandSection {
    std::string format = "e4m3";  ///< or "none"
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

/// Throws UserError naming recipe and operand for what cannot be: stochastic rounding of what
/// forward and backward both read, square blocks of anything but a weight, a float32 scale for
/// blocks of 32, delayed scaling of blocks.
Recipe make_recipe(const RecipeSection& section);

/// bf16 and the quantizing recipes that come with Dovetail.
const std::vector<Recipe>& built_in_recipes();

/// Throws UserError listing the names there are.
const Recipe& find_recipe(const std::vector<Recipe>& recipes, std::string_view name);

}  // namespace dovetail::mx
