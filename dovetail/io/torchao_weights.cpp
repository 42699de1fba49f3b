#include "dovetail/io/torchao_weights.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "dovetail/base/error.h"
#include "dovetail/mx/codec.h"
#include "dovetail/mx/quantize.h"

namespace dovetail::io {
namespace {

using Json = nlohmann::json;
using mx::Blocks;
using mx::Format;

/// Ends of names: of a weight in a model, and of its codes and scales in a file.
constexpr std::string_view kWeight = ".weight", kCodes = "._weight_qdata",
                           kScales = "._weight_scale";

/// Format in the words of torchao.
struct TorchaoFormat {
  std::string_view name;  ///< name of the torch dtype
  at::ScalarType codes;   ///< dtype of the codes in the file
};

TorchaoFormat torchao_format(Format format) {
  switch (format) {
    case Format::kE4M3:
      return {"float8_e4m3fn", at::kFloat8_e4m3fn};
    case Format::kE5M2:
      return {"float8_e5m2", at::kFloat8_e5m2};
    case Format::kE2M1:
      return {"float4_e2m1fn_x2", at::kByte};
    default:
      return {};
  }
}

std::string_view scaling_mode(mx::ScaleMode mode) {
  switch (mode) {
    case mx::ScaleMode::kRoundUp:
      return "RCEIL";
    case mx::ScaleMode::kFloor:
      return "FLOOR";
    case mx::ScaleMode::kCeil:
      return "CEIL";
    case mx::ScaleMode::kEven:
      return "EVEN";
  }
  DOVETAIL_CHECK(false, "no scale mode has the number {}", static_cast<int>(mode));
  return {};
}

/// An object of a Python class as torchao writes it.
Json object(std::string_view type, Json data) {
  return {{"_type", type}, {"_data", std::move(data)}};
}
Json dtype_object(std::string_view name) { return object("torch.dtype", name); }
Json emulated() { return object("KernelPreference", "EMULATED"); }

/// Reason why an operand is not what MXTensor holds; empty if it is.
std::string operand_obstacle(const mx::OperandRecipe& operand, std::string_view name) {
  if (!operand.format) return fmt::format("the {} is not quantized", name);
  if (!operand.is_microscaling())
    return fmt::format("the {} has blocks of {}, and an MXTensor has blocks of 32", name,
                       mx::name(operand.blocks));
  if (torchao_format(*operand.format).name.empty())
    return fmt::format("the {} is {}, and an MXTensor has e4m3, e5m2 or e2m1", name,
                       mx::name(*operand.format));
  return {};
}

}  // namespace

std::string torchao_obstacle(const mx::LinearRecipe& recipe, int64_t in) {
  for (const mx::Operand operand : {mx::Operand::kWeight, mx::Operand::kActivation}) {
    const std::string obstacle = operand_obstacle(recipe.of(operand), mx::name(operand));
    if (!obstacle.empty()) return obstacle;
  }
  if (recipe.weight.format != recipe.activation.format)
    return fmt::format(
        "the weight is {} and the activation {}, and torchao's config has one format",
        mx::name(*recipe.weight.format), mx::name(*recipe.activation.format));
  if (recipe.weight.scale_mode != recipe.activation.scale_mode)
    return fmt::format(
        "the weight has scale_mode {} and the activation {}, and torchao's config has one",
        mx::name(recipe.weight.scale_mode), mx::name(recipe.activation.scale_mode));
  if (in % mx::kBlock != 0)
    return fmt::format("its {} inputs are no multiple of {}, the size of a block", in, mx::kBlock);
  return {};
}

mx::MXTensor quantized_weight(const at::Tensor& weight, const mx::OperandRecipe& recipe) {
  const bool square = recipe.blocks == Blocks::k32x32;
  const mx::Quantized made =
      mx::quantize(weight, {.format = *recipe.format,
                            .scale_mode = recipe.scale_mode,
                            .copies = square ? mx::Copies::kSquare : mx::Copies::kRow});
  if (!square) return made.row;
  const at::Tensor scales =
      made.square.scales().repeat_interleave(mx::kBlock, 0).narrow(0, 0, weight.size(0));
  return {made.square.codes(), scales, *recipe.format, mx::Orientation::kRow};
}

void put_torchao_weight(const std::string& name, const mx::MXTensor& weight,
                        const mx::LinearRecipe& recipe, at::ScalarType dtype,
                        SafetensorsContent& content) {
  DOVETAIL_CHECK(weight.orientation() == mx::Orientation::kRow && weight.sizes().size() == 2,
                 "{} is no row copy of a matrix", name);
  const TorchaoFormat format = torchao_format(weight.format());
  DOVETAIL_CHECK(name.ends_with(kWeight), "{} is no weight of a Linear", name);
  const std::string module = name.substr(0, name.size() - kWeight.size());
  at::Tensor codes = mx::pack_codes(weight.codes(), weight.format());
  codes = codes.view({weight.sizes()[0], -1}).view(format.codes);
  content.tensors[module + std::string(kCodes)] = codes;
  content.tensors[module + std::string(kScales)] = weight.scales().view(at::kFloat8_e8m0fnu);
  const Json activation = object(
      "QuantizeTensorToMXKwargs",
      {{"elem_dtype", dtype_object(torchao_format(*recipe.activation.format).name)},
       {"block_size", mx::kBlock},
       {"scaling_mode", object("ScaleCalculationMode", scaling_mode(recipe.activation.scale_mode))},
       {"kernel_preference", emulated()},
       {"is_swizzled_scales", false}});
  Json entry = object(
      "MXTensor", {{"elem_dtype", dtype_object(format.name)},
                   {"block_size", mx::kBlock},
                   {"orig_dtype", dtype_object(dtype == at::kBFloat16 ? "bfloat16" : "float32")},
                   {"kernel_preference", emulated()},
                   {"act_quant_kwargs", activation},
                   {"is_swizzled_scales", false}});
  entry["_tensor_data_names"] = {"qdata", "scale"};
  content.metadata[name] = entry.dump();
}

void name_torchao_tensors(SafetensorsContent& content) {
  const Json plain = {{"_type", "Tensor"}};
  for (const auto& [name, tensor] : content.tensors)
    if (!name.ends_with(kCodes) && !name.ends_with(kScales)) content.metadata[name] = plain.dump();
  Json names = Json::array();
  for (const auto& [name, entry] : content.metadata) names.push_back(name);
  content.metadata["tensor_names"] = names.dump();
}

Json torchao_config(const mx::LinearRecipe& recipe,
                    const std::vector<std::string>& high_precision) {
  const Json dtype = dtype_object(torchao_format(*recipe.weight.format).name);
  Json quantize = object(
      "MXDynamicActivationMXWeightConfig",
      {{"block_size", mx::kBlock},
       {"activation_dtype", dtype},
       {"weight_dtype", dtype},
       {"kernel_preference", emulated()},
       {"scaling_mode", object("ScaleCalculationMode", scaling_mode(recipe.weight.scale_mode))}});
  quantize["_version"] = 1;
  return {{"quant_method", "torchao"},
          {"quant_type", {{"default", quantize}}},
          {"modules_to_not_convert", high_precision},
          {"include_input_output_embeddings", false},
          {"untie_embedding_weights", false}};
}

}  // namespace dovetail::io
