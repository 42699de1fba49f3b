#pragma once

#include <cuda_runtime_api.h>

#include "dovetail/moe/cuda_kernels.h"

/// Functions that launch the kernels of moe/cuda_kernels.h on `stream`. They depend neither on ATen
/// nor on torch's streams. A call must have at least one element to process.
namespace dovetail::moe::cuda {

void choose(const ChooseProblem& problem, cudaStream_t stream);
void score_groups(const GroupScoreProblem& problem, cudaStream_t stream);
void assign_slots(const SlotProblem& problem, cudaStream_t stream);
void sort_rows(const RowsProblem& problem, cudaStream_t stream);
void gather_rows(const PlacedRowsProblem& problem, cudaStream_t stream);
void sum_rows(const SumRowsProblem& problem, cudaStream_t stream);

}  // namespace dovetail::moe::cuda
