#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "dovetail/embedding/pack/lookup.h"

namespace dovetail::embedding {

/// Checks offsets and ids of a batch on a GPU, as check_jagged does with the same `rows`. The
/// caller has checked the shapes. Throws UserError like check_jagged. Waits for the GPU.
void check_contents_on_gpu(const Jagged& batch, at::ArrayRef<int64_t> rows);

/// Computes pool_into (lookup.h) for tables on a GPU. The caller has checked the arguments.
void pool_on_gpu(const PackedTables& tables, const Jagged& batch, const at::Tensor& y);
/// Computes update (lookup.h) for tables on a GPU, without incrementing tables.steps(). The caller
/// has checked the arguments. A row's gradient is summed over its occurrences in the batch. Up to
/// 256 occurrences have the same sum as on the CPU. More occurrences are cut into ranges, and the
/// sums of the ranges are added (CudaUpdateProblem in cuda_kernels.h). The ranges depend on the
/// number of occurrences alone.
void update_on_gpu(const PackedTables& tables, const std::vector<PooledGradient>& micro_batches);

}  // namespace dovetail::embedding
