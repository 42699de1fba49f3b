#include "dovetail/train/quantization.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <array>

#include "dovetail/base/error.h"
#include "dovetail/base/rng.h"

namespace dovetail {
namespace {

constexpr std::array<mx::Operand, 3> kOperands = {mx::Operand::kWeight, mx::Operand::kActivation,
                                                  mx::Operand::kGradient};

/// Names of precision.recipe that say a dtype and nothing else.
bool names_dtype(const std::string& recipe) { return recipe == "auto" || recipe == "fp32" || recipe == "fp64"; }

/// Ours, then the user's.
std::vector<mx::Recipe> all_recipes(const PrecisionSection& config) {
  std::vector<mx::Recipe> recipes = mx::built_in_recipes();
  for (const mx::RecipeSection& section : config.recipes) {
    const bool taken = names_dtype(section.name) || std::any_of(recipes.begin(), recipes.end(), [&](const auto& other) {
                         return other.name == section.name;
                       });
    if (taken)
      throw UserError(fmt::format("precision.recipes: the name \"{}\" is taken", section.name), "choose another name");
    recipes.push_back(mx::make_recipe(section));
  }
  return recipes;
}

std::vector<mx::Operand> operands(const PrecisionOverride& entry) {
  std::vector<mx::Operand> result;
  for (const std::string& tensor : entry.tensors) {
    const auto found = std::find_if(kOperands.begin(), kOperands.end(),
                                    [&](mx::Operand operand) { return mx::name(operand) == tensor; });
    user_check(found != kOperands.end(),
               "precision.override.tensors names \"{}\"; valid are weight, activation, gradient", tensor);
    result.push_back(*found);
  }
  return result;
}

bool matches(const PrecisionOverride& entry, const std::string& name) {
  return std::any_of(entry.layers.begin(), entry.layers.end(),
                     [&](const std::string& glob) { return fnmatch(glob.c_str(), name.c_str(), 0) == 0; });
}

/// The Linears of the blocks.
std::vector<std::shared_ptr<Linear>> block_linears(const GPT& model) {
  std::vector<std::shared_ptr<Linear>> found;
  for (const auto& module : model.modules(/*include_self=*/false)) {
    auto linear = std::dynamic_pointer_cast<Linear>(module);
    if (linear && linear->options().role != LinearRole::kHead) found.push_back(std::move(linear));
  }
  return found;
}

void check_globs(const PrecisionSection& config, const std::vector<std::shared_ptr<Linear>>& linears) {
  for (const PrecisionOverride& entry : config.overrides) {
    for (const std::string& glob : entry.layers) {
      const PrecisionOverride one = {.layers = {glob}};
      const bool used = std::any_of(linears.begin(), linears.end(),
                                    [&](const auto& linear) { return matches(one, linear->options().name); });
      if (used) continue;
      throw UserError(fmt::format("precision.override.layers: \"{}\" matches no Linear of this model's blocks", glob),
                      fmt::format("they are called {} to {}; embedding and head stay in high precision",
                                  linears.front()->options().name, linears.back()->options().name));
    }
  }
}

}  // namespace

void check_precision(const PrecisionSection& config) {
  const std::vector<mx::Recipe> recipes = all_recipes(config);
  if (!names_dtype(config.recipe)) {
    std::vector<std::string> names = {"auto", "fp32", "fp64"};
    for (const mx::Recipe& recipe : recipes) names.push_back(recipe.name);
    if (std::find(names.begin(), names.end(), config.recipe) == names.end()) {
      const std::string nearest = nearest_word(config.recipe, names);
      throw UserError(fmt::format("precision.recipe = \"{}\" is not a recipe", config.recipe),
                      nearest.empty() ? fmt::format("use one of {}", fmt::join(names, ", "))
                                      : fmt::format("did you mean \"{}\"?", nearest));
    }
  }
  for (const PrecisionOverride& entry : config.overrides) {
    user_check(!entry.layers.empty(), "precision.override.layers is empty");
    operands(entry);
    mx::find_recipe(recipes, entry.recipe);
  }
}

Quantization::Quantization(GPT& model, const PrecisionSection& config, const std::string& name) {
  const std::vector<mx::Recipe> recipes = all_recipes(config);
  const std::vector<std::shared_ptr<Linear>> linears = block_linears(model);
  check_globs(config, linears);
  if (!names_dtype(name)) base_ = mx::find_recipe(recipes, name).linear;
  for (const auto& linear : linears) {
    mx::LinearRecipe recipe = base_;
    for (const PrecisionOverride& entry : config.overrides) {
      if (!matches(entry, linear->options().name)) continue;
      mx::LinearRecipe other = mx::find_recipe(recipes, entry.recipe).linear;
      for (const mx::Operand operand : operands(entry)) recipe.of(operand) = other.of(operand);
    }
    linear->set_recipe(recipe);
    if (recipe.quantizes()) layers_.push_back(linear);
  }
  if (name == "fp64" && !layers_.empty())
    throw UserError(
        fmt::format("precision.override quantizes {}, but the run computes in fp64", layers_.front()->options().name),
        "use precision.recipe = \"bf16\" or \"fp32\"");
}

void Quantization::begin_step(uint64_t seed) {
  for (size_t i = 0; i < layers_.size(); ++i) layers_[i]->quantized()->begin_step(mix_seed(seed, i));
}

}  // namespace dovetail
