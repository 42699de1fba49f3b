#include "dovetail/ops/cuda/graph.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <memory>

namespace dovetail::ops::cuda {

void* record_graph(const std::function<void()>& work) {
  // The graph has its own memory pool, which cannot use blocks that earlier work left in the common
  // pool.
  c10::cuda::CUDACachingAllocator::emptyCache();
  auto graph = std::make_unique<at::cuda::CUDAGraph>();
  // Other threads, for example the data loader, may allocate pinned memory meanwhile.
  graph->capture_begin(/*pool=*/{0, 0}, cudaStreamCaptureModeThreadLocal);
  try {
    work();
  } catch (...) {
    try {
      graph->capture_end();
    } catch (const c10::Error&) {  // NOLINT(bugprone-empty-catch): the first error says more
    }
    throw;
  }
  graph->capture_end();
  return graph.release();
}

void replay_graph(void* graph) { static_cast<at::cuda::CUDAGraph*>(graph)->replay(); }
void drop_graph(void* graph) { delete static_cast<at::cuda::CUDAGraph*>(graph); }

}  // namespace dovetail::ops::cuda
