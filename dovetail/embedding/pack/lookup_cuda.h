#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <vector>

#include "dovetail/embedding/pack/lookup.h"

namespace dovetail::embedding {

/// Check of offsets and ids of a batch on a GPU, by the rules of check_jagged with the same `rows`.
/// The caller has checked the shapes. The check runs on a stream of its own. So kernels that are
/// queued before `wait` run beside it.
class ContentsCheck {
 public:
  /// Starts the check.
  ContentsCheck(const Jagged& batch, at::ArrayRef<int64_t> rows);
  /// Waits for the check. Throws UserError like check_jagged.
  void wait();

 private:
  const Jagged& batch_;
  at::ArrayRef<int64_t> rows_;
  at::Tensor limits_, bad_, bad_on_host_;
  c10::Event end_;
};

/// Computes pool_into (lookup.h) for tables on a GPU. The caller has checked shapes and dtypes. Bad
/// ids and offsets give undefined pooled rows, but no access outside of memory.
void pool_on_gpu(const PackedTables& tables, const Jagged& batch, const at::Tensor& y);
/// Computes update (lookup.h) for tables on a GPU, without incrementing tables.steps(). The caller
/// has checked the arguments. A row's gradient is summed over its occurrences in the batch. Up to
/// 256 occurrences have the same sum as on the CPU. More occurrences are cut into ranges, and the
/// sums of the ranges are added (CudaUpdateProblem in cuda_kernels.h). The ranges depend on the
/// number of occurrences alone.
void update_on_gpu(const PackedTables& tables, const std::vector<PooledGradient>& micro_batches);

}  // namespace dovetail::embedding
