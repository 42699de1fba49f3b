#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "dovetail/embedding/pack/lookup.h"

namespace dovetail::embedding {

/// Throws UserError as check_jagged for what offsets and ids of a batch on a GPU are; its shapes
/// have been checked. The GPU is waited for.
void check_contents_on_gpu(const Jagged& batch, at::ArrayRef<int64_t> rows);

/// pool_into and update of lookup.h for tables on a GPU; their arguments have been checked. Rows of
/// up to 256 occurrences in an update have the CPU's sum; those of more are summed in parts, which
/// also depend on nothing else.
void pool_on_gpu(const PackedTables& tables, const Jagged& batch, const at::Tensor& y);
void update_on_gpu(const PackedTables& tables, const std::vector<PooledGradient>& micro_batches);

}  // namespace dovetail::embedding
