#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "dovetail/embedding/pack/lookup.h"

namespace dovetail::embedding {

/// Checks offsets and ids of a batch on a GPU. The caller has checked the shapes. Throws UserError
/// like check_jagged. Waits for the GPU.
void check_contents_on_gpu(const Jagged& batch, at::ArrayRef<int64_t> rows);

/// pool_into and update (lookup.h) for tables on a GPU. Callers have checked the arguments. A row
/// with up to 256 occurrences in an update has the same sum as on the CPU. With more occurrences,
/// it is summed in parts. The parts depend on the number of occurrences alone.
void pool_on_gpu(const PackedTables& tables, const Jagged& batch, const at::Tensor& y);
void update_on_gpu(const PackedTables& tables, const std::vector<PooledGradient>& micro_batches);

}  // namespace dovetail::embedding
