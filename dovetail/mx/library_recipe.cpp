#include "dovetail/mx/library_recipe.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/schema/schema.h"
#include "dovetail/mx/float8.h"

namespace dovetail::mx {

namespace {

std::pair<Recipe, Gemm> parse(std::string_view text) {
  if (text.find('=') == std::string_view::npos)
    return {find_recipe(built_in_recipes(), text), Gemm::kEmulated};
  std::vector<RecipeSection> sections;
  std::string gemm = "emulated";
  parse_config(
      [&](Section& s) {
        s.value("gemm", gemm, "Products").choices({"emulated", "native"});
        s.list("recipe", sections, "Recipes");
      },
      text, "recipe");
  user_check(sections.size() == 1, "a recipe has {} tables [[recipe]]; give one", sections.size());
  return {make_recipe(sections[0]), gemm == "native" ? Gemm::kNative : Gemm::kEmulated};
}

/// Does the same. Errors include their help, which Python would not see.
std::pair<Recipe, Gemm> parse_with_help(std::string_view text) {
  try {
    return parse(text);
  } catch (const UserError& error) {
    if (error.help().empty()) throw;
    throw UserError(fmt::format("{}; {}", error.what(), error.help()));
  }
}

LibraryRecipe made(std::string_view text) {
  const std::pair<Recipe, Gemm> parsed = parse_with_help(text);
  const Recipe& recipe = parsed.first;
  for (const Operand operand : kOperands)
    user_check(recipe.linear.of(operand).history == 0,
               "mx_linear: {} scales by magnitudes of earlier steps, which a function has not; "
               "`dovetail train` can",
               recipe.name);
  return {.name = recipe.name,
          .linear = recipe.linear,
          .gemm = parsed.second,
          .draws = std::ranges::any_of(kOperands, [&](Operand operand) {
            return recipe.linear.of(operand).rounding == Rounding::kStochastic;
          })};
}

}  // namespace

const LibraryRecipe& library_recipe(std::string_view text) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<const LibraryRecipe>, std::less<>> known;
  const std::lock_guard<std::mutex> lock(mutex);
  auto found = known.find(text);
  if (found == known.end())
    found = known.emplace(text, std::make_unique<const LibraryRecipe>(made(text))).first;
  return *found->second;
}

std::vector<int64_t> scaled_elements(const LinearRecipe& recipe) {
  const auto of = [&](Operand operand) -> int64_t {
    const OperandRecipe& how = recipe.of(operand);
    if (!how.format) return 1;
    switch (how.blocks) {
      case Blocks::k1x32:
      case Blocks::k32x32:
        return kBlock;
      case Blocks::k1x128:
      case Blocks::k128x128:
        return kFloat8Block;
      case Blocks::kTensor:
      case Blocks::k1x16:
      case Blocks::k16x16:
        return 0;
    }
    return 0;
  };
  return {of(Operand::kWeight), of(Operand::kActivation), of(Operand::kGradient)};
}

std::string recipe_json(std::string_view recipe_name) {
  const Recipe& recipe = find_recipe(built_in_recipes(), recipe_name);
  nlohmann::json json = {{"name", recipe.name},
                         {"help", recipe.help},
                         {"high_precision_ends", recipe.high_precision_ends}};
  for (const Operand operand : kOperands) {
    const OperandRecipe& of = recipe.linear.of(operand);
    nlohmann::json& fields = json[std::string(name(operand))];
    fields = {{"format", "none"}};
    if (!of.format) continue;
    fields = {{"format", std::string(name(*of.format))},
              {"blocks", std::string(name(of.blocks))},
              {"scale_mode", of.float32_scales ? "float32"
                             : of.is_nvfp4()   ? "e4m3"
                                               : std::string(name(of.scale_mode))},
              {"history", of.history},
              {"rounding", std::string(name(of.rounding))},
              {"hadamard", of.hadamard}};
  }
  return json.dump();
}

}  // namespace dovetail::mx
