#pragma once

#include <cstdint>

namespace dovetail::ops {

/// Transforms of Winograd's F(4 x 4, 3 x 3) (Lavin and Gray 2015, arXiv 1509.09308). The method
/// computes an output tile y (4, 4) from input tiles d (6, 6) and filters g (3, 3). This takes 36
/// products per filter and tile instead of 144. The paper defines the constant matrices A (6, 4), B
/// (6, 6) and G (6, 3). Steps:
/// 1. Each filter, one per output and input channel, becomes G g G^T (6, 6).
/// 2. Each input tile of each input channel becomes B^T d B (6, 6).
/// 3. For each of the 36 elements (i, j), called points q = 6 i + j, m[q] = u[q] @ v[q] is a matrix
///    product. It sums over input channels. Point q of all filters is the matrix u[q] (output
///    channels, input channels). Point q of all tiles is the matrix v[q] (input channels, tiles).
///    So m[q] is (output channels, tiles).
/// 4. For each output channel and tile, the 36 points of m form a matrix (6, 6). The output tile is
///    y = A^T (this matrix) A.
constexpr int64_t kWinogradPoints = 36, kWinogradTile = 4;

/// Layout of v or m for a batch of images (batch, channels, height, width). An image has `rows`
/// rows of tiles with `columns` tiles each. Rows of tiles are numbered consecutively through all
/// images. The layout covers the `count` rows of tiles from row `first` on. Its tiles are numbered
/// from 0: p. Point q of tile p of channel c is at float q * plane + c * stride + p. Up to 15
/// floats after the final tile of a channel may be written or read.
struct WinogradTiles {
  int64_t rows, columns, first, count;
  int64_t plane, stride;
};

/// Transform of the filters weight (out, in, 3, 3) to u. Point q of filter (row, column) is at u[q
/// * plane + row * columns + column]. Rows are output channels, and columns are input channels. If
/// `transposed` is set, rows and columns are exchanged and the filters are turned by 180 degrees.
/// The gradient of the input needs this.
struct WinogradWeights {
  const float* weight;
  int64_t out_channels, in_channels;
  bool transposed;
  float* u;
  int64_t plane;
};
void winograd_weights(const WinogradWeights& problem);

/// Transform of x (batch, channels, height, width), padded with zeros, to v. `tiles` selects the
/// rows of tiles and gives the layout of v.
struct WinogradInput {
  const float* x;
  int64_t channels, height, width, pad_height, pad_width;
  WinogradTiles tiles;
  float* v;
};
void winograd_input(const WinogradInput& problem);

/// Transform of m, in the layout `tiles`, to y (batch, channels, height, width). bias (channels) is
/// added if it is not null. Parts of tiles beyond the edges of y are dropped.
struct WinogradOutput {
  const float* m;
  WinogradTiles tiles;
  const float* bias;
  int64_t channels, height, width;
  float* y;
};
void winograd_output(const WinogradOutput& problem);

}  // namespace dovetail::ops
