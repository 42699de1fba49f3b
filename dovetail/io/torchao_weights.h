#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "dovetail/mx/recipe.h"
#include "dovetail/mx/tensor.h"

/// Microscaling (MX) weights in torchao's safetensors layout. The function
/// unflatten_tensor_state_dict of torchao.prototype.safetensors makes MXTensors from them. The
/// library `transformers` loads them into a model.
namespace dovetail::io {

/// Content of a safetensors file, in the form that write_safetensors takes.
struct SafetensorsContent {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::string> metadata;
};

/// Returns the reason why torchao's MXTensor cannot hold a Linear's weight, or cannot multiply by
/// it. `in` is the number of the Linear's inputs. Empty if it can. It needs
///
/// - a weight in E4M3, E5M2 or E2M1, with blocks of 32 or 32 x 32,
/// - activations in the weight's format, with blocks of 32,
/// - `in` divisible by 32.
std::string torchao_obstacle(const mx::LinearRecipe& recipe, int64_t in);

/// Quantizes `weight` (out, in), float32 or bfloat16, as a forward pass under `recipe` does.
/// Returns a row copy: square blocks repeat their scale for each of their rows. torchao_obstacle
/// must be empty.
mx::MXTensor quantized_weight(const at::Tensor& weight, const mx::OperandRecipe& recipe);

/// Adds a weight `name` ("<module>.weight") with codes of quantized_weight:
///
/// - tensor "<module>._weight_qdata": (out, in) F8_E4M3 or F8_E5M2. E2M1: (out, in / 2) U8 with two
///   codes in a byte, the first one in the low half.
/// - tensor "<module>._weight_scale": (out, in / 32) F8_E8M0, not swizzled
/// - metadata "<name>": JSON of the attributes of MXTensor. Products are emulated, so that every
///   device can multiply. Activations are quantized by `recipe`.
///
/// `dtype`, the dtype of products, is the weight's dtype before quantization.
void put_torchao_weight(const std::string& name, const mx::MXTensor& weight,
                        const mx::LinearRecipe& recipe, at::ScalarType dtype,
                        SafetensorsContent& content);

/// Adds the metadata of the tensors that are not quantized, and the list of all tensors. The
/// library torchao knows its files by this list. Call it when `content` has all tensors and no
/// other metadata.
void name_torchao_tensors(SafetensorsContent& content);

/// Returns the entry "quantization_config" of config.json, by which `transformers` uses torchao.
/// `high_precision` names the modules with a matrix that is not quantized.
nlohmann::json torchao_config(const mx::LinearRecipe& recipe,
                              const std::vector<std::string>& high_precision);

}  // namespace dovetail::io
