#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include "dovetail/moe/cuda/launch.h"

// Runs the launchers on torch's current stream and turns their errors into torch's exceptions.

namespace dovetail::moe {
namespace {

template <class Problem, void (*launch)(const Problem&, cudaStream_t)>
void on_stream(const Problem& problem) {
  launch(problem, c10::cuda::getCurrentCUDAStream().stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace
}  // namespace dovetail::moe

extern "C" const dovetail::moe::CudaKernels* dovetail_moe_cuda_kernels() {
  using namespace dovetail::moe;
  static const CudaKernels kernels = {
      .choose = on_stream<ChooseProblem, cuda::choose>,
      .score_groups = on_stream<GroupScoreProblem, cuda::score_groups>,
      .assign_slots = on_stream<SlotProblem, cuda::assign_slots>,
      .sort_rows = on_stream<RowsProblem, cuda::sort_rows>,
      .gather_rows = on_stream<PlacedRowsProblem, cuda::gather_rows>,
      .sum_rows = on_stream<SumRowsProblem, cuda::sum_rows>};
  return &kernels;
}
