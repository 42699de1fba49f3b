#pragma once

#include "dovetail/moe/cuda_kernels.h"

struct CUstream_st;  // CUDA's type behind cudaStream_t

/// Functions that launch the kernels of moe/cuda_kernels.h on `stream`. They depend neither on ATen
/// nor on torch's streams. A call must have at least one element to process.
namespace dovetail::moe::cuda {

using Stream = CUstream_st*;

void route(const RouteProblem& problem, Stream stream);
void route_gradient(const RouteGradientProblem& problem, Stream stream);
void choose(const ChooseProblem& problem, Stream stream);
void score_groups(const GroupScoreProblem& problem, Stream stream);
void assign_slots(const SlotProblem& problem, Stream stream);
void place_rows(const RowsProblem& problem, Stream stream);
void gather_rows(const PlacedRowsProblem& problem, Stream stream);
void sum_rows(const SumRowsProblem& problem, Stream stream);

}  // namespace dovetail::moe::cuda
