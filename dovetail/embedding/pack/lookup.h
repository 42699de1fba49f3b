#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "dovetail/embedding/pack/jagged.h"
#include "dovetail/embedding/pack/table.h"

namespace dovetail::embedding {

/// State of a batch's ids and offsets. The ids of kChecked batches passed check_jagged, for the
/// same tables, and are not checked again. On a GPU, a check waits for the device.
enum class Ids { kUnchecked, kChecked };

/// Looks up the ids of a batch. Returns one pooled row for each bag: (samples, columns) float32,
/// with the features side by side in their order. A bag has the ids of one feature in one sample. A
/// sum adds w * row over the bag in its order, where w is the id's weight (1 without weights). A
/// mean multiplies the sum by 1 / (ids in the bag). An empty bag gives zeros. Pooling::kNone
/// returns w * row of every id, (ids, dim), in the order of the batch's values. Throws UserError
/// like check_jagged.
at::Tensor pool(const PackedTables& tables, const Jagged& batch);
/// Writes the result of `pool` into y, contiguous float32 with the shape of that result. If y has
/// columns of other packs (PackSpec::columns), they do not change.
void pool_into(const PackedTables& tables, const Jagged& batch, const at::Tensor& y,
               Ids ids = Ids::kUnchecked);

/// Batch, and the loss's gradient with respect to the result of pool(tables, batch). The gradient
/// is float32 and has the shape of that result.
struct PooledGradient {
  Jagged batch;
  at::Tensor gradient;
};

/// Runs one optimizer step on the rows that occur in a batch. The batch may be cut into
/// micro-batches, listed in the order of their samples. A row's gradient is the float32 sum over
/// its occurrences. They are added in the order (sample of the whole batch, feature, position in
/// the bag). So the bits do not depend on the cut into micro-batches, on threads or on other
/// tables. Throws UserError for wrong shapes before anything has changed.
void update(PackedTables& tables, const std::vector<PooledGradient>& micro_batches,
            Ids ids = Ids::kUnchecked);

/// Returns rows of one table by themselves, (n, dim) float32. `rows` (n) int64 are row numbers that
/// the caller has checked, on the table's device.
at::Tensor gather_rows(const PackedTables& tables, int64_t table, const at::Tensor& rows);

/// Gradients of single rows, in place of bags. For each table, `rows[t]` (n) int64 are its rows and
/// `gradient[t]` (n, dim) float32 their gradients. A row may occur more than once.
struct RowGradients {
  std::vector<at::Tensor> rows, gradient;
};

/// Runs one optimizer step like `update`. A row's gradient is the float32 sum over its occurrences,
/// in the order (part, position). The row numbers have been checked by the caller. They and the
/// gradients are on the tables' device.
void update_single_rows(PackedTables& tables, const std::vector<RowGradients>& parts);

}  // namespace dovetail::embedding
