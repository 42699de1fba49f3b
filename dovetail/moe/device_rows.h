#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

/// Rows of the experts whose numbers stay on the device. The host never waits for them, so a CUDA
/// graph can hold all of this. `Dispatch` (moe/dispatch.h) has the numbers on the host.
///
/// Shapes: T tokens, k choices of a token, E experts, C width, P places.
namespace dovetail::moe {

/// Places of the rows, sorted by expert and within an expert by slot. P follows from shapes:
///
/// - dropless: P = T k + E. Each expert has a spare place behind its rows, so no expert is without
///   rows. Products of zero rows are not reliable on every GPU. Places behind the last expert's
///   belong to dropped choices; their contents are undefined. With `whole` they are spare places of
///   the last expert, so products write all places.
/// - with a capacity: P = E * capacity. Expert e has the places from e * capacity on.
///
/// With a `multiple` m, all experts' numbers of places are multiples of it. A capacity is rounded
/// up. Dropless, P = T k rounded up + E m.
///
/// Places without a choice are spare. They hold zeros, or the experts' results for zeros, and no
/// token reads them.
struct DeviceRows {
  at::Tensor choice;  ///< (P) int64: t k + j if the place has choice j of token t; T k: spare
  at::Tensor token;   ///< (P) int32: token of the choice; 0: spare
  /// (T, k) int32: -1 for each dropped choice, then the places of each token, ascending.
  at::Tensor places_of_token;
  at::Tensor ends;  ///< (E) int32: one past the last place of each expert

  int64_t places() const { return choice.size(0); }
  int64_t experts() const { return ends.size(0); }
};

/// Makes the places of the choices `expert` and `slot`, (T, k) int32, which are members of a
/// Routing. Slot -1: dropped. capacity: places of each expert; 0: dropless. A choice for which a
/// capacity has no place counts as dropped. kept: Routing::kept; undefined: slots may have gaps.
/// Runs on a GPU, the CPU or the meta device.
DeviceRows device_rows(const at::Tensor& expert, const at::Tensor& slot, int64_t experts,
                       int64_t capacity = 0, const at::Tensor& kept = {}, bool whole = false,
                       int64_t multiple = 1);

/// Returns (P, C): the row of x (T, C) for each place, zeros in spare places. x is float32 or
/// bfloat16. Differentiable.
at::Tensor take_rows(const at::Tensor& x, const DeviceRows& to);

/// Returns y (T, C) float32: y[t] is the sum of weight[t][j] * rows[p] over the choices j of token
/// t, p their places, in ascending order of p. rows: (P, C) float32 or bfloat16. weight: (T, k)
/// float32. Differentiable in rows and weight.
at::Tensor combine_rows(const at::Tensor& rows, const at::Tensor& weight, const DeviceRows& to);

}  // namespace dovetail::moe
