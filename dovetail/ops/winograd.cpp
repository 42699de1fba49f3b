#include "dovetail/ops/winograd.h"

#include <algorithm>
#include <array>

#include "dovetail/ops/gemm_simd.h"
#include "dovetail/ops/winograd_simd.h"

namespace dovetail::ops {
namespace {

// Floats of input and output tiles in memory at once. Caches hold about this much in addition to
// the packed operands. The transformed filters are read once per block of tiles, so a block may be
// half their size.
constexpr int64_t kTileFloats = int64_t{1} << 20;
// Padding in floats. After the tiles of a channel, it lets rows of tiles be written in whole
// vectors. After a point, it keeps the 36 points of a tile from mapping to the same cache lines.
constexpr int64_t kSlack = 16;

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Blocking {
  explicit Blocking(const WinogradProblem& p)
      : from(p.transposed ? p.out_channels : p.in_channels),
        to(p.transposed ? p.in_channels : p.out_channels),
        y_height(p.height + 2 * p.pad_height - 2),
        y_width(p.width + 2 * p.pad_width - 2),
        rows(ceil_divide(y_height, kWinogradTile)),
        columns(ceil_divide(y_width, kWinogradTile)) {
    const int64_t all = p.batch * rows;
    const int64_t floats = std::max(kTileFloats, kWinogradPoints * from * to / 2);
    const int64_t fit = std::max<int64_t>(1, floats / (kWinogradPoints * (from + to) * columns));
    count = ceil_divide(all, ceil_divide(all, fit));  // blocks of about the same size
    stride = ceil_divide(count * columns, kSlack) * kSlack + kSlack;
    u_plane = from * to + kSlack;
    v_plane = from * stride + kSlack;
    m_plane = to * stride + kSlack;
  }

  int64_t from, to;  // channels
  int64_t y_height, y_width;
  int64_t rows, columns;  // rows and columns of tiles per image
  int64_t count;          // rows of tiles per block
  int64_t stride, u_plane, v_plane, m_plane;
};

}  // namespace

int64_t winograd_workspace_floats(const WinogradProblem& problem) {
  const Blocking b(problem);
  return kWinogradPoints * (b.u_plane + b.v_plane + b.m_plane);
}

void convolve_winograd(const WinogradProblem& p, float* workspace) {
  const Blocking b(p);
  float* const u = workspace;
  float* const v = u + kWinogradPoints * b.u_plane;
  float* const m = v + kWinogradPoints * b.v_plane;
  winograd_weights({p.weight, p.out_channels, p.in_channels, p.transposed, u, b.u_plane});
  for (int64_t first = 0; first < p.batch * b.rows; first += b.count) {
    const int64_t count = std::min(b.count, p.batch * b.rows - first);
    WinogradTiles tiles{b.rows, b.columns, first, count, b.v_plane, b.stride};
    winograd_input({p.x, b.from, p.height, p.width, p.pad_height, p.pad_width, tiles, v});
    std::array<GemmProblem, kWinogradPoints> products;
    for (int64_t q = 0; q < kWinogradPoints; ++q)
      products[q] = {.m = b.to,
                     .n = count * b.columns,
                     .k = b.from,
                     .a = {u + q * b.u_plane, b.from, 1},
                     .b = {v + q * b.v_plane, b.stride, 1},
                     .c = m + q * b.m_plane,
                     .ldc = b.stride,
                     .bias = nullptr,
                     .accumulate = false,
                     .row_sums = nullptr,
                     .c_row = nullptr,
                     .c_weight = nullptr};
    gemm_float32(products);
    tiles.plane = b.m_plane;
    winograd_output({m, tiles, p.bias, b.to, b.y_height, b.y_width, p.y});
  }
}

}  // namespace dovetail::ops
