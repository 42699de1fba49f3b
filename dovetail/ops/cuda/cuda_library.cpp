#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include "dovetail/ops/cuda/graph.h"
#include "dovetail/ops/cuda/grouped_gemm.h"
#include "dovetail/ops/cuda/launch.h"
#include "dovetail/ops/cuda_kernels.h"

// Library for GPUs: calls our launchers on torch's current stream and turns their errors into
// torch's exceptions.

namespace dovetail::ops {
namespace {

cudaStream_t stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

void norm_forward_on_stream(const NormProblem& problem, const void* branch, void* sum, void* y) {
  cuda::norm_forward(problem, branch, sum, y, stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void norm_backward_on_stream(const NormProblem& problem, const void* dy, const void* dsum, void* dx,
                             float* dweight, float* dbias) {
  const at::Tensor partial = at::empty({2 * cuda::norm_parts(problem.rows), problem.width},
                                       at::TensorOptions(at::kFloat).device(at::kCUDA));
  cuda::norm_backward(problem, dy, dsum, dx, partial.mutable_data_ptr<float>(), dweight, dbias,
                      stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void activation_forward_on_stream(const ActivationProblem& problem, void* y) {
  cuda::activation_forward(problem, y, stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void activation_backward_on_stream(const ActivationProblem& problem, const void* dy, void* dx) {
  cuda::activation_backward(problem, dy, dx, stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void column_sums_on_stream(Storage storage, const void* x, int64_t rows, int64_t columns,
                           void* to) {
  const at::Tensor partial = at::empty({cuda::column_sum_parts(rows), columns},
                                       at::TensorOptions(at::kFloat).device(at::kCUDA));
  cuda::column_sums(storage, x, rows, columns, partial.mutable_data_ptr<float>(), to, stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void adamw_on_stream(std::span<const AdamWSpan> spans, const AdamWScalars& scalars) {
  cuda::adamw(spans, scalars, stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void squares_on_stream(std::span<const SquaresPiece> pieces, double* sums) {
  cuda::squares(pieces, sums, stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void cross_entropy_on_stream(const CrossEntropyProblem& problem) {
  cuda::cross_entropy(problem, stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void rotate_on_stream(const RotaryProblem& problem, std::span<const RotaryPart> parts) {
  cuda::rotate(problem, parts, stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace
}  // namespace dovetail::ops

extern "C" const dovetail::ops::CudaKernels* dovetail_cuda_kernels() {
  static const dovetail::ops::CudaKernels kernels = {
      .norm_forward = dovetail::ops::norm_forward_on_stream,
      .norm_backward = dovetail::ops::norm_backward_on_stream,
      .activation_forward = dovetail::ops::activation_forward_on_stream,
      .activation_backward = dovetail::ops::activation_backward_on_stream,
      .grouped_products = dovetail::ops::cuda::grouped_gemm,
      .column_sums = dovetail::ops::column_sums_on_stream,
      .adamw = dovetail::ops::adamw_on_stream,
      .squares = dovetail::ops::squares_on_stream,
      .cross_entropy = dovetail::ops::cross_entropy_on_stream,
      .record_graph = dovetail::ops::cuda::record_graph,
      .replay_graph = dovetail::ops::cuda::replay_graph,
      .drop_graph = dovetail::ops::cuda::drop_graph,
      .rotate = dovetail::ops::rotate_on_stream};
  return &kernels;
}
