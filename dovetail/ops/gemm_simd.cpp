#include "dovetail/ops/simd_config.h"
// foreach_target compiles the rest once per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dovetail/ops/gemm_simd.cpp"
#include "hwy/foreach_target.h"

#include <algorithm>
#include <cstdint>

#include "dovetail/base/parallel.h"
#include "dovetail/ops/gemm_simd.h"
#include "dovetail/ops/micro_kernel_inl.h"
#include "dovetail/ops/workspace.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail {
namespace HWY_NAMESPACE {

// Blocking after Goto and van de Geijn (2008): a panel of b is packed once by all threads and read from the shared
// cache, a block of a (kTaskRows x kDepth) is packed by the thread that uses it and stays in its second-level cache,
// and one strip of b (kDepth x kTileColumns) in its first.
constexpr int64_t kDepth = kLanes == 16 ? 768 : 384;
constexpr int64_t kTaskRows = 96;
constexpr int64_t kPanelFloats = int64_t{2} << 20;

HWY_INLINE int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// The part of b packed at a time: columns [column, column + columns), terms [depth, depth + depths).
struct Panel {
  int64_t column, columns, depth, depths;
  const float* packed;  // by slices of `slice` terms, each by strips of kTileColumns
  int64_t slice;
};

/// Packs `count` rows of a (or columns of b) from `index` on, terms [depth, depth + k); strides as a's.
template <int64_t kWidth>
void pack(const MatrixView& x, int64_t index, int64_t count, int64_t depth, int64_t k, float* to) {
  const float* from = x.data + index * x.row_stride + depth * x.column_stride;
  if (x.row_stride == 1) {
    pack_straight<kWidth>(from, x.column_stride, count, k, to);
  } else {
    pack_transposed<kWidth>(from, x.row_stride, count, k, to);
  }
}

/// sums[row] = [sums +] the sum over k terms of row `row` of a, packed as tiles of kTileRows.
void add_row_sums(const float* packed, int64_t rows, int64_t k, bool add, float* sums) {
  static_assert(kTileRows <= 4 * kLanes);
  constexpr int kChains = 4;  // of additions that do not wait for each other
  constexpr int64_t kVectors = (kTileRows + kLanes - 1) / kLanes;
  for (int64_t i = 0; i < rows; i += kTileRows, packed += kTileRows * k) {
    FloatVector chains[kChains][kVectors];
    for (auto& chain : chains) std::fill_n(chain, kVectors, splat(0.0f));
    // A vector may reach into the next term or, at the end, into the slack of the workspace: lanes that are not used.
    const auto add_term = [&](int64_t p, FloatVector(&chain)[kVectors]) {
      for (int64_t v = 0; v < kVectors; ++v) chain[v] = hn::Add(chain[v], load(packed + p * kTileRows + v * kLanes));
    };
    int64_t p = 0;
    for (; p + kChains <= k; p += kChains) {
#pragma GCC unroll 4
      for (int c = 0; c < kChains; ++c) add_term(p + c, chains[c]);
    }
    for (; p < k; ++p) add_term(p, chains[0]);
    HWY_ALIGN float tile[kVectors * kLanes];
    for (int64_t v = 0; v < kVectors; ++v)
      store(hn::Add(hn::Add(chains[0][v], chains[1][v]), hn::Add(chains[2][v], chains[3][v])), tile + v * kLanes);
    for (int64_t r = 0; r < std::min<int64_t>(kTileRows, rows - i); ++r)
      sums[i + r] = (add ? sums[i + r] : 0) + tile[r];
  }
}

MatrixView transposed(const MatrixView& x) { return {x.data, x.column_stride, x.row_stride}; }

void pack_panel(const GemmProblem& g, const Panel& panel, float* to) {
  constexpr int64_t kStripsPerPiece = 8;
  const int64_t strips = ceil_divide(panel.columns, kTileColumns), pieces = ceil_divide(strips, kStripsPerPiece);
  const int64_t slices = ceil_divide(panel.depths, panel.slice);
  parallel_pieces(pieces * slices, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t offset = i / pieces * panel.slice, depth = std::min(panel.slice, panel.depths - offset);
      const int64_t column = i % pieces * kStripsPerPiece * kTileColumns;
      pack<kTileColumns>(transposed(g.b), panel.column + column,
                         std::min(kStripsPerPiece * kTileColumns, panel.columns - column), panel.depth + offset, depth,
                         to + offset * strips * kTileColumns + column * depth);
    }
  });
}

/// A block of a: rows [row, row + rows), terms [depth, depth + k).
struct Block {
  int64_t row, rows, depth, k;
};

/// The part of `block` to ask for in call `call` of the register tile: a row, or a line's width of rows of memory.
Upcoming upcoming_part(const MatrixView& a, const Block& block, int64_t call) {
  constexpr int64_t kMost = kDepth / kUpcomingSteps;
  const float* from = a.data + block.row * a.row_stride + block.depth * a.column_stride;
  if (a.row_stride != 1) {
    if (call >= block.rows) return {};
    return {.at = from + call * a.row_stride, .step = kLineFloats, .count = ceil_divide(block.k, kLineFloats)};
  }
  const int64_t lines = block.rows / kLineFloats + 1, first = call / lines * kMost;
  if (first >= block.k) return {};
  return {.at = from + first * a.column_stride + call % lines * kLineFloats,
          .step = a.column_stride,
          .count = std::min(kMost, block.k - first)};
}

