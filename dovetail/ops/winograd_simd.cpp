#include "dovetail/ops/winograd_simd.h"

#include "dovetail/ops/simd_config.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dovetail/ops/winograd_simd.cpp"
#include "hwy/foreach_target.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "dovetail/base/threads.h"
#include "dovetail/ops/simd_math_inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail::ops {
namespace HWY_NAMESPACE {

constexpr int64_t kTile = kWinogradTile, kWindow = 6;

/// Computes u = G g.
HWY_INLINE void filter_transform(const FloatVector* g, FloatVector* u) {
  const FloatVector sixth = splat(1.0f / 6), outer = hn::Add(g[0], g[2]);
  // To be multiplied by 1/24; the g1 term of the same outputs is g1 / 12.
  const FloatVector far = hn::MulAdd(splat(4.0f), g[2], g[0]);
  u[0] = hn::Mul(splat(0.25f), g[0]);
  u[1] = hn::Neg(hn::Mul(sixth, hn::Add(outer, g[1])));
  u[2] = hn::Mul(sixth, hn::Sub(g[1], outer));
  u[3] = hn::Mul(splat(1.0f / 24), hn::MulAdd(splat(2.0f), g[1], far));
  u[4] = hn::Mul(splat(1.0f / 24), hn::NegMulAdd(splat(2.0f), g[1], far));
  u[5] = g[2];
}

/// Computes v = B^T d.
HWY_INLINE void input_transform(const FloatVector* d, FloatVector* v) {
  const FloatVector four = splat(4.0f), five = splat(5.0f);
  const FloatVector even = hn::NegMulAdd(four, d[2], d[4]), odd = hn::NegMulAdd(four, d[1], d[3]);
  const FloatVector even2 = hn::Sub(d[4], d[2]), half_odd2 = hn::Sub(d[3], d[1]);
  v[0] = hn::MulAdd(four, d[0], hn::NegMulAdd(five, d[2], d[4]));
  v[1] = hn::Add(even, odd);
  v[2] = hn::Sub(even, odd);
  v[3] = hn::MulAdd(splat(2.0f), half_odd2, even2);
  v[4] = hn::NegMulAdd(splat(2.0f), half_odd2, even2);
  v[5] = hn::MulAdd(four, d[1], hn::NegMulAdd(five, d[3], d[5]));
}

/// Computes y = A^T m.
HWY_INLINE void output_transform(const FloatVector* m, FloatVector* y) {
  const FloatVector sum1 = hn::Add(m[1], m[2]), difference1 = hn::Sub(m[1], m[2]);
  const FloatVector sum2 = hn::Add(m[3], m[4]), difference2 = hn::Sub(m[3], m[4]);
  y[0] = hn::Add(hn::Add(m[0], sum1), sum2);
  y[1] = hn::MulAdd(splat(2.0f), difference2, difference1);
  y[2] = hn::MulAdd(splat(4.0f), sum2, sum1);
  y[3] = hn::Add(hn::MulAdd(splat(8.0f), difference2, difference1), m[5]);
}

/// Transforms the filters of rows [begin, end). A vector holds as many columns as it has lanes.
void filter_rows(const WinogradWeights& p, int64_t begin, int64_t end) {
  using IndexTag = hn::RebindToSigned<FloatTag>;
  constexpr int64_t kTaps = 9;
  const int64_t of_out = p.in_channels * kTaps;
  const int64_t columns = p.transposed ? p.out_channels : p.in_channels;
  const int64_t row_step = p.transposed ? kTaps : of_out,
                column_step = p.transposed ? of_out : kTaps;
  for (int64_t column = 0; column < columns; column += kLanes) {
    const int64_t count = std::min(kLanes, columns - column);
    // The last column repeats if fewer columns than lanes remain.
    HWY_ALIGN int32_t lane[kLanes];
    for (int64_t l = 0; l < kLanes; ++l)
      lane[l] = static_cast<int32_t>(std::min(l, count - 1) * column_step);
    const auto index = hn::Load(IndexTag(), lane);
    for (int64_t row = begin; row < end; ++row) {
      const float* filter = p.weight + row * row_step + column * column_step;
      float* u = p.u + row * columns + column;
      FloatVector half[kWindow][3];
      for (int j = 0; j < 3; ++j) {
        FloatVector g[3], done[kWindow];
        for (int i = 0; i < 3; ++i) {
          const int tap = 3 * i + j;
          g[i] =
              hn::GatherIndex(FloatTag(), filter + (p.transposed ? kTaps - 1 - tap : tap), index);
        }
        filter_transform(g, done);
        for (int i = 0; i < kWindow; ++i) half[i][j] = done[i];
      }
      for (int i = 0; i < kWindow; ++i) {
        FloatVector done[kWindow];
        filter_transform(half[i], done);
        for (int j = 0; j < kWindow; ++j) store(done[j], u + (kWindow * i + j) * p.plane, count);
      }
    }
  }
}

void Weights(const WinogradWeights& p) {
  constexpr int64_t kRows = 4;  // neighbours in the memory of the filters if these are transposed
  parallel_pieces(p.transposed ? p.in_channels : p.out_channels, kRows,
                  [&](int64_t begin, int64_t end) { filter_rows(p, begin, end); });
}

/// Input of one row of tiles: its six rows of x, padded with zeros, then transformed down the
/// columns.
struct TileRow {
  explicit TileRow(int64_t columns)
      : width(kTile * ((columns + kLanes - 1) / kLanes * kLanes) +
              std::max<int64_t>(kTile, kLanes)),
        data(static_cast<size_t>(kWindow * width)) {}
  float* row(int64_t i) { return data.data() + i * width; }

