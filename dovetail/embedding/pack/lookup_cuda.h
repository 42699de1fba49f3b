#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <vector>

#include "dovetail/embedding/pack/cuda_kernels.h"
#include "dovetail/embedding/pack/lookup.h"

namespace dovetail::embedding {

/// Layout of a pack as kernels read it. The pointers of `pack` are to `tables` and `features`.
struct PackLayout {
  explicit PackLayout(const PackedTables& from);
  PackLayout(const PackLayout&) = delete;
  PackLayout& operator=(const PackLayout&) = delete;

  std::vector<CudaTable> tables;
  std::vector<CudaFeature> features;
  CudaPack pack = {};
  int64_t rows = 0;  ///< number of rows of all tables
};

/// Returns a batch as kernels read it.
CudaBatch cuda_batch(const Jagged& batch);
/// Returns the keys of the next update's stochastic rounding, one for each table.
std::vector<uint64_t> rounding_keys(const PackedTables& tables);

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
/// number of occurrences alone. `kernels` are cuda_kernels(); tests pass their source on the CPU,
/// with tables on the CPU.
void update_on_gpu(const PackedTables& tables, const std::vector<PooledGradient>& micro_batches,
                   const CudaKernels& kernels);
/// Does the same for update_single_rows. Nothing waits for the GPU. All gradients lie in one array.
/// The bag of an occurrence is one number for its table and the place of its gradient. The unit of
/// places is the greatest common divisor of the dims.
void update_single_rows_on_gpu(const PackedTables& tables, const std::vector<RowGradients>& parts,
                               const CudaKernels& kernels);

/// Carries out moves of rows between slots of `tables` and records, all in the tables' memory. On a
/// GPU it calls CudaKernels::move, on the CPU it does the same. `problem.pack` is not used.
void move_rows(const PackedTables& tables, CudaMoveProblem problem);

}  // namespace dovetail::embedding
