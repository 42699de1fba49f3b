#pragma once

#include <cuda_runtime_api.h>

#include "dovetail/mx/quantize_simd.h"

/// Launchers: functions that queue kernels on a given stream. They use neither ATen nor torch's
/// streams.
namespace dovetail::mx::cuda {

/// Statistics of blocks of one orientation, as a kernel counts and sums them. Members are named as
/// in Statistics (statistics.h). The numbers of elements and blocks are missing, because they
/// follow from the shape.
struct Counts {
  unsigned long long zero_blocks, non_finite_blocks, underflows, saturations, saturating_blocks,
      floor_saturated_blocks;
  uint32_t amax_bits, min_scale, max_scale;
  double signal, error;
};

/// Returns the number of thread blocks that `quantize` starts for a problem. Scratch memory
/// `partial` of `quantize` holds two Counts for each thread block.
int64_t tiles(const QuantizeProblem& problem);

/// Makes the copies that `problem` requests. `partial` is scratch memory on the GPU, see `tiles`.
/// If `partial` is null, nothing is counted. Otherwise `sums` receives two Counts. The first is for
/// row blocks (or for square blocks, if requested), the second for column blocks. The order of
/// summation depends only on the shape.
void quantize(const QuantizeProblem& problem, Counts* partial, Counts* sums, cudaStream_t stream);

/// Quantizes without counting statistics, at memory bandwidth. Requires `fits_vectors`.
void quantize_vectors(const QuantizeProblem& problem, cudaStream_t stream);

/// Writes the dequantized numbers to y: float32, or bfloat16 bits.
void dequantize(const DequantizeProblem& problem, float* y, cudaStream_t stream);
void dequantize(const DequantizeProblem& problem, uint16_t* y, cudaStream_t stream);

}  // namespace dovetail::mx::cuda
