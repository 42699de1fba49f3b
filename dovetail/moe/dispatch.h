#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace dovetail::moe {

/// Choices that were not dropped, sorted by expert and within one by slot.
struct Dispatch {
  std::vector<int64_t> begin;  ///< (E + 1): expert e has rows [begin[e], begin[e + 1])
  at::Tensor choice;           ///< (rows) int64: t k + j, of choice j of token t
  at::Tensor token;            ///< (rows) int32

  int64_t experts() const { return static_cast<int64_t>(begin.size()) - 1; }
  int64_t rows() const { return begin.back(); }
  int64_t first_row(int64_t expert) const { return begin[static_cast<size_t>(expert)]; }
  int64_t rows(int64_t expert) const { return first_row(expert + 1) - first_row(expert); }
  at::Tensor of_expert(const at::Tensor& per_row, int64_t expert) const {
    return per_row.narrow(0, first_row(expert), rows(expert));
  }
};
/// expert and slot (T, k) as of a Routing, on the CPU.
Dispatch dispatch(const at::Tensor& expert, const at::Tensor& slot, int64_t experts);

/// The rows of x (T, C) that go to the experts, expert by expert: (to.rows(), C).
at::Tensor dispatch_rows(const at::Tensor& x, const Dispatch& to);

/// What `dispatch_rows` distributed, back in place: y[t] (T, C) = sum over the kept choices of token t of weight *
/// their rows. rows (to.rows(), C); weight (T, k), float32 if `rows` are bfloat16 and otherwise of their dtype, which
/// is also y's.
///
/// Both are differentiable and read `to` in backward too. float32 and bfloat16 on the CPU run our kernels, sums in
/// float32; everything else is composed of ATen's operators. The order of additions is the experts'. Throw UserError on
/// shapes and dtypes.
at::Tensor combine_rows(const at::Tensor& rows, const at::Tensor& weight, const Dispatch& to);

}  // namespace dovetail::moe
