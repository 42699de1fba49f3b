#pragma once

#include <cstdint>

namespace dovetail {

/// The three transforms of Winograd's F(4 x 4, 3 x 3) (Lavin and Gray 2015, arXiv 1509.09308): an
/// output tile of 4 x 4 comes out of an input tile of 6 x 6 by 36 products instead of 144. With
/// point q = 6 i + j of 36:
///   u[q] = (G g G^T)[i][j] of each filter, v[q] = (B^T d B)[i][j] of each tile, m[q] = u[q] @
///   v[q], y = A^T m A.
constexpr int64_t kWinogradPoints = 36, kWinogradTile = 4;

/// Tiles of a batch of images (batch, channels, height, width): rows of tiles are counted through
/// all images, `rows` of them to an image and `columns` tiles in each. These are `count` rows of
/// tiles from row `first` on; tile p of channel c has point q at q * plane + c * stride + p. Up to
/// 15 floats behind a channel's last tile may be written or read.
struct WinogradTiles {
  int64_t rows, columns, first, count;
  int64_t plane, stride;
};

/// weight (out, in, 3, 3); u: point q of filter (row, column) at q * plane + row * columns +
/// column, where rows are output channels and columns input channels. `transposed`: the other way
/// round, and filters turned by 180 degrees, as the gradient of the input needs them.
struct WinogradWeights {
  const float* weight;
  int64_t out_channels, in_channels;
  bool transposed;
  float* u;
  int64_t plane;
};
void winograd_weights(const WinogradWeights& problem);

/// x (batch, channels, height, width), as if with zeros around it.
struct WinogradInput {
  const float* x;
  int64_t channels, height, width, pad_height, pad_width;
  WinogradTiles tiles;
  float* v;
};
void winograd_input(const WinogradInput& problem);

/// y (batch, channels, height, width) = the tiles of m, plus bias (channels) where it is not null;
/// what hangs over y's edges is dropped.
struct WinogradOutput {
  const float* m;
  WinogradTiles tiles;
  const float* bias;
  int64_t channels, height, width;
  float* y;
};
void winograd_output(const WinogradOutput& problem);

}  // namespace dovetail