/// Rows [row, row + rows) and the panel's strips [strip, strip_end) of c.
void multiply_block(const GemmProblem& g, const Panel& panel, int64_t row, int64_t rows, int64_t strip,
                    int64_t strip_end) {
  float* a = workspace(Workspace::kGemmRows, static_cast<size_t>((kTaskRows + kTileRows) * panel.slice));
  const int64_t strips = ceil_divide(panel.columns, kTileColumns);
  const int64_t later = row + parallel_workers() * kTaskRows;  // where this thread is likely to go on
  for (int64_t offset = 0; offset < panel.depths; offset += panel.slice) {
    const int64_t k = std::min(panel.slice, panel.depths - offset), next = offset + panel.slice;
    pack<kTileRows>(g.a, row, rows, panel.depth + offset, k, a);
    const Block next_block =
        next < panel.depths
            ? Block{row, rows, panel.depth + next, std::min(panel.slice, panel.depths - next)}
            : Block{later, std::clamp<int64_t>(g.m - later, 0, kTaskRows), panel.depth, std::min(panel.slice, g.k)};
    const bool first = panel.depth + offset == 0;
    if (g.row_sums && panel.column + strip == 0) add_row_sums(a, rows, k, !first, g.row_sums + row);
    int64_t call = 0;
    const TileInit init = !first || g.accumulate ? TileInit::kAccumulate : g.bias ? TileInit::kBias : TileInit::kZero;
    const float* packed = panel.packed + offset * strips * kTileColumns;
    for (int64_t s = strip; s < strip_end; ++s) {
      const float* b = packed + s * kTileColumns * k;
      const float* next_strip = packed + (s + 1 < strip_end ? s + 1 : strip) * kTileColumns * k;
      const int64_t column = panel.column + s * kTileColumns, columns = std::min(kTileColumns, g.n - column);
      for (int64_t i = 0; i < rows; i += kTileRows) {
        float* c = g.c + (row + i) * g.ldc + column;
        prefetch_tile<kTileRows>(c, g.ldc);
        Upcoming upcoming = upcoming_part(g.a, next_block, call++);
        upcoming.strip = next_strip + i * kTileColumns * k / rows;
        const auto tile = multiply<kTileRows, 1>(k, a + i * k, kTileRows, b, kTileColumns, upcoming);
        store_tile(tile, c, g.ldc, std::min<int64_t>(kTileRows, rows - i), columns, init,
                   g.bias ? g.bias + column : nullptr);
      }
    }
  }
}

void multiply_panel(const GemmProblem& g, const Panel& panel) {
  const int64_t strips = ceil_divide(panel.columns, kTileColumns), row_blocks = ceil_divide(g.m, kTaskRows);
  // Few rows: cut the columns too, so that there are some tasks for every thread. No sum depends on the cut.
  const int64_t wanted = ceil_divide(4 * parallel_workers(), row_blocks);
  const int64_t strips_per_task = std::max<int64_t>(std::min<int64_t>(4, strips), ceil_divide(strips, wanted));
  const int64_t column_blocks = ceil_divide(strips, strips_per_task);
  parallel_pieces(row_blocks * column_blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / column_blocks * kTaskRows, strip = i % column_blocks * strips_per_task;
      multiply_block(g, panel, row, std::min(kTaskRows, g.m - row), strip, std::min(strip + strips_per_task, strips));
    }
  });
}

void Gemm(const GemmProblem& g) {
  // Slices of equal length, so that the last is not a short one.
  const int64_t slice = ceil_divide(g.k, ceil_divide(g.k, kDepth));
  const int64_t max_columns = std::max(kTileColumns, kPanelFloats / slice / kTileColumns * kTileColumns);
  const int64_t columns = ceil_divide(ceil_divide(g.n, ceil_divide(g.n, max_columns)), kTileColumns) * kTileColumns;
  const int64_t depths = std::max<int64_t>(1, kPanelFloats / (columns * slice)) * slice;
  const int64_t packed_depths = std::min(depths, g.k);
  float* packed = workspace(Workspace::kGemmPanel, static_cast<size_t>(columns * packed_depths));
  for (int64_t column = 0; column < g.n; column += columns) {
    for (int64_t depth = 0; depth < g.k; depth += depths) {
      const Panel panel{.column = column,
                        .columns = std::min(columns, g.n - column),
                        .depth = depth,
                        .depths = std::min(depths, g.k - depth),
                        .packed = packed,
                        .slice = slice};
      pack_panel(g, panel, packed);
      multiply_panel(g, panel);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace dovetail
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dovetail {

HWY_EXPORT(Gemm);

void gemm_float32(const GemmProblem& problem) { HWY_DYNAMIC_DISPATCH(Gemm)(problem); }

}  // namespace dovetail
#endif