  const int64_t width;
  std::vector<float> data;
};

void fill(TileRow& to, const WinogradInput& p, const float* x, int64_t top) {
  const int64_t used = std::min(p.width, to.width - p.pad_width);
  for (int64_t i = 0; i < kWindow; ++i) {
    float* row = to.row(i);
    const int64_t y = top + i - p.pad_height;
    if (y < 0 || y >= p.height) {
      std::memset(row, 0, static_cast<size_t>(to.width) * sizeof(float));
      continue;
    }
    std::fill_n(row, p.pad_width, 0.0f);
    std::memcpy(row + p.pad_width, x + y * p.width, static_cast<size_t>(used) * sizeof(float));
    std::fill(row + p.pad_width + used, row + to.width, 0.0f);
  }
  for (int64_t column = 0; column < to.width; column += kLanes) {
    FloatVector d[kWindow], v[kWindow];
    for (int64_t i = 0; i < kWindow; ++i) d[i] = load(to.row(i) + column);
    input_transform(d, v);
    for (int64_t i = 0; i < kWindow; ++i) store(v[i], to.row(i) + column);
  }
}

void Input(const WinogradInput& p) {
  const WinogradTiles& tiles = p.tiles;
  parallel_pieces(p.channels, 1, [&](int64_t begin, int64_t end) {
    TileRow window(tiles.columns);
    for (int64_t channel = begin; channel < end; ++channel)
      // Rows ascend: the surplus lanes of a row are overwritten by the next row.
      for (int64_t r = 0; r < tiles.count; ++r) {
        const int64_t image = (tiles.first + r) / tiles.rows, row = (tiles.first + r) % tiles.rows;
        fill(window, p, p.x + (image * p.channels + channel) * p.height * p.width, row * kTile);
        float* v = p.v + channel * tiles.stride + r * tiles.columns;
        for (int64_t tile = 0; tile < tiles.columns; tile += kLanes)
          for (int64_t i = 0; i < kWindow; ++i) {
            const float* at = window.row(i) + kTile * tile;
            FloatVector d[kWindow + 2], done[kWindow];
            hn::LoadInterleaved4(FloatTag(), at, d[0], d[1], d[2], d[3]);
            hn::LoadInterleaved4(FloatTag(), at + kTile, d[4], d[5], d[6], d[7]);
            input_transform(d, done);
            for (int64_t j = 0; j < kWindow; ++j)
              store(done[j], v + (kWindow * i + j) * tiles.plane + tile);
          }
      }
  });
}

/// Writes tiles [tile, tile + kLanes) of a row of tiles. The row has `rows` rows of y, at most
/// four; `width` elements of each exist from here on.
HWY_INLINE void write_tiles(const float* m, int64_t plane, FloatVector bias, int64_t rows,
                            int64_t y_stride, int64_t width, float* y) {
  FloatVector half[kTile][kWindow];
  for (int64_t j = 0; j < kWindow; ++j) {
    FloatVector column[kWindow], done[kTile];
    for (int64_t i = 0; i < kWindow; ++i) column[i] = load(m + (kWindow * i + j) * plane);
    output_transform(column, done);
    for (int64_t i = 0; i < kTile; ++i) half[i][j] = done[i];
  }
  for (int64_t i = 0; i < rows; ++i) {
    FloatVector done[kTile];
    output_transform(half[i], done);
    for (FloatVector& value : done) value = hn::Add(value, bias);
    if (width >= kTile * kLanes) {
      hn::StoreInterleaved4(done[0], done[1], done[2], done[3], FloatTag(), y + i * y_stride);
    } else {
      HWY_ALIGN float row[kTile * kLanes];
      hn::StoreInterleaved4(done[0], done[1], done[2], done[3], FloatTag(), row);
      std::memcpy(y + i * y_stride, row, static_cast<size_t>(width) * sizeof(float));
    }
  }
}

void Output(const WinogradOutput& p) {
  const WinogradTiles& tiles = p.tiles;
  parallel_pieces(p.channels, 1, [&](int64_t begin, int64_t end) {
    for (int64_t channel = begin; channel < end; ++channel) {
      const FloatVector bias = splat(p.bias == nullptr ? 0.0f : p.bias[channel]);
      for (int64_t r = 0; r < tiles.count; ++r) {
        const int64_t image = (tiles.first + r) / tiles.rows, row = (tiles.first + r) % tiles.rows;
        const float* m = p.m + channel * tiles.stride + r * tiles.columns;
        float* y = p.y + ((image * p.channels + channel) * p.height + row * kTile) * p.width;
        const int64_t rows = std::min(kTile, p.height - row * kTile);
        for (int64_t tile = 0; tile < tiles.columns; tile += kLanes)
          write_tiles(m + tile, tiles.plane, bias, rows, p.width, p.width - kTile * tile,
                      y + kTile * tile);
      }
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace dovetail::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dovetail::ops {

HWY_EXPORT(Weights);
HWY_EXPORT(Input);
HWY_EXPORT(Output);

void winograd_weights(const WinogradWeights& problem) { HWY_DYNAMIC_DISPATCH(Weights)(problem); }
void winograd_input(const WinogradInput& problem) { HWY_DYNAMIC_DISPATCH(Input)(problem); }
void winograd_output(const WinogradOutput& problem) { HWY_DYNAMIC_DISPATCH(Output)(problem); }

}  // namespace dovetail::ops
#endif
