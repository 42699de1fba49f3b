#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "dovetail/embedding/pack/jagged.h"
#include "dovetail/embedding/pack/table.h"

namespace dovetail::embedding {

/// The pooled rows of every bag: (samples, columns) float32, features side by side in their order.
/// With w the weight of an id (1 without weights), the sum over the bag of w * row, added in the
/// order of the bag; for a mean, that times 1 / (number of ids in the bag). Zero for an empty bag.
/// Of Pooling::kNone: w * row of every id, in the order of the batch's values, (ids, dim). Throws
/// UserError as check_jagged.
at::Tensor pool(const PackedTables& tables, const Jagged& batch);
/// The same into the features' columns of y, float32, of that shape and contiguous; other columns
/// stay as they are.
void pool_into(const PackedTables& tables, const Jagged& batch, const at::Tensor& y);

/// The gradient of pool(tables, batch), float32 and of its shape.
struct PooledGradient {
  Jagged batch;
  at::Tensor gradient;
};

/// One step of the tables' optimizer over the rows that occur in a batch, which may come in
/// micro-batches: the order of the list is the order of their samples. The gradient of a row is the
/// sum over its occurrences, in float32 and in the order (sample of the whole batch, feature,
/// position in the bag), so that the bits depend neither on how the batch was cut, nor on threads,
/// nor on what else is in the pack. Throws UserError for shapes that do not fit, before anything
/// has changed.
void update(PackedTables& tables, const std::vector<PooledGradient>& micro_batches);

}  // namespace dovetail::embedding
