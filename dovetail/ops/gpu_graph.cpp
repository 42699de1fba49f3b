#include "dovetail/ops/gpu_graph.h"

#include <memory>

#include "dovetail/base/error.h"
#include "dovetail/ops/cuda_kernels.h"

namespace dovetail::ops {
namespace {

const CudaKernels& kernels() {
  const CudaKernels* found = cuda_kernels();
  DOVETAIL_CHECK(found != nullptr, "a CUDA graph in a build without nvcc");
  return *found;
}

}  // namespace

GpuGraph::GpuGraph(const std::function<void()>& work) : graph_(kernels().record_graph(work)) {}
GpuGraph::~GpuGraph() { kernels().drop_graph(graph_); }
void GpuGraph::replay() { kernels().replay_graph(graph_); }

std::function<void()> record_gpu_graph(const std::function<void()>& work) {
  return [graph = std::make_shared<GpuGraph>(work)] { graph->replay(); };
}

}  // namespace dovetail::ops
