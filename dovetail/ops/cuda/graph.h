#pragma once

#include <functional>

namespace dovetail::cuda {

/// Entries of CudaKernels.
void* record_graph(const std::function<void()>& work);
void replay_graph(void* graph);
void drop_graph(void* graph);

}  // namespace dovetail::cuda
