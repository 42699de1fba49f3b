#pragma once

#include <cstdint>

namespace dovetail::ops {

/// Convolution with 3 x 3 filters and stride 1 on contiguous float32. The input x (batch, in,
/// height, width) is padded with zeros. Filters are weight (out, in, 3, 3); bias (out) may be null.
/// The result is y (batch, out, height + 2 pad - 2, width + 2 pad - 2).
///
/// If `transposed` is set, y is the gradient of the input instead. It is computed as a convolution:
/// the filters are turned by 180 degrees, and their channels are exchanged. Then x
/// is dy (batch, out, height, width). y is dx (batch, in, ...). pad_height and pad_width
/// are 2 minus the padding of the forward pass.
struct WinogradProblem {
  int64_t batch, in_channels, out_channels, height, width;  ///< height and width of x
  int64_t pad_height, pad_width;
  bool transposed;
  const float *x, *weight, *bias;
  float* y;
};

/// Returns the size in floats of the workspace of `convolve_winograd`; reads no pointer of
/// `problem`. Images are processed block by block; a block is a number of whole rows of tiles
/// (winograd_simd.h). The workspace holds
/// - the transformed filters, four times the size of the filters,
/// - the transformed tiles of input and output of one block. They take at most 4 MiB, or half the
///   size of the transformed filters if that is more.
int64_t winograd_workspace_floats(const WinogradProblem& problem);

/// Computes `problem` by F(4 x 4, 3 x 3), with the transforms of winograd_simd.h and our GEMM for
/// the 36 products. The bits are the same for any number of threads. The error of a tile of y,
/// compared with FP64, is at most (channels + 32) 2^-24 |A^T| M |A|, for each element. `channels`
/// is the number of channels of x. M (6, 6) is the sum of |u| |v| over the channels of x, for each
/// point. winograd_simd.h defines A, u and v.
void convolve_winograd(const WinogradProblem& problem, float* workspace);

}  // namespace dovetail::ops
