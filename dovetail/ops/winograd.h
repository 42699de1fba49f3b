#pragma once

#include <cstdint>

namespace dovetail {

/// A 3 x 3 convolution of stride 1 on contiguous float32: x (batch, in, height, width) with zeros
/// around it, weight (out, in, 3, 3), bias (out) or null, y (batch, out, height + 2 pad - 2, width
/// + 2 pad - 2).
///
/// `transposed`: the gradient of the input instead, which is the convolution of x = dy (batch, out,
/// ...) with the filters turned and their channels exchanged, to y = dx (batch, in, ...); pad is
/// then 2 minus that of the forward pass.
struct WinogradProblem {
  int64_t batch, in_channels, out_channels, height, width;  ///< height and width of x
  int64_t pad_height, pad_width;
  bool transposed;
  const float *x, *weight, *bias;
  float* y;
};

/// Floats of memory that `convolve_winograd` needs beside its arguments; reads no pointer. They are
/// the transformed filters, four times their size, and the tiles, of input and output, of as many
/// rows of tiles at a time as fit into 4 MiB or half of the filters' memory, whichever is more.
int64_t winograd_workspace_floats(const WinogradProblem& problem);

/// F(4 x 4, 3 x 3) with the transforms of winograd_simd.h and our GEMM for the 36 products. The
/// same bits for any number of threads. The error is that of a sum over input channels in the
/// transformed space: against FP64 within (channels + 32) 2^-24 |A^T| (sum |u| |v|) |A|,
/// elementwise absolute values, in the notation of winograd_simd.h.
void convolve_winograd(const WinogradProblem& problem, float* workspace);

}  // namespace dovetail
