#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <variant>
#include <vector>

/// Tokens to their experts and back.
///
/// Shapes: T tokens, k choices of a token, E experts, C width, R rows (kept choices), P places.
/// P is R if rows are dropless. It is E times the capacity if rows are padded to a capacity.
namespace dovetail::moe {

/// Kept choices, sorted by expert and within an expert by slot: row r of the dispatched matrix is
/// token[r]. Dropless rows are contiguous. Padded rows of expert e begin at place e capacity and
/// end with zeros, as (E, capacity, C) of GShard and Tutel.
struct DispatchedRows {
  std::vector<int64_t> offsets;  ///< (E + 1): expert e has rows [offsets[e], offsets[e + 1])
  at::Tensor choice;             ///< (R) int64: t k + j for choice j of token t
  at::Tensor token;              ///< (R) int32
  int64_t capacity = 0;          ///< places of each expert; 0: dropless
  /// (T, k) int32: rows of each token, ascending, then -1 for dropped choices. GPU only; undefined
  /// on the CPU.
  at::Tensor rows_of_token = {};

  int64_t experts() const { return static_cast<int64_t>(offsets.size()) - 1; }
  int64_t size() const { return offsets.back(); }
  int64_t first(int64_t expert) const { return offsets[static_cast<size_t>(expert)]; }
  int64_t count(int64_t expert) const { return first(expert + 1) - first(expert); }
  int64_t places() const { return capacity > 0 ? experts() * capacity : size(); }
  int64_t first_place(int64_t expert) const {
    return capacity > 0 ? expert * capacity : first(expert);
  }
  /// Part of `per_row` (R, ...) that belongs to one expert; a view.
  at::Tensor of_expert(const at::Tensor& per_row, int64_t expert) const {
    return per_row.narrow(0, first(expert), count(expert));
  }
};

/// Rows of a step that is being recorded (plan/record/capture.h). Their number differs from replay
/// to replay, so sizes are read from a tensor inside each operation.
struct RecordedRows {
  at::Tensor choice;   ///< (T k) int64, zeros after the last row
  at::Tensor token;    ///< (T k) int32, zeros after the last row
  at::Tensor offsets;  ///< (E + 1) int64 on the CPU
  int64_t capacity = 0;

  /// Rows of the current replay. Inside an operation only.
  DispatchedRows resolve() const;
};

/// Rows as a model passes them on: with known sizes, or recorded.
class Dispatch {
 public:
  Dispatch() = default;
  Dispatch(DispatchedRows rows) : rows_(std::move(rows)) {}  // NOLINT(google-explicit-constructor)
  Dispatch(RecordedRows rows) : rows_(std::move(rows)) {}    // NOLINT(google-explicit-constructor)

  bool is_recorded() const { return std::holds_alternative<RecordedRows>(rows_); }
  /// Throws InternalError if recorded.
  const DispatchedRows& rows() const;
  /// Throws InternalError unless recorded.
  const RecordedRows& recorded() const;
  /// Rows of the current step. If recorded, inside an operation only.
  DispatchedRows resolve() const { return is_recorded() ? recorded().resolve() : rows(); }

  const at::Tensor& choice() const { return is_recorded() ? recorded().choice : rows().choice; }
  const at::Tensor& token() const { return is_recorded() ? recorded().token : rows().token; }
  int64_t capacity() const { return is_recorded() ? recorded().capacity : rows().capacity; }
  int64_t experts() const {
    return is_recorded() ? recorded().offsets.size(0) - 1 : rows().experts();
  }
  /// Number of places. A recorded dispatch must be padded.
  int64_t places() const {
    return is_recorded() && capacity() > 0 ? experts() * capacity() : rows().places();
  }

 private:
  std::variant<DispatchedRows, RecordedRows> rows_;
};

/// Dropless dispatch of expert and slot (T, k) int32, as a Routing has them. Slot -1: dropped. On a
/// GPU the counts of the experts are copied to the host, which waits for them. A recorded step can
/// have it if the experts are one operation (`feed_forward`) and no choice is dropped.
Dispatch dispatch(const at::Tensor& expert, const at::Tensor& slot, int64_t experts);
/// Dispatch padded to `capacity` places for each expert. No expert may have more rows. A recorded
/// step can have it.
Dispatch padded_dispatch(const at::Tensor& expert, const at::Tensor& slot, int64_t experts,
                         int64_t capacity);

/// Rows of x (T, C) for the experts, expert by expert: (P, C), zeros in empty places.
at::Tensor dispatch_rows(const at::Tensor& x, const Dispatch& dispatch);

/// Sums the experts' results at their tokens. Row y[t] is the sum of weight * row over the kept
/// choices of token t. Shapes: rows (P, C), weight (T, k), y (T, C). The weight is float32 if
/// `rows` are bfloat16, otherwise it has their dtype. Result y has the dtype of the weight.
///
/// `dispatch_rows` and `combine_rows` are differentiable; backward reads `dispatch`, too. Our
/// kernels run float32 and bfloat16, with float32 sums. On a GPU they need a dispatch that was made
/// there. Other dtypes are composed of ATen's operators. Sums are added in the order of the
/// experts, except in ATen's float64 on a GPU. Throw UserError on wrong shapes, dtypes and devices.
at::Tensor combine_rows(const at::Tensor& rows, const at::Tensor& weight, const Dispatch& dispatch);

}  // namespace dovetail::moe
