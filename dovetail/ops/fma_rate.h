#pragma once

namespace dovetail {

/// FLOP/s of float32 fused multiply-adds that never leave the registers, on parallel_workers()
/// threads and the instruction set in use (dispatch.h): the ceiling of every FP32 kernel on this
/// machine as it is now. Takes about `seconds`; best of several rounds.
double measure_fma_rate(double seconds = 0.1);

}  // namespace dovetail
