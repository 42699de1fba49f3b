#pragma once

#include <cstdint>

namespace dovetail::ops {

/// Transforms of Winograd's F(4 x 4, 3 x 3) (Lavin and Gray 2015, arXiv 1509.09308). An output tile
/// y of 4 x 4 is computed from an input tile d of 6 x 6 and 3 x 3 filters g. This takes 36 products
/// instead of 144. The paper defines the constant matrices A, B and G. A transformed tile or filter
/// is 6 x 6. Its element (i, j) is called point q = 6 i + j:
///   u[q] = (G g G^T)[i][j] of each filter, v[q] = (B^T d B)[i][j] of each tile,
///   m[q] = u[q] @ v[q], y = A^T m A.
constexpr int64_t kWinogradPoints = 36, kWinogradTile = 4;

/// Layout of transformed tiles of a batch of images (batch, channels, height, width). An image has
/// `rows` rows of tiles with `columns` tiles each. Rows of tiles are numbered consecutively through
/// all images. This view covers the `count` rows of tiles from row `first` on; its tiles are
/// numbered from 0 (p). Point q of tile p of channel c is at float q * plane + c * stride + p. Up
/// to 15 floats after the final tile of a channel may be written or read.
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
