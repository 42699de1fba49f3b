#pragma once

namespace dovetail::ops {

/// Measures and returns the FLOP/s of float32 fused multiply-adds that stay in registers. Uses
/// parallel_workers() threads and the instruction set in use (simd_level.h). This is the upper
/// bound of every FP32 kernel on this machine in its current state. Takes about `seconds` and
/// returns the best of several rounds.
double measure_fma_rate(double seconds = 0.1);

}  // namespace dovetail::ops
