#pragma once

#include <cuda_runtime_api.h>

#include "dovetail/mx/quantize_simd.h"

/// Launchers of the kernels, which see neither ATen nor torch's streams.
namespace dovetail::mx::cuda {

/// What a kernel counts for one orientation: Statistics as a GPU adds it up.
struct Counts {
  unsigned long long zero_blocks, non_finite_blocks, underflows, saturations, saturating_blocks,
      floor_saturated_blocks;
  uint32_t amax_bits, min_scale, max_scale;
  double signal, error;
};

/// Thread blocks of a problem; `partial` has two Counts for each of them.
int64_t tiles(const QuantizeProblem& problem);

/// Null `partial`: nothing is counted. Otherwise `sums`, two Counts, receives row's (or square's)
/// and column's; added up in an order of the shape alone.
void quantize(const QuantizeProblem& problem, Counts* partial, Counts* sums, cudaStream_t stream);

/// The same without counts, at the memory's bandwidth. Needs `fits_vectors`: rounding to nearest,
/// poisoned blocks, rows of whole blocks, aligned memory.
bool fits_vectors(const QuantizeProblem& problem);
void quantize_vectors(const QuantizeProblem& problem, cudaStream_t stream);

void dequantize(const DequantizeProblem& problem, float* y, cudaStream_t stream);
void dequantize(const DequantizeProblem& problem, uint16_t* y, cudaStream_t stream);

}  // namespace dovetail::mx::cuda
