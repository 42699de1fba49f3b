#include "dovetail/mx/recipe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "dovetail/base/error.h"

namespace dovetail::mx {

namespace {

// The same words as [[precision.recipes]] in a run's config. What is left out is E4M3, 1x32, round_up, nearest_even.
constexpr std::string_view kBuiltIn = R"toml(
[[recipe]]
name = "bf16"
help = "nothing is quantized"
weight = { format = "none" }
activation = { format = "none" }
gradient = { format = "none" }

[[recipe]]
name = "mxfp8"
help = "E4M3 for weights, activations and gradients, scales rounded up (arXiv 2506.08027)"

[[recipe]]
name = "mxfp8_e5m2_grad"
help = "mxfp8 with gradients in E5M2"
gradient = { format = "e5m2" }

[[recipe]]
name = "mxfp8_floor"
help = "mxfp8 with OCP v1.0's scales, under which the top of a binade saturates: to see the difference"
weight = { scale_mode = "floor" }
activation = { scale_mode = "floor" }
gradient = { scale_mode = "floor" }

[[recipe]]
name = "mxfp8_e5m2_grad_floor"
help = "mxfp8_e5m2_grad with OCP v1.0's scales"
weight = { scale_mode = "floor" }
activation = { scale_mode = "floor" }
gradient = { format = "e5m2", scale_mode = "floor" }

[[recipe]]
name = "mxfp8_e5m2_act"
help = "mxfp8 with activations in E5M2: a control, expected to be worse"
activation = { format = "e5m2" }

[[recipe]]
name = "mxfp8_e5m2_weight"
help = "mxfp8 with weights in E5M2: a control, expected to be worse"
weight = { format = "e5m2" }

[[recipe]]
name = "mxfp6_e2m3"
help = "E2M3 weights and activations, E3M2 gradients: six bits"
weight = { format = "e2m3" }
activation = { format = "e2m3" }
gradient = { format = "e3m2" }

[[recipe]]
name = "mxfp6_e3m2"
help = "E3M2 for weights, activations and gradients: six bits"
weight = { format = "e3m2" }
activation = { format = "e3m2" }
gradient = { format = "e3m2" }

[[recipe]]
name = "mxfp4"
help = "E2M1 for weights, activations and gradients: a control, expected to be worse"
weight = { format = "e2m1" }
activation = { format = "e2m1" }
gradient = { format = "e2m1" }

[[recipe]]
name = "mxfp4_stochastic"
help = "mxfp4 with gradients rounded stochastically"
weight = { format = "e2m1" }
activation = { format = "e2m1" }
gradient = { format = "e2m1", rounding = "stochastic" }
)toml";

constexpr std::string_view kNone = "none", kSquare = "32x32", kRow = "1x32";

OperandRecipe make_operand(const RecipeSection& recipe, const RecipeSection::OperandSection& section, Operand operand) {
  const auto check = [&](bool fine, std::string_view problem, const char* help) {
    if (!fine)
      throw UserError(fmt::format("precision recipe \"{}\": {} {}", recipe.name, name(operand), problem), help);
  };
  OperandRecipe result;
  if (section.format == kNone) {
    check(section.rounding == "nearest_even" && section.blocks == kRow,
          "has options of quantization, but format = \"none\"", "leave them out, or name a format");
    return result;
  }
  result.format = parse_format(section.format);
  result.scale_mode = parse_scale_mode(section.scale_mode);
  result.rounding = parse_rounding(section.rounding);
  result.square = section.blocks == kSquare;
  check(!result.square || operand == Operand::kWeight, "cannot have blocks of 32x32",
        "only weights are small enough in one place for it; use blocks = \"1x32\"");
  check(result.rounding == Rounding::kNearestEven || operand == Operand::kGradient, "cannot be rounded stochastically",
        "forward and backward must see the same numbers; only gradients may be rounded so");
  return result;
}

}  // namespace

std::string_view name(Operand operand) {
  constexpr std::array<std::string_view, 3> kNames = {"weight", "activation", "gradient"};
  return kNames[static_cast<size_t>(operand)];
}

OperandRecipe& LinearRecipe::of(Operand operand) {
  return operand == Operand::kWeight ? weight : operand == Operand::kActivation ? activation : gradient;
}

void RecipeSection::OperandSection::describe(Section& s) {
  s.value("format", format, "Elements; none: high precision, as the rest of the model")
      .choices({"none", "e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "mxint8"});
  s.value("scale_mode", scale_mode,
          "How a block's scale follows from its largest magnitude: round_up (arXiv 2506.08027), floor (OCP v1.0), ceil "
          "and even (as torchao)")
      .choices({"round_up", "floor", "ceil", "even"});
  s.value("rounding", rounding, "Of elements; stochastic for gradients only").choices({"nearest_even", "stochastic"});
  s.value("blocks", blocks, "Elements that share a scale, along the reduction; 32x32 for weights only")
      .choices({std::string(kRow), std::string(kSquare)});
}

void RecipeSection::describe(Section& s) {
  s.value("name", name, "What precision.recipe and precision.override call it").required();
  s.value("help", help, "What it is for");
  s.section("weight", weight, "Weights of Linears");
  s.section("activation", activation, "Inputs of Linears");
  s.section("gradient", gradient, "Gradients of the outputs of Linears");
}

Recipe make_recipe(const RecipeSection& section) {
  return {.name = section.name,
          .help = section.help,
          .linear = {.weight = make_operand(section, section.weight, Operand::kWeight),
                     .activation = make_operand(section, section.activation, Operand::kActivation),
                     .gradient = make_operand(section, section.gradient, Operand::kGradient)}};
}

const std::vector<Recipe>& built_in_recipes() {
  static const std::vector<Recipe> recipes = [] {
    std::vector<RecipeSection> sections;
    parse_config([&](Section& s) { s.list("recipe", sections, "Recipes"); }, kBuiltIn, "recipe.cpp");
    std::vector<Recipe> made;
    made.reserve(sections.size());
    for (const RecipeSection& section : sections) made.push_back(make_recipe(section));
    return made;
  }();
  return recipes;
}

const Recipe& find_recipe(const std::vector<Recipe>& recipes, std::string_view name) {
  std::vector<std::string> names;
  for (const Recipe& recipe : recipes) {
    if (recipe.name == name) return recipe;
    names.push_back(recipe.name);
  }
  throw UserError(fmt::format("no precision recipe is named \"{}\"; there are {}", name, fmt::join(names, ", ")),
                  fmt::format("use one of {}", fmt::join(names, ", ")));
}

}  // namespace dovetail::mx
