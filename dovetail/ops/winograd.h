#pragma once

#include <cstdint>

namespace dovetail::ops {

/// Convolution with 3 x 3 filters and stride 1 on contiguous float32. The input x (batch, in,
/// height, width) is padded with zeros. Filters are weight (out, in, 3, 3); bias (out) may be null.
/// The result is y (batch, out, height + 2 pad - 2, width + 2 pad - 2).
///
/// `transposed` computes the gradient of the input instead. This is the convolution of x = dy
/// (batch, out, ...) with the filters turned by 180 degrees and their channels exchanged. The
/// result is y = dx (batch, in, ...). pad_height and pad_width are then 2 minus the padding of the
/// forward pass.
struct WinogradProblem {
  int64_t batch, in_channels, out_channels, height, width;  ///< height and width of x
  int64_t pad_height, pad_width;
  bool transposed;
  const float *x, *weight, *bias;
  float* y;
};

/// Returns the size in floats of the workspace of `convolve_winograd`; reads no pointer of
/// `problem`. The workspace holds the transformed filters, which are four times the size of the
/// filters. It also holds the transformed tiles of input and output of one block. A block is a
/// number of whole rows of tiles. Its size is limited to 4 MiB, or to half the size of the
/// transformed filters if that is more.
int64_t winograd_workspace_floats(const WinogradProblem& problem);

/// Computes `problem` by F(4 x 4, 3 x 3), with the transforms of winograd_simd.h and our GEMM for
/// the 36 products. The bits are the same for any number of threads. The error results from a sum
/// over input channels in the transformed space. Compared with FP64, it is within (channels + 32)
/// 2^-24 |A^T| (sum |u| |v|) |A|. Absolute values are elementwise, in the notation of
/// winograd_simd.h.
void convolve_winograd(const WinogradProblem& problem, float* workspace);

}  // namespace dovetail::ops
