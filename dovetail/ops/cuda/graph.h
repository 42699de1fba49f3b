#pragma once

#include <functional>

namespace dovetail::ops::cuda {

/// Implementations of the members of CudaKernels (ops/cuda_kernels.h) with these names.
void* record_graph(const std::function<void()>& work);
void replay_graph(void* graph);
void drop_graph(void* graph);

}  // namespace dovetail::ops::cuda
