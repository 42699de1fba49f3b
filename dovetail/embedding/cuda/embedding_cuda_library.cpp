#include "dovetail/embedding/cuda/launch.h"
#include "dovetail/ops/cuda/on_stream.h"

// Connects the launchers to torch's current stream, and turns their errors into torch's exceptions.

namespace dovetail::embedding {
namespace {

void update(const CudaUpdateProblem& problem, cudaStream_t stream) {
  C10_CUDA_CHECK(cuda::sort_occurrences(problem, stream));
  cuda::update_rows(problem, stream);
}

}  // namespace
}  // namespace dovetail::embedding

extern "C" const dovetail::embedding::CudaKernels* dovetail_embedding_cuda_kernels() {
  using namespace dovetail::embedding;
  using dovetail::ops::cuda::on_stream;
  static const CudaKernels kernels = {.check = on_stream<cuda::check, const CudaCheckProblem&>,
                                      .pool = on_stream<cuda::pool, const CudaPoolProblem&>,
                                      .update_scratch = cuda::sort_scratch,
                                      .update = on_stream<update, const CudaUpdateProblem&>,
                                      .move = on_stream<cuda::move, const CudaMoveProblem&>};
  return &kernels;
}
