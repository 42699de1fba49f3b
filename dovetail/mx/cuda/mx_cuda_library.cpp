#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include "dovetail/mx/cuda/float8.h"
#include "dovetail/mx/cuda/launch.h"
#include "dovetail/mx/cuda/native_gemm.h"
#include "dovetail/mx/cuda_kernels.h"

// Connects the launchers to torch's current stream, and turns their errors into torch's exceptions.

namespace dovetail::mx {
namespace {

cudaStream_t stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

at::Tensor bytes_on_gpu(size_t count) {
  return at::empty({static_cast<int64_t>(count)}, at::TensorOptions(at::kByte).device(at::kCUDA));
}

void add(Statistics& to, const cuda::Counts& counts, int64_t elements, int64_t blocks) {
  Statistics part;
  part.elements = elements;
  part.blocks = blocks;
  part.zero_blocks = static_cast<int64_t>(counts.zero_blocks);
  part.non_finite_blocks = static_cast<int64_t>(counts.non_finite_blocks);
  part.underflows = static_cast<int64_t>(counts.underflows);
  part.saturations = static_cast<int64_t>(counts.saturations);
  part.saturating_blocks = static_cast<int64_t>(counts.saturating_blocks);
  part.floor_saturated_blocks = static_cast<int64_t>(counts.floor_saturated_blocks);
  part.amax_bits = counts.amax_bits;
  part.min_scale = static_cast<int>(counts.min_scale);
  part.max_scale = static_cast<int>(counts.max_scale);
  part.signal = counts.signal;
  part.error = counts.error;
  to.add(part);
}

void quantize_on_stream(const QuantizeProblem& p, QuantizeCounts* counts) {
  if (counts == nullptr) {
    cuda::quantize(p, nullptr, nullptr, stream());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return;
  }
  const at::Tensor partial =
      bytes_on_gpu(2 * sizeof(cuda::Counts) * static_cast<size_t>(cuda::tiles(p)));
  const at::Tensor sums = bytes_on_gpu(2 * sizeof(cuda::Counts));
  auto* sums_on_gpu = static_cast<cuda::Counts*>(sums.mutable_data_ptr());
  cuda::quantize(p, static_cast<cuda::Counts*>(partial.mutable_data_ptr()), sums_on_gpu, stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  cuda::Counts found[2];
  C10_CUDA_CHECK(
      cudaMemcpyAsync(found, sums_on_gpu, sizeof(found), cudaMemcpyDeviceToHost, stream()));
  C10_CUDA_CHECK(cudaStreamSynchronize(stream()));
  const int64_t row_blocks = (p.rows + kBlock - 1) / kBlock,
                col_blocks = (p.cols + kBlock - 1) / kBlock;
  if (p.row.wanted()) add(counts->row, found[0], p.rows * p.cols, p.rows * col_blocks);
  if (p.column.wanted()) add(counts->column, found[1], p.rows * p.cols, row_blocks * p.cols);
  if (p.square.wanted()) add(counts->square, found[0], p.rows * p.cols, row_blocks * col_blocks);
}

void dequantize_to_float32_on_stream(const DequantizeProblem& problem, float* y) {
  cuda::dequantize(problem, y, stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void dequantize_to_bfloat16_on_stream(const DequantizeProblem& problem, uint16_t* y) {
  cuda::dequantize(problem, y, stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void float8_amax_on_stream(const Float8GpuProblem& problem) {
  cuda::float8_amax(problem, stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void quantize_float8_on_stream(const Float8GpuProblem& problem) {
  cuda::quantize_float8(problem, stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

std::vector<NativeDevice> describe_gpus() {
  int count = 0;
  C10_CUDA_CHECK(cudaGetDeviceCount(&count));
  std::vector<NativeDevice> gpus;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties;
    C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, i));
    gpus.push_back({.name = properties.name,
                    .major = properties.major,
                    .minor = properties.minor,
                    .missing = {}});
  }
  return gpus;
}

}  // namespace
}  // namespace dovetail::mx

extern "C" const dovetail::mx::CudaKernels* dovetail_mx_cuda_kernels() {
  static const dovetail::mx::CudaKernels kernels = {
      .quantize = dovetail::mx::quantize_on_stream,
      .dequantize_to_float32 = dovetail::mx::dequantize_to_float32_on_stream,
      .dequantize_to_bfloat16 = dovetail::mx::dequantize_to_bfloat16_on_stream,
      .native_product = dovetail::mx::cuda::native_gemm,
      .float8_amax = dovetail::mx::float8_amax_on_stream,
      .quantize_float8 = dovetail::mx::quantize_float8_on_stream,
      .describe_gpus = dovetail::mx::describe_gpus};
  return &kernels;
}
