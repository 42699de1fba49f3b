#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>

#include "dovetail/base/error.h"
#include "dovetail/base/library.h"
#include "dovetail/mx/quantize.h"
#include "dovetail/mx/quantized_linear.h"
#include "dovetail/mx/recipe.h"
#include "dovetail/ops/functions.h"
#include "dovetail/ops/simd_level.h"

/// Implements torch.ops.dovetail.mx_*. The functions handle the meta device themselves.
namespace dovetail::mx {

namespace {

struct Axis {
  int64_t index;
  Orientation orientation;  ///< orientation after the axis has been moved
  bool moves;               ///< true: the axis is moved to the front
};

/// Finds the orientation for an axis. The last axis gives row blocks, the first one column blocks.
/// An axis between them is temporarily moved to the front, for column blocks.
Axis find_axis(const char* name, const at::Tensor& x, int64_t axis) {
  user_check(x.dim() >= 1 && axis >= -x.dim() && axis < x.dim(),
             "{}: axis {} of a tensor that is {}", name, axis, ops::describe(x));
  const int64_t index = axis < 0 ? axis + x.dim() : axis;
  return {index, index == x.dim() - 1 ? Orientation::kRow : Orientation::kColumn,
          index > 0 && index < x.dim() - 1};
}

std::tuple<at::Tensor, at::Tensor> library_quantize(const at::Tensor& x, c10::string_view format,
                                                    c10::string_view scale_mode, int64_t axis_in,
                                                    c10::string_view non_finite) {
  const Axis axis = find_axis("mx_quantize", x, axis_in);
  const bool rows = axis.orientation == Orientation::kRow;
  const Quantized quantized =
      quantize(axis.moves ? x.movedim(axis.index, 0) : x,
               {.format = parse_format({format.data(), format.size()}),
                .scale_mode = parse_scale_mode({scale_mode.data(), scale_mode.size()}),
                .non_finite = parse_non_finite({non_finite.data(), non_finite.size()}),
                .count = false,
                .copies = rows ? Copies::kRow : Copies::kColumn});
  const MXTensor& copy = rows ? quantized.row : quantized.column;
  if (!axis.moves) return {copy.codes(), copy.scales()};
  return {copy.codes().movedim(0, axis.index).contiguous(),
          copy.scales().movedim(0, axis.index).contiguous()};
}

at::Tensor library_dequantize(const at::Tensor& codes, const at::Tensor& scales,
                              c10::string_view format, int64_t axis_in, at::ScalarType dtype) {
  const Axis axis = find_axis("mx_dequantize", codes, axis_in);
  // If the dimensions differ, the scales cannot fit, and MXTensor throws.
  const bool scales_move = axis.moves && scales.dim() == codes.dim();
  const MXTensor tensor(axis.moves ? codes.movedim(axis.index, 0) : codes,
                        scales_move ? scales.movedim(axis.index, 0) : scales,
                        parse_format({format.data(), format.size()}), axis.orientation);
  const at::Tensor y = dequantize(tensor, dtype);
  return axis.moves ? y.movedim(0, axis.index).contiguous() : y;
}

at::Tensor library_swizzle_scales(const at::Tensor& scales) {
  user_check(scales.dim() == 2, "mx_swizzle_scales: scales must be (rows, blocks), but are {}",
             ops::describe(scales));
  const at::Tensor codes = at::empty({scales.size(0), scales.size(1) * kBlock}, scales.options());
  return swizzled_scales({codes, scales, Format::kE4M3, Orientation::kRow});
}

/// Draws the next number of torch's CPU generator. So torch.manual_seed restarts the same sequence.
uint64_t drawn_seed() {
  auto* generator = at::get_generator_or_default<at::CPUGeneratorImpl>(
      std::nullopt, at::detail::getDefaultCPUGenerator());
  const std::lock_guard<std::mutex> lock(generator->mutex_);
  return generator->random64();
}

at::Tensor library_linear(const at::Tensor& x, const at::Tensor& weight,
                          const std::optional<at::Tensor>& bias, c10::string_view recipe,
                          std::optional<int64_t> seed) {
  const Recipe& found = find_recipe(built_in_recipes(), {recipe.data(), recipe.size()});
  const at::Tensor bias_or_none = bias.value_or(at::Tensor());
  if (!found.linear.quantizes()) return dovetail::ops::linear(x, weight, bias_or_none);
  for (const Operand operand : kOperands)
    user_check(found.linear.of(operand).history == 0,
               "mx_linear: {} scales by magnitudes of earlier steps, which a function has not; "
               "`dovetail train` can",
               found.name);
  const auto layer = std::make_shared<QuantizedLinear>(found.linear, "mx_linear");
  const bool draws = std::ranges::any_of(kOperands, [&](Operand operand) {
    return found.linear.of(operand).rounding == Rounding::kStochastic;
  });
  const uint64_t seed_or_none = !draws || x.is_meta() ? 0
                                : seed                ? static_cast<uint64_t>(*seed)
                                                      : drawn_seed();
  layer->begin_step(seed_or_none, /*count=*/false);
  return layer->forward(x, weight, bias_or_none);
}

}  // namespace

}  // namespace dovetail::mx

TORCH_LIBRARY_FRAGMENT(dovetail, m) {
  m.def(
      "mx_quantize(Tensor x, str format=\"e4m3\", str scale_mode=\"round_up\", int axis=-1, str "
      "non_finite=\"poison\") -> (Tensor codes, Tensor scales)");
  m.def(
      "mx_dequantize(Tensor codes, Tensor scales, str format=\"e4m3\", int axis=-1, ScalarType "
      "dtype=float) -> Tensor");
  dovetail::define<"mx_swizzle_scales(Tensor scales) -> Tensor",
                   dovetail::mx::library_swizzle_scales>(m);
  dovetail::define<
      "mx_linear(Tensor x, Tensor weight, Tensor? bias=None, str recipe=\"mxfp8\", int? seed=None) "
      "-> Tensor",
      dovetail::mx::library_linear>(m);
}

// Registered by device, unlike the differentiable operations, which have one function for all
// devices. So a meta tensor, also in torch.compile's tracing, reaches the function that only
// computes shapes.
TORCH_LIBRARY_IMPL(dovetail, CPU, m) {
  dovetail::implement<"mx_quantize", dovetail::mx::library_quantize>(m);
  dovetail::implement<"mx_dequantize", dovetail::mx::library_dequantize>(m);
}

TORCH_LIBRARY_IMPL(dovetail, CUDA, m) {
  dovetail::implement<"mx_quantize", dovetail::mx::library_quantize>(m);
  dovetail::implement<"mx_dequantize", dovetail::mx::library_dequantize>(m);
}

TORCH_LIBRARY_IMPL(dovetail, Meta, m) {
  dovetail::implement<"mx_quantize", dovetail::mx::library_quantize>(m);
  dovetail::implement<"mx_dequantize", dovetail::mx::library_dequantize>(m);
}
