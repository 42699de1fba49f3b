#include "dovetail/fit/cuda/launch.h"
#include "dovetail/ops/cuda/on_stream.h"

// Connects the launchers to torch's current stream, and turns their errors into torch's exceptions.

extern "C" const dovetail::fit::CudaKernels* dovetail_fit_cuda_kernels() {
  using namespace dovetail::fit;
  using dovetail::ops::cuda::on_stream;
  static const CudaKernels kernels = {
      .squares = on_stream<cuda::squares, const CudaSquares&>,
      .nearest = on_stream<cuda::nearest, const CudaAssign&>,
      .sums = on_stream<cuda::sums, const CudaAssign&, int64_t, int64_t, double*>,
      .add_tree = on_stream<cuda::add_tree, double*, int64_t, int64_t, int64_t>};
  return &kernels;
}
