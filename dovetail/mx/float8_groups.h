#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "dovetail/mx/format.h"

/// FP8 with one scale for each group of rows, by ATen's operations. The groups stay on the device:
/// the host reads nothing.
namespace dovetail::mx {

/// Factors and scales of blocks, float32, in the shape of their largest magnitudes: s and
/// float32(1 / s) of quantize_float8 (float8.h). A block that is not finite has factor 0 and scale
/// NaN.
struct Float8Factors {
  at::Tensor factor, scale;
};
/// Returns them for blocks with the largest magnitudes `most`, float32. amax: magnitudes from which
/// the scales follow, in the same shape.
Float8Factors float8_factors(const at::Tensor& most, const at::Tensor& amax, Format format,
                             bool power_of_two);

/// Returns x * factor in `format`, rounded to nearest even and saturated. x: float32 or bfloat16,
/// not changed. factor is float32 and broadcasts to x. Elements with factor 0 are 0.
at::Tensor float8_elements(const at::Tensor& x, const at::Tensor& factor, Format format);

/// Matrix whose rows are quantized in groups. An element is its code times its group's scale.
struct Float8Groups {
  at::Tensor codes;   ///< (rows, cols), in torch's dtype of the format
  at::Tensor scales;  ///< (groups) float32
};

/// Quantizes x as quantize_float8 (float8.h) quantizes the counted rows of each group alone, with
/// one scale: same codes, same scales. Other rows use their group's scale and saturate.
///
/// x: (rows, cols) float32 or bfloat16, cols > 0. group: (rows) int64, group of each row. counted:
/// (rows) bool; undefined: all rows count. A group without counted rows has the scale of zeros. A
/// group with a NaN or an infinity in a counted row gets codes 0 and scale NaN. Runs on a GPU, the
/// CPU or the meta device.
Float8Groups quantize_float8_groups(const at::Tensor& x, const at::Tensor& group,
                                    const at::Tensor& counted, int64_t groups, Format format,
                                    bool power_of_two);

}  // namespace dovetail::mx
