#pragma once

#include <functional>

namespace dovetail::ops {

/// GPU work that is recorded once and queued again by one call: a CUDA graph.
class GpuGraph {
 public:
  /// Records the GPU work that `work` queues on the current stream, without running it. The current
  /// stream must not be the default one (`use_own_stream` in base/gpu.h). `work` must not wait for
  /// the GPU, or copy from memory that is not pinned. Tensors that `work` creates keep their
  /// addresses as long as the graph lives. Throws c10::Error, or the exception of `work`; no graph
  /// is left in either case.
  explicit GpuGraph(const std::function<void()>& work);
  ~GpuGraph();
  GpuGraph(const GpuGraph&) = delete;
  GpuGraph& operator=(const GpuGraph&) = delete;

  /// Queues the recorded work on the current stream. The work reads and writes the addresses that
  /// it was recorded with.
  void replay();

 private:
  void* graph_;
};

/// Records work, and returns a function that runs it again on the same tensors.
using WorkRecorder = std::function<std::function<void()>(const std::function<void()>& work)>;
/// WorkRecorder that makes a GpuGraph.
std::function<void()> record_gpu_graph(const std::function<void()>& work);

}  // namespace dovetail::ops
