#pragma once

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

namespace dovetail::ops::cuda {

/// Calls a launcher with `arguments` and torch's current stream. Turns an error of its launches
/// into torch's exception.
template <auto launch, class... Arguments>
void on_stream(Arguments... arguments) {
  launch(arguments..., c10::cuda::getCurrentCUDAStream().stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

}  // namespace dovetail::ops::cuda
