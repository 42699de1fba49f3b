#pragma once

namespace dovetail::ops {

/// Measures the rate of float32 fused multiply-adds that stay in registers, and returns it in
/// FLOP/s. It is an upper bound for every FP32 kernel on this machine in its current state. Uses
/// parallel_workers() threads and the instruction set in use (simd_level.h). Takes about `seconds`
/// and returns the best of several rounds.
double measure_fma_rate(double seconds = 0.1);

}  // namespace dovetail::ops
