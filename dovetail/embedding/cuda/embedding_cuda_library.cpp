#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include "dovetail/embedding/cuda/launch.h"

// Connects the launchers to torch's current stream, and turns their errors into torch's exceptions.

namespace dovetail::embedding {
namespace {

template <class Problem, void (*launch)(const Problem&, cudaStream_t)>
void on_stream(const Problem& problem) {
  launch(problem, c10::cuda::getCurrentCUDAStream().stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void update(const CudaUpdateProblem& problem, cudaStream_t stream) {
  C10_CUDA_CHECK(cuda::sort_occurrences(problem, stream));
  cuda::update_rows(problem, stream);
}

}  // namespace
}  // namespace dovetail::embedding

extern "C" const dovetail::embedding::CudaKernels* dovetail_embedding_cuda_kernels() {
  using namespace dovetail::embedding;
  static const CudaKernels kernels = {.check = on_stream<CudaCheckProblem, cuda::check>,
                                      .pool = on_stream<CudaPoolProblem, cuda::pool>,
                                      .update_scratch = cuda::sort_scratch,
                                      .update = on_stream<CudaUpdateProblem, update>};
  return &kernels;
}
