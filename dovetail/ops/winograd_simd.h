#pragma once

#include <cstdint>

namespace dovetail::ops {

/// Transforms of Winograd's F(4 x 4, 3 x 3) (Lavin and Gray 2015, arXiv 1509.09308). An output tile
/// of 4 x 4 is computed from an input tile of 6 x 6 by 36 products instead of 144. With point q = 6
/// i + j of 36:
///   u[q] = (G g G^T)[i][j] of each filter, v[q] = (B^T d B)[i][j] of each tile,
///   m[q] = u[q] @ v[q], y = A^T m A.
constexpr int64_t kWinogradPoints = 36, kWinogradTile = 4;

/// Tiles of a batch of images (batch, channels, height, width). An image has `rows` rows of tiles
/// with `columns` tiles each, and rows are numbered through all images. This view covers `count`
/// rows of tiles from row `first` on. Point q of tile p of channel c is at q * plane + c * stride +
/// p. Up to 15 floats after the last tile of a channel may be written or read.
struct WinogradTiles {
  int64_t rows, columns, first, count;
  int64_t plane, stride;
};

/// Transform of filters weight (out, in, 3, 3). Point q of filter (row, column) is at u[q * plane +
/// row * columns + column]. Rows are output channels, and columns are input channels. `transposed`
/// exchanges them and turns the filters by 180 degrees, as the gradient of the input needs it.
struct WinogradWeights {
  const float* weight;
  int64_t out_channels, in_channels;
  bool transposed;
  float* u;
  int64_t plane;
};
void winograd_weights(const WinogradWeights& problem);

/// Transform of x (batch, channels, height, width), padded with zeros.
struct WinogradInput {
  const float* x;
  int64_t channels, height, width, pad_height, pad_width;
  WinogradTiles tiles;
  float* v;
};
void winograd_input(const WinogradInput& problem);

/// Transform to y (batch, channels, height, width) = the tiles of m, plus bias (channels) if it is
/// not null. Parts of tiles beyond the edges of y are dropped.
struct WinogradOutput {
  const float* m;
  WinogradTiles tiles;
  const float* bias;
  int64_t channels, height, width;
  float* y;
};
void winograd_output(const WinogradOutput& problem);

}  // namespace dovetail::ops
