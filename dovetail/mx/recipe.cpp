#include "dovetail/mx/recipe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "dovetail/base/error.h"

namespace dovetail::mx {

namespace {

// Built-in recipes in the form of [[precision.recipes]] in a run's config. Defaults: E4M3, 1x32,
// round_up, nearest_even.
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
help = "mxfp8 with OCP v1.0's scales, which saturate the top of a binade: for comparison"
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

# arXiv 2509.25149 keeps more blocks at the model's end than at its beginning in high precision.
[[recipe]]
name = "nvfp4"
help = "NVFP4 as in arXiv 2509.25149: 16x16 blocks of weights, Hadamard transform, stochastic gradients; first and last block in high precision"
high_precision_ends = 1
weight = { format = "e2m1", blocks = "16x16", scale_mode = "e4m3" }
activation = { format = "e2m1", blocks = "1x16", scale_mode = "e4m3", hadamard = true }
gradient = { format = "e2m1", blocks = "1x16", scale_mode = "e4m3", hadamard = true, rounding = "stochastic" }

[[recipe]]
name = "nvfp4_plain"
help = "NVFP4 in 1x16 blocks, rounded to nearest, without Hadamard transform: a control"
weight = { format = "e2m1", blocks = "1x16", scale_mode = "e4m3" }
activation = { format = "e2m1", blocks = "1x16", scale_mode = "e4m3" }
gradient = { format = "e2m1", blocks = "1x16", scale_mode = "e4m3" }

[[recipe]]
name = "fp8_tensor"
help = "E4M3 weights and activations, E5M2 gradients, one float32 scale a tensor; first and last block in high precision"
high_precision_ends = 1
weight = { blocks = "tensor", scale_mode = "float32" }
activation = { blocks = "tensor", scale_mode = "float32" }
gradient = { format = "e5m2", blocks = "tensor", scale_mode = "float32" }

[[recipe]]
name = "fp8_tensor_delayed"
help = "fp8_tensor in all blocks, scales from the largest magnitude of the last 1024 steps"
weight = { blocks = "tensor", scale_mode = "float32", history = 1024 }
activation = { blocks = "tensor", scale_mode = "float32", history = 1024 }
gradient = { format = "e5m2", blocks = "tensor", scale_mode = "float32", history = 1024 }

[[recipe]]
name = "fp8_block"
help = "E4M3 in blocks, 1x128 of activations and gradients, 128x128 of weights; scales are powers of two"
weight = { blocks = "128x128" }
activation = { blocks = "1x128" }
gradient = { blocks = "1x128" }

[[recipe]]
name = "fp8_block_float32"
help = "fp8_block with float32 scales (DeepSeek-V3)"
weight = { blocks = "128x128", scale_mode = "float32" }
activation = { blocks = "1x128", scale_mode = "float32" }
gradient = { blocks = "1x128", scale_mode = "float32" }
)toml";

constexpr std::string_view kNone = "none", kFloat32 = "float32", kE4M3Scales = "e4m3";
constexpr std::array<std::string_view, 7> kBlocks = {"1x32",   "32x32", "1x128", "128x128",
                                                     "tensor", "1x16",  "16x16"};

OperandRecipe make_operand(const RecipeSection& recipe,
                           const RecipeSection::OperandSection& section, Operand operand) {
  const auto check = [&](bool fine, std::string_view problem, const char* help) {
    if (!fine)
      throw UserError(
          fmt::format("precision recipe \"{}\": {} {}", recipe.name, name(operand), problem), help);
  };
  const RecipeSection::OperandSection unset;
  OperandRecipe result;
  if (section.format == kNone) {
    check(section.rounding == unset.rounding && section.blocks == unset.blocks &&
              section.history == unset.history && section.scale_mode == unset.scale_mode &&
              section.hadamard == unset.hadamard,
          "has options of quantization, but format = \"none\"", "leave them out, or name a format");
    return result;
  }
  const auto blocks = std::find(kBlocks.begin(), kBlocks.end(), section.blocks);
  check(blocks != kBlocks.end(), fmt::format("has blocks = \"{}\"", section.blocks),
        "use 1x32, 32x32, 1x128, 128x128, tensor, 1x16 or 16x16");
  result.format = parse_format(section.format);
  result.blocks = static_cast<Blocks>(blocks - kBlocks.begin());
  result.float32_scales = section.scale_mode == kFloat32;
  const bool e4m3_scales = section.scale_mode == kE4M3Scales;
  if (!result.float32_scales && !e4m3_scales)
    result.scale_mode = parse_scale_mode(section.scale_mode);
  result.hadamard = section.hadamard;
  result.history = section.history;
  result.rounding = parse_rounding(section.rounding);
  const bool square = result.blocks == Blocks::k32x32 || result.blocks == Blocks::k128x128 ||
                      result.blocks == Blocks::k16x16;
  check(!square || operand == Operand::kWeight,
        fmt::format("cannot have blocks of {}", section.blocks),
        "only weights are small enough in one place for it; use blocks along the reduction");
  check(e4m3_scales == result.is_nvfp4(),
        fmt::format("cannot have scale_mode = \"{}\" in blocks of {}", section.scale_mode,
                    section.blocks),
        "scale_mode = \"e4m3\" goes with NVFP4's blocks, 1x16 and 16x16, and only with them");
  check(!result.hadamard || (result.is_nvfp4() && operand != Operand::kWeight),
        "cannot have a Hadamard transform",
        "hadamard is for activation and gradient in blocks of 1x16");
  if (result.is_nvfp4()) {
    check(result.format == Format::kE2M1,
          fmt::format("cannot be {} in blocks of {}", section.format, section.blocks), "use e2m1");
  } else if (result.is_microscaling()) {
    check(!result.float32_scales, "cannot have float32 scales in blocks of 32",
          "microscaling formats have powers of two; use blocks = \"1x128\", \"128x128\" or "
          "\"tensor\"");
  } else {
    check(result.format == Format::kE4M3 || result.format == Format::kE5M2,
          fmt::format("cannot be {} in blocks of {}", section.format, section.blocks),
          "use e4m3 or e5m2");
    check(result.float32_scales || result.scale_mode == ScaleMode::kRoundUp,
          fmt::format("cannot have scale_mode = \"{}\" in blocks of {}", section.scale_mode,
                      section.blocks),
          "use float32 or round_up");
  }
  check(result.history == 0 || result.blocks == Blocks::kTensor,
        "cannot have delayed scaling in blocks", "history goes with blocks = \"tensor\"");
  check(result.rounding == Rounding::kNearestEven ||
            (operand == Operand::kGradient && (result.is_microscaling() || result.is_nvfp4())),
        "cannot be rounded stochastically",
        "forward and backward must see the same numbers; only gradients in microscaling or "
        "NVFP4 blocks may be rounded so");
  return result;
}

}  // namespace

