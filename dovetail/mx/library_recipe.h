#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/mx/native.h"
#include "dovetail/mx/recipe.h"

namespace dovetail::mx {

/// Recipe of an operator of torch.ops.dovetail.
struct LibraryRecipe {
  std::string name;
  LinearRecipe linear;
  Gemm gemm = Gemm::kEmulated;
  bool draws = false;  ///< an operand is rounded stochastically
};

/// Returns the recipe that `text` stands for. The text is the name of a built-in recipe, or TOML.
/// The TOML has the key `gemm` ("emulated" or "native") and one table [[recipe]] with the keys of
/// RecipeSection. Results are cached for the life of the process, so the reference stays valid.
/// Throws UserError for
/// - an unknown name,
/// - TOML that is no recipe,
/// - delayed scaling, which needs earlier steps.
const LibraryRecipe& library_recipe(std::string_view text);

/// Returns for weight, activation and gradient how many elements along the reduction share a scale.
/// 1: not quantized. 0: a scale spans the whole tensor, alone or beside scales of blocks (NVFP4).
std::vector<int64_t> scaled_elements(const LinearRecipe& recipe);

/// Returns a built-in recipe as JSON with the keys of RecipeSection. Throws UserError for an
/// unknown name.
std::string recipe_json(std::string_view name);

}  // namespace dovetail::mx
