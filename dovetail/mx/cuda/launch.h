#pragma once

#include <cuda_runtime_api.h>

#include "dovetail/mx/quantize_simd.h"

/// Kernel launchers. They know neither ATen nor torch's streams.
namespace dovetail::mx::cuda {

/// Counters of a kernel for one orientation: Statistics in the form that a GPU sums up.
struct Counts {
  unsigned long long zero_blocks, non_finite_blocks, underflows, saturations, saturating_blocks,
      floor_saturated_blocks;
  uint32_t amax_bits, min_scale, max_scale;
  double signal, error;
};

/// Returns the number of thread blocks for a problem. `partial` has two Counts for each.
int64_t tiles(const QuantizeProblem& problem);

/// Quantizes. If `partial` is null, nothing is counted. Otherwise `sums` receives two Counts: for
/// row (or square) blocks and for column blocks. The order of summation depends only on the shape.
void quantize(const QuantizeProblem& problem, Counts* partial, Counts* sums, cudaStream_t stream);

/// Quantizes without counts, at memory bandwidth. Requires fits_vectors: rounding to nearest,
/// poisoned blocks, rows of whole blocks, aligned memory.
bool fits_vectors(const QuantizeProblem& problem);
void quantize_vectors(const QuantizeProblem& problem, cudaStream_t stream);

void dequantize(const DequantizeProblem& problem, float* y, cudaStream_t stream);
void dequantize(const DequantizeProblem& problem, uint16_t* y, cudaStream_t stream);

}  // namespace dovetail::mx::cuda
