#include "dovetail/moe/cuda/launch.h"
#include "dovetail/ops/cuda/on_stream.h"

// Runs the launchers on torch's current stream and turns their errors into torch's exceptions.

extern "C" const dovetail::moe::CudaKernels* dovetail_moe_cuda_kernels() {
  using namespace dovetail::moe;
  using dovetail::ops::cuda::on_stream;
  static const CudaKernels kernels = {
      .route = on_stream<cuda::route, const RouteProblem&>,
      .route_gradient = on_stream<cuda::route_gradient, const RouteGradientProblem&>,
      .choose = on_stream<cuda::choose, const ChooseProblem&>,
      .score_groups = on_stream<cuda::score_groups, const GroupScoreProblem&>,
      .assign_slots = on_stream<cuda::assign_slots, const SlotProblem&>,
      .place_rows = on_stream<cuda::place_rows, const RowsProblem&>,
      .gather_rows = on_stream<cuda::gather_rows, const PlacedRowsProblem&>,
      .sum_rows = on_stream<cuda::sum_rows, const SumRowsProblem&>};
  return &kernels;
}
