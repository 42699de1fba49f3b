#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/library.h>

#include <string>
#include <tuple>

#include "dovetail/base/error.h"
#include "dovetail/base/library.h"
#include "dovetail/mx/library_recipe.h"
#include "dovetail/mx/library_statistics.h"
#include "dovetail/mx/quantize.h"
#include "dovetail/ops/simd_level.h"

/// Implements torch.ops.dovetail.mx_*, except mx_linear (library_linear.cpp).
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

/// Computes the shapes of `library_quantize`, also symbolic ones.
std::tuple<at::Tensor, at::Tensor> quantize_shapes(const at::Tensor& x, c10::string_view format,
                                                   c10::string_view scale_mode, int64_t axis_in,
                                                   c10::string_view non_finite) {
  if (!x.unsafeGetTensorImpl()->has_symbolic_sizes_strides())
    return library_quantize(x, format, scale_mode, axis_in, non_finite);
  const Axis axis = find_axis("mx_quantize", x, axis_in);
  auto sizes = x.sym_sizes().vec();
  const at::Tensor codes = at::empty_symint(sizes, x.options().dtype(at::kByte));
  c10::SymInt& along = sizes[static_cast<size_t>(axis.index)];
  along = (along + (kBlock - 1)) / kBlock;
  return {codes, at::empty_symint(sizes, x.options().dtype(at::kByte))};
}

at::Tensor dequantize_shapes(const at::Tensor& codes, const at::Tensor& scales,
                             c10::string_view format, int64_t axis, at::ScalarType dtype) {
  if (!codes.unsafeGetTensorImpl()->has_symbolic_sizes_strides())
    return library_dequantize(codes, scales, format, axis, dtype);
  return at::empty_symint(codes.sym_sizes(), codes.options().dtype(dtype));
}

/// Refuses to quantize a tensor that requires a gradient, since codes have none.
std::tuple<at::Tensor, at::Tensor> quantize_without_gradient(const at::Tensor& x,
                                                             c10::string_view format,
                                                             c10::string_view scale_mode,
                                                             int64_t axis,
                                                             c10::string_view non_finite) {
  user_check(!torch::autograd::compute_requires_grad(x),
             "mx_quantize: x requires a gradient, but codes have none; use "
             "dovetail.mx.fake_quantize, whose gradient is straight-through, or x.detach()");
  const at::AutoDispatchBelowADInplaceOrView below;
  static auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("dovetail::mx_quantize", "")
          .typed<std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, c10::string_view,
                                                    c10::string_view, int64_t, c10::string_view)>();
  return op.call(x, format, scale_mode, axis, non_finite);
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
  m.def("mx_recipe(str name) -> str",
        [](const std::string& name) { return dovetail::mx::recipe_json(name); });
  m.def("mx_scaled_elements(str recipe) -> int[]", [](const std::string& recipe) {
    return dovetail::mx::scaled_elements(dovetail::mx::library_recipe(recipe).linear);
  });
  m.def("mx_take_statistics() -> (str[] layers, Tensor statistics)",
        [] { return dovetail::mx::library_statistics().take(); });
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
  m.impl("mx_quantize", &dovetail::mx::quantize_shapes);
  m.impl("mx_dequantize", &dovetail::mx::dequantize_shapes);
}

TORCH_LIBRARY_IMPL(dovetail, Autograd, m) {
  m.impl("mx_quantize", &dovetail::mx::quantize_without_gradient);
}
