#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <variant>
#include <vector>

/// Functions that copy tokens to their experts, and the experts' results back to the tokens.
///
/// A choice is one of the k experts of a token (moe/routing.h). Each choice that was not dropped
/// has a row in the dispatched matrix, which is the experts' input. A place is a row of memory in
/// that matrix; some places are empty if rows are padded to a capacity.
///
/// Shapes: T tokens, k choices of a token, E experts, C width, R rows, P places. P is R if rows are
/// not padded (dropless). Otherwise it is E times the capacity.
namespace dovetail::moe {

/// Rows of the dispatched matrix, sorted by expert and within an expert by slot. Row r is a copy of
/// token[r]. Dropless rows are contiguous. If padded, rows of expert e begin at place e * capacity
/// and zeros follow them. This is the layout (E, capacity, C) of GShard and Tutel.
struct DispatchedRows {
  std::vector<int64_t> offsets;  ///< (E + 1): expert e has rows [offsets[e], offsets[e + 1])
  at::Tensor choice;             ///< (R) int64: t k + j if row r is for choice j of token t
  at::Tensor token;              ///< (R) int32: token of each row
  int64_t capacity = 0;          ///< places of each expert; 0: dropless
  /// (T, k) int32: rows of each token, ascending, then -1 for dropped choices. GPU only; undefined
  /// on the CPU.
  at::Tensor rows_of_token = {};

  int64_t experts() const { return static_cast<int64_t>(offsets.size()) - 1; }
  int64_t size() const { return offsets.back(); }  ///< number of rows R
  int64_t first(int64_t expert) const { return offsets[static_cast<size_t>(expert)]; }
  int64_t count(int64_t expert) const { return first(expert + 1) - first(expert); }
  int64_t places() const { return capacity > 0 ? experts() * capacity : size(); }
  int64_t first_place(int64_t expert) const {
    return capacity > 0 ? expert * capacity : first(expert);
  }
  /// Returns a view of the rows of `per_row` (R, ...) that belong to one expert.
  at::Tensor of_expert(const at::Tensor& per_row, int64_t expert) const {
    return per_row.narrow(0, first(expert), count(expert));
  }
};

/// Rows in a recorded step: a training step whose operations are recorded once and then replayed
/// with other inputs (plan/record/capture.h). The number of rows differs from replay to replay, so
/// each operation (base/operation.h) reads the sizes from a tensor. Members are as in
/// DispatchedRows.
struct RecordedRows {
  at::Tensor choice;   ///< (T k) int64, zeros after the last row
  at::Tensor token;    ///< (T k) int32, zeros after the last row
  at::Tensor offsets;  ///< (E + 1) int64 on the CPU
  int64_t capacity = 0;

  /// Returns the rows of the current replay. Call it inside an operation only.
  DispatchedRows resolve() const;
};

/// Rows of a dispatched matrix: DispatchedRows with known sizes, or RecordedRows of a recorded
/// step.
class Dispatch {
 public:
  Dispatch() = default;
  Dispatch(DispatchedRows rows) : rows_(std::move(rows)) {}  // NOLINT(google-explicit-constructor)
  Dispatch(RecordedRows rows) : rows_(std::move(rows)) {}    // NOLINT(google-explicit-constructor)

  bool is_recorded() const { return std::holds_alternative<RecordedRows>(rows_); }
  /// Returns rows with known sizes. Throws InternalError if the dispatch is recorded.
  const DispatchedRows& rows() const;
  /// Throws InternalError unless the dispatch is recorded.
  const RecordedRows& recorded() const;
  /// Returns the rows of the current step. If the dispatch is recorded, call this only inside an
  /// operation. Throws UserError if a recorded dropless dispatch dropped a choice: all its replays
  /// need the same number of rows.
  DispatchedRows resolve() const;

  const at::Tensor& choice() const { return is_recorded() ? recorded().choice : rows().choice; }
  const at::Tensor& token() const { return is_recorded() ? recorded().token : rows().token; }
  int64_t capacity() const { return is_recorded() ? recorded().capacity : rows().capacity; }
  int64_t experts() const {
    return is_recorded() ? recorded().offsets.size(0) - 1 : rows().experts();
  }
  /// Returns the number of places P. A recorded dropless dispatch has a place for each choice.
  int64_t places() const {
    if (!is_recorded()) return rows().places();
    return capacity() > 0 ? experts() * capacity() : choice().size(0);
  }

 private:
  std::variant<DispatchedRows, RecordedRows> rows_;
};

/// Makes the dropless dispatch from `expert` and `slot`, (T, k) int32, which are members of a
/// Routing. Slot -1: dropped. kept: Routing::kept, which only a GPU reads; undefined: slots may
/// have gaps. On a GPU, the numbers of rows of the experts are copied to the host, which waits for
/// them. A recorded step may use this function if the experts are one operation on all rows, and no
/// choice is dropped.
Dispatch dispatch(const at::Tensor& expert, const at::Tensor& slot, int64_t experts,
                  const at::Tensor& kept = {});
/// Makes the dispatch padded to `capacity` places for each expert. No expert may have more rows. A
/// recorded step may use this function.
Dispatch padded_dispatch(const at::Tensor& expert, const at::Tensor& slot, int64_t experts,
                         int64_t capacity, const at::Tensor& kept = {});

/// Copies rows that were made on the CPU to `device`. On a GPU, `rows_of_token` is set as well, for
/// `tokens` tokens of at most `k` rows each.
DispatchedRows on_device(DispatchedRows rows, int64_t tokens, int64_t k, at::Device device);

/// Returns the dispatched matrix (P, C): the rows of x (T, C), expert by expert, with zeros in
/// empty places.
at::Tensor dispatch_rows(const at::Tensor& x, const Dispatch& dispatch);

/// Sums the experts' results for each token. Result y[t] is the sum of weight[t][j] * rows[p] over
/// the choices j of token t that have a row. Here, p is the place of the choice's row. Shapes: rows
/// (P, C), weight (T, k), y (T, C). The weight is float32 if `rows` have 16 bits, otherwise it has
/// their dtype. Result y has the dtype of the weight.
///
/// `dispatch_rows`, `combine_rows` and `sum_rows` are differentiable; backward reads `dispatch`,
/// too. Kernels of this project run float32 and bfloat16, with float32 sums. On a GPU they need a
/// dispatch made on that GPU. Other dtypes are composed of ATen's operators. Sums are added in the
/// order of the experts, except in ATen's float64 on a GPU. Both throw UserError on wrong shapes,
/// dtypes and devices.
at::Tensor combine_rows(const at::Tensor& rows, const at::Tensor& weight, const Dispatch& dispatch);

/// Sums the rows of each of `tokens` tokens: `combine_rows` with weights of 1. Returns (tokens, C),
/// in float32 if `rows` are bfloat16, otherwise in their dtype.
at::Tensor sum_rows(const at::Tensor& rows, const Dispatch& dispatch, int64_t tokens);

}  // namespace dovetail::moe
