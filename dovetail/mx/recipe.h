#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/base/schema.h"
#include "dovetail/mx/format.h"

/// How the three tensors of a Linear are quantized in training, as data.
namespace dovetail::mx {

/// One operand of a Linear's products. `format` empty: high precision, as it comes.
struct OperandRecipe {
  std::optional<Format> format = std::nullopt;
  ScaleMode scale_mode = ScaleMode::kRoundUp;
  Rounding rounding = Rounding::kNearestEven;  ///< gradients only may be stochastic
  bool square = false;                         ///< weights only: blocks of 32 x 32, one copy for both products

  bool operator==(const OperandRecipe&) const = default;
};

enum class Operand { kWeight, kActivation, kGradient };
/// "weight", "activation", "gradient".
std::string_view name(Operand operand);

/// Weight, input and output's gradient of a Linear.
struct LinearRecipe {
  OperandRecipe weight, activation, gradient;

  bool quantizes() const { return weight.format || activation.format || gradient.format; }
  OperandRecipe& of(Operand operand);
  bool operator==(const LinearRecipe&) const = default;
};

struct Recipe {
  std::string name, help;
  LinearRecipe linear;
};

/// A recipe as users write it, [[precision.recipes]], and as ours are written in recipe.cpp.
struct RecipeSection {
  struct OperandSection {
    std::string format = "e4m3";  ///< a microscaling format, or "none"
    std::string scale_mode = "round_up";
    std::string rounding = "nearest_even";
    std::string blocks = "1x32";
    void describe(Section& s);
  };
  std::string name, help;
  OperandSection weight, activation, gradient;
  void describe(Section& s);
};

/// Throws UserError naming recipe and operand for what cannot be: stochastic rounding of what forward and backward both
/// read, square blocks of anything but a weight.
Recipe make_recipe(const RecipeSection& section);

/// bf16 and the microscaling recipes that come with Dovetail.
const std::vector<Recipe>& built_in_recipes();

/// Throws UserError listing the names there are.
const Recipe& find_recipe(const std::vector<Recipe>& recipes, std::string_view name);

}  // namespace dovetail::mx
