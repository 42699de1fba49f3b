#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include "dovetail/fit/cuda/launch.h"

// Connects the launchers to torch's current stream, and turns their errors into torch's exceptions.

namespace dovetail::fit {
namespace {

template <auto launch, class... Arguments>
void on_stream(Arguments... arguments) {
  launch(arguments..., c10::cuda::getCurrentCUDAStream().stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace
}  // namespace dovetail::fit

extern "C" const dovetail::fit::CudaKernels* dovetail_fit_cuda_kernels() {
  using namespace dovetail::fit;
  static const CudaKernels kernels = {
      .squares = on_stream<cuda::squares, const CudaSquares&>,
      .nearest = on_stream<cuda::nearest, const CudaAssign&>,
      .sums = on_stream<cuda::sums, const CudaAssign&, int64_t, int64_t, double*>,
      .add_tree = on_stream<cuda::add_tree, double*, int64_t, int64_t, int64_t>};
  return &kernels;
}
