#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace dovetail::moe {

/// Choices that were not dropped, sorted by expert and within one by slot.
///
/// Their rows lie one behind the other (dropless), or, padded to a capacity, each expert's from its
/// first place on with rows of zeros behind them: GShard's and Tutel's (E, capacity, C), whose
/// sizes no one has to be told.
struct Dispatch {
  std::vector<int64_t> begin;  ///< (E + 1): expert e has rows [begin[e], begin[e + 1])
  at::Tensor choice;           ///< (rows) int64: t k + j, of choice j of token t
  at::Tensor token;            ///< (rows) int32
  int64_t capacity = 0;        ///< places of each expert; 0: as many as it has rows
  at::Tensor row_of_token;     ///< on a GPU: (T, k) int32, a token's rows ascending, behind -1 for
                               ///< those it lacks
  /// (E + 1) int64 on the CPU: what `begin` is, which is empty while a step is recorded
  /// (plan/record/capture.h) and it differs from step to step. Then choice and token have room for
  /// every choice. Undefined where begin is always the same.
  at::Tensor first = {};

  /// In an operation, which sees the numbers of its step: with `begin`, choice and token as far as
  /// there are rows.
  Dispatch known() const;
  bool is_known() const { return !begin.empty(); }

  int64_t experts() const {
    return is_known() ? static_cast<int64_t>(begin.size()) - 1 : first.size(0) - 1;
  }
  int64_t rows() const { return begin.back(); }
  int64_t first_row(int64_t expert) const { return begin[static_cast<size_t>(expert)]; }
  int64_t rows(int64_t expert) const { return first_row(expert + 1) - first_row(expert); }
  at::Tensor of_expert(const at::Tensor& per_row, int64_t expert) const {
    return per_row.narrow(0, first_row(expert), rows(expert));
  }
  int64_t first_place(int64_t expert) const {
    return capacity > 0 ? expert * capacity : first_row(expert);
  }
  int64_t places() const { return capacity > 0 ? experts() * capacity : rows(); }
};
/// expert and slot (T, k) as of a Routing. On a GPU the experts' counts are copied to the host,
/// which waits for them. A recorded step can have it for experts that are one operation
/// (`feed_forward`) and of which none drops a choice.
Dispatch dispatch(const at::Tensor& expert, const at::Tensor& slot, int64_t experts);
/// The same with `capacity` places for each expert, of which none may have more rows. A recorded
/// step can have it.
Dispatch padded_dispatch(const at::Tensor& expert, const at::Tensor& slot, int64_t experts,
                         int64_t capacity);

/// The rows of x (T, C) that go to the experts, expert by expert: (to.places(), C), zeros where
/// there is none.
at::Tensor dispatch_rows(const at::Tensor& x, const Dispatch& to);

/// What `dispatch_rows` distributed, back in place: y[t] (T, C) = sum over the kept choices of
/// token t of weight * their rows. rows (to.places(), C); weight (T, k), float32 if `rows` are
/// bfloat16 and otherwise of their dtype, which is also y's.
///
/// Both are differentiable and read `to` in backward too. float32 and bfloat16 on the CPU and, for
/// `to` of a GPU, there run our kernels, sums in float32; everything else is composed of ATen's
/// operators. The order of additions is the experts', but ATen's float64 on a GPU has none. Throw
/// UserError on shapes, dtypes and devices.
at::Tensor combine_rows(const at::Tensor& rows, const at::Tensor& weight, const Dispatch& to);

}  // namespace dovetail::moe
