#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "dovetail/moe/device_rows.h"
#include "dovetail/moe/expert_weights.h"
#include "dovetail/mx/recipe.h"

/// Products in FP8 of the experts whose numbers of rows stay on the device.
/// `torch._scaled_grouped_mm` multiplies E4M3 codes with one float32 scale for each row. Here all
/// rows of an expert have one scale, as a tensor of its own would.
///
/// Roofline of forward and backward: 16 experts, k = 2, 16384 tokens of width 1024, ffn_width 4096,
/// GELU. The rates are an H100's data sheet (1979 TFLOP/s in FP8, 3.35 TB/s). Computed, not
/// measured:
///
/// - products: 6 * 33024 * 1024 * 8192 = 1.66 TFLOP, 0.84 ms; their operands: 1.9 GB, 0.56 ms
/// - rows gathered, activated and combined: 2.1 GB, 0.62 ms, as in bfloat16
/// - operands quantized: 338 M elements of rows, twice 134 M of weights. A kernel that reads them
///   twice and writes both orders of codes moves 6 bytes an element, 3.6 GB, 1.1 ms. ATen's
///   operations move about 31 bytes an element, 18.8 GB, 5.6 ms.
///
/// So quantization by ATen's operations takes longer than the products save.
namespace dovetail::moe {

/// Number that divides the numbers of an expert's places and the widths of FP8 products: 16 bytes.
inline constexpr int64_t kFloat8Multiple = 16;

/// Places of the rows of all experts, as quantization reads them.
struct ExpertPlaces {
  at::Tensor ends;     ///< DeviceRows::ends, of all places
  at::Tensor expert;   ///< (P) int64: expert of each place
  at::Tensor counted;  ///< (P) bool: the place is not spare
};
/// Makes them. `to` was made with `whole` and a multiple of kFloat8Multiple.
ExpertPlaces expert_places(const DeviceRows& to);

/// Computes device_grouped_linear (moe/device_experts.h) with operands quantized by `recipe`, which
/// has no float8_recipe_obstacle. Scales follow from counted places alone. Gradients of y must be 0
/// in spare places. x, weights and biases are bfloat16; in and out are multiples of 16.
at::Tensor device_float8_linear(const at::Tensor& x, at::TensorList weight, const ExpertPlaces& at,
                                const mx::LinearRecipe& recipe, at::TensorList bias = {});

/// Computes feed_forward of moe/experts.h with Linears of `recipe`, without the host. `recipe` has
/// no float8_recipe_obstacle. `to` is as for expert_places.
///
/// Each expert's operand is quantized over its rows alone, without spare places, as
/// mx::quantize_float8 does. Products are bfloat16, with float32 sums. Runs on a GPU, the CPU or
/// the meta device. x and experts are bfloat16. Quantizations are not counted. Throws UserError
/// naming the tensor.
at::Tensor feed_forward(const at::Tensor& x, const at::Tensor& weight, const DeviceRows& to,
                        const ExpertWeights& experts, const mx::LinearRecipe& recipe);

/// Returns the reason why `torch._scaled_grouped_mm` cannot express the products of `recipe`. Empty
/// if it can. Reasons: an operand that is not E4M3, one without one scale for its whole tensor, and
/// delayed scaling.
std::string float8_recipe_obstacle(const mx::LinearRecipe& recipe);

/// Returns the reason why a GPU of compute capability `major` cannot run `experts` with Linears of
/// `recipe` without the host. Empty if it can. Reasons:
///
/// - a reason of float8_recipe_obstacle or of fixed_sizes_obstacle (moe/device_experts.h),
/// - another dtype than bfloat16,
/// - widths that are not multiples of 16,
/// - another compute capability than 9.
std::string scaled_grouped_mm_obstacle(const ExpertWeights& experts, const mx::LinearRecipe& recipe,
                                       int major);

/// Returns the reason why `experts` cannot run so on their device. Empty if they can. The meta
/// device stands for a GPU of compute capability 9.
std::string float8_rows_obstacle(const ExpertWeights& experts, const mx::LinearRecipe& recipe);

}  // namespace dovetail::moe