std::string_view name(Blocks blocks) { return kBlocks[static_cast<size_t>(blocks)]; }

std::string_view name(Operand operand) {
  constexpr std::array<std::string_view, 3> kNames = {"weight", "activation", "gradient"};
  return kNames[static_cast<size_t>(operand)];
}

OperandRecipe& LinearRecipe::of(Operand operand) {
  return operand == Operand::kWeight       ? weight
         : operand == Operand::kActivation ? activation
                                           : gradient;
}
const OperandRecipe& LinearRecipe::of(Operand operand) const {
  return const_cast<LinearRecipe*>(this)->of(operand);
}

void RecipeSection::OperandSection::describe(Section& s) {
  s.value("format", format,
          "Format of the elements; none: high precision, as in the rest of the model")
      .choices({"none", "e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "mxint8"});
  s.value(
       "blocks", blocks,
       "Elements that share a scale. Microscaling: 1x32 along the reduction, or 32x32 of a "
       "weight. FP8: 1x128 along the reduction, 128x128 of a weight, or the whole tensor. NVFP4: "
       "1x16 along the reduction, or 16x16 of a weight")
      .choices(std::vector<std::string>(kBlocks.begin(), kBlocks.end()));
  s.value(
       "scale_mode", scale_mode,
       "Rule for a scale by the block's largest magnitude. Powers of two: round_up (arXiv "
       "2506.08027), floor (OCP v1.0), ceil and even (as in torchao). float32: a scale that "
       "fills the format's range, only for FP8. e4m3: E4M3 scales relative to a float32 scale of "
       "the tensor, only for NVFP4")
      .choices(
          {"round_up", "floor", "ceil", "even", std::string(kFloat32), std::string(kE4M3Scales)});
  s.value("history", history,
          "Delayed scaling of whole tensors: number of earlier steps whose largest magnitude sets "
          "the scale; 0: the tensor's own magnitude")
      .unit("steps")
      .range(0, 65536);
  s.value("rounding", rounding, "Rounding of elements; stochastic is only for gradients")
      .choices({"nearest_even", "stochastic"});
  s.value("hadamard", hadamard,
          "NVFP4: random Hadamard transform of 16 neighbours along the tokens, in the product that "
          "gives the weight's gradient. It must be set for activation and gradient together");
}

void RecipeSection::describe(Section& s) {
  s.value("name", name, "Name for precision.recipe and precision.override").required();
  s.value("help", help, "Purpose of the recipe");
  s.value("high_precision_ends", high_precision_ends,
          "Blocks at each end of the model that are not quantized")
      .range(0, 1e6);
  s.section("weight", weight, "Weights of Linears");
  s.section("activation", activation, "Inputs of Linears");
  s.section("gradient", gradient, "Gradients of the outputs of Linears");
}

Recipe make_recipe(const RecipeSection& section) {
  Recipe made = {
      .name = section.name,
      .help = section.help,
      .linear = {.weight = make_operand(section, section.weight, Operand::kWeight),
                 .activation = make_operand(section, section.activation, Operand::kActivation),
                 .gradient = make_operand(section, section.gradient, Operand::kGradient)},
      .high_precision_ends = section.high_precision_ends};
  check_hadamard(made.linear, fmt::format("precision recipe \"{}\"", section.name));
  return made;
}

void check_hadamard(const LinearRecipe& recipe, std::string_view of) {
  if (recipe.activation.hadamard == recipe.gradient.hadamard) return;
  const bool activation = recipe.activation.hadamard;
  throw UserError(fmt::format("{}: {} has a Hadamard transform, but {} has none", of,
                              name(activation ? Operand::kActivation : Operand::kGradient),
                              name(activation ? Operand::kGradient : Operand::kActivation)),
                  "set hadamard for both, or for neither; an override must name both tensors");
}

const std::vector<Recipe>& built_in_recipes() {
  static const std::vector<Recipe> recipes = [] {
    std::vector<RecipeSection> sections;
    parse_config([&](Section& s) { s.list("recipe", sections, "Recipes"); }, kBuiltIn,
                 "recipe.cpp");
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
  throw UserError(fmt::format("no precision recipe is named \"{}\"; there are {}", name,
                              fmt::join(names, ", ")),
                  fmt::format("use one of {}", fmt::join(names, ", ")));
}

}  // namespace dovetail::mx
