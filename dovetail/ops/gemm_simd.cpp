#include "dovetail/ops/simd_config.h"
// foreach_target compiles the rest once per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dovetail/ops/gemm_simd.cpp"
#include "hwy/foreach_target.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "dovetail/base/threads.h"
#include "dovetail/ops/gemm_simd.h"
#include "dovetail/ops/micro_kernel_inl.h"
#include "dovetail/ops/workspace.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail::ops {
namespace HWY_NAMESPACE {

// Blocking after Goto and van de Geijn (2008). A panel of b is packed once by all threads and read
// from the shared cache. A block of a (kTaskRows x kDepth) is packed by the thread that uses it,
// and stays in its second-level cache. One strip of b (kDepth x kTileColumns) stays in its
// first-level cache.
constexpr int64_t kDepth = kLanes == 16 ? 768 : 384;
constexpr int64_t kTaskRows = kLanes == 16 ? 96 : 144;
constexpr int64_t kPanelFloats = int64_t{2} << 20;

HWY_INLINE int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Part of b that is packed at a time: columns [column, column + columns), terms [depth, depth +
/// depths).
struct Panel {
  int64_t column, columns, depth, depths;
  // Terms per slice; the panel is packed by slices, and each slice by strips of kTileColumns.
  int64_t slice;
};

template <int64_t kWidth, class T>
void pack_elements(const T* data, const MatrixView& x, int64_t index, int64_t count, int64_t depth,
                   int64_t k, float* to) {
  if (x.row_stride == 1) {
    const LinesOf<T> terms{data + index, x.column_stride, x.row_index};
    pack_straight<kWidth>(terms.from(depth), count, k, to);
  } else {
    const LinesOf<T> rows{data + depth, x.row_stride, x.row_index};
    pack_transposed<kWidth>(rows.from(index), count, k, to);
  }
}

/// Packs `count` rows of a (or columns of b) from `index` on, terms [depth, depth + k). Strides of
/// x are named as for a.
template <int64_t kWidth>
void pack(const MatrixView& x, int64_t index, int64_t count, int64_t depth, int64_t k, float* to) {
  if (x.bfloat16 && x.bfloat16_terms > 0) {
    pack_pairs<kWidth>(x.bfloat16 + index, x.column_stride, x.row_index, x.bfloat16_terms, count,
                       depth, k, to);
  } else if (x.bfloat16) {
    pack_elements<kWidth>(x.bfloat16, x, index, count, depth, k, to);
  } else {
    pack_elements<kWidth>(x.data, x, index, count, depth, k, to);
  }
}

/// Computes sums[row] = [sums +] the sum over k terms of row `row` of a, packed as tiles of
/// kTileRows.
void add_row_sums(const float* packed, int64_t rows, int64_t k, bool add, float* sums) {
  static_assert(kTileRows <= 4 * kLanes);
  constexpr int kChains = 4;  // independent chains of additions hide their latency
  constexpr int64_t kVectors = (kTileRows + kLanes - 1) / kLanes;
  for (int64_t i = 0; i < rows; i += kTileRows, packed += kTileRows * k) {
    FloatVector chains[kChains][kVectors];
    for (auto& chain : chains) std::fill_n(chain, kVectors, splat(0.0f));
    // A vector may extend into the next term or, at the end, into the padding of the workspace.
    // These lanes are not used.
    const auto add_term = [&](int64_t p, FloatVector(&chain)[kVectors]) {
      for (int64_t v = 0; v < kVectors; ++v)
        chain[v] = hn::Add(chain[v], load(packed + p * kTileRows + v * kLanes));
    };
    int64_t p = 0;
    for (; p + kChains <= k; p += kChains) {
#pragma GCC unroll 4
      for (int c = 0; c < kChains; ++c) add_term(p + c, chains[c]);
    }
    for (; p < k; ++p) add_term(p, chains[0]);
    HWY_ALIGN float tile[kVectors * kLanes];
    for (int64_t v = 0; v < kVectors; ++v)
      store(hn::Add(hn::Add(chains[0][v], chains[1][v]), hn::Add(chains[2][v], chains[3][v])),
            tile + v * kLanes);
    for (int64_t r = 0; r < std::min<int64_t>(kTileRows, rows - i); ++r)
      sums[i + r] = (add ? sums[i + r] : 0) + tile[r];
  }
}

MatrixView transposed(const MatrixView& x) {
  return {x.data, x.column_stride, x.row_stride, x.row_index, x.bfloat16, x.bfloat16_terms};
}

/// Returns one tile of a product of packed operands. Meanwhile prefetches memory from `upcoming`
/// on.
HWY_INLINE Tile<kTileRows> multiply_tile(const GemmProblem& g, int64_t k, const float* a,
                                         const float* b, const float* upcoming) {
#if HWY_TARGET == HWY_AVX3
  if (g.pairs) return multiply_pairs(k, a, b, upcoming);
#endif
  return multiply<kTileRows, 1>(k, a, kTileRows, b, kTileColumns, upcoming);
}

/// Packs strips [strip, strip_end) of slice `slice` of the panel.
void pack_part(const GemmProblem& g, const Panel& panel, int64_t slice, int64_t strip,
               int64_t strip_end, float* to) {
  const int64_t strips = ceil_divide(panel.columns, kTileColumns);
  const int64_t offset = slice * panel.slice, depth = std::min(panel.slice, panel.depths - offset);
  const int64_t column = strip * kTileColumns;
  pack<kTileColumns>(transposed(g.b), panel.column + column,
                     std::min(strip_end * kTileColumns, panel.columns) - column,
                     panel.depth + offset, depth,
                     to + offset * strips * kTileColumns + column * depth);
}

/// Prefetch of the memory that `pack` with the same arguments will read, a few lines at a time.
class Upcoming {
 public:
  Upcoming() = default;
  Upcoming(const MatrixView& x, int64_t index, int64_t count, int64_t depth, int64_t k) {
    if (x.bfloat16 && x.bfloat16_terms > 0) return;
    const bool by_terms = x.row_stride == 1;
    const int64_t size = x.bfloat16 ? sizeof(BFloat16) : sizeof(float),
                  stride = by_terms ? x.column_stride : x.row_stride;
    const auto* data = x.bfloat16 ? reinterpret_cast<const char*>(x.bfloat16)
                                  : reinterpret_cast<const char*>(x.data);
    const LinesOf<char> lines{data + (by_terms ? index : depth) * size, stride * size, x.row_index};
    lines_ = lines.from(by_terms ? depth : index);
    end_ = by_terms ? k : count;
    parts_ = ceil_divide((by_terms ? count : k) * size, kLineElements<char>);
  }

  /// Returns part `i` of `shares` equal parts.
  Upcoming share(int64_t i, int64_t shares) const {
    Upcoming out = *this;
    out.line_ = end_ * i / shares;
    out.end_ = end_ * (i + 1) / shares;
    return out;
  }
  int64_t size() const { return (end_ - line_) * parts_ - part_; }
  void ask(int64_t count) {
    for (; count > 0 && line_ < end_; --count) {
      prefetch_to_second_level(lines_[line_] + part_ * kLineElements<char>);
      if (++part_ == parts_) {
        part_ = 0;
        ++line_;
      }
    }
  }

 private:
  LinesOf<char> lines_ = {};
  int64_t line_ = 0, end_ = 0, part_ = 0, parts_ = 0;
};

/// Part of the product of one panel: rows [row, row + rows) and strips [strip, strip_end) of c.
struct Task {
  int64_t row, rows, strip, strip_end;
};

/// Shape of the panels of a product.
struct PanelShape {
  int64_t columns, depths, slice;
};

PanelShape panel_shape(int64_t n, int64_t k, bool adds_to_rows) {
  // Slices have equal length, so that the last one is not short.
  const int64_t slice = ceil_divide(k, ceil_divide(k, kDepth));
  // Problems that add to the same rows have the same n. They then need the same columns, whatever
  // their k.
  const int64_t max_slice = adds_to_rows ? kDepth : slice;
  const int64_t max_columns =
      std::max(kTileColumns, kPanelFloats / max_slice / kTileColumns * kTileColumns);
  const int64_t columns =
      ceil_divide(ceil_divide(n, ceil_divide(n, max_columns)), kTileColumns) * kTileColumns;
  return {.columns = columns,
          .depths = std::max<int64_t>(1, kPanelFloats / (columns * slice)) * slice,
          .slice = slice};
}

/// Computes one task. Meanwhile prefetches `next_a` and `next_b`.
void multiply_block(const GemmProblem& g, const Panel& panel, const float* panel_packed,
                    const Task& task, const Upcoming& next_a, Upcoming next_b) {
  float* a =
      workspace(Workspace::kGemmRows, static_cast<size_t>((kTaskRows + kTileRows) * panel.slice));
  const int64_t strips = ceil_divide(panel.columns, kTileColumns), row = task.row, rows = task.rows;
  // Sums of a bfloat16 result between slices, tile by tile.
  const int64_t tiles = ceil_divide(rows, kTileRows);
  float* sums =
      g.c_bfloat16 && panel.depths > panel.slice
          ? workspace(Workspace::kGemmSums, static_cast<size_t>((task.strip_end - task.strip) *
                                                                tiles * kTileRows * kTileColumns))
          : nullptr;
  const int64_t calls = (task.strip_end - task.strip) * ceil_divide(rows, kTileRows);
  const int64_t b_lines =
      ceil_divide(next_b.size(), calls * ceil_divide(panel.depths, panel.slice));
  for (int64_t offset = 0; offset < panel.depths; offset += panel.slice) {
    const int64_t k = std::min(panel.slice, panel.depths - offset), next = offset + panel.slice;
    pack<kTileRows>(g.a, row, rows, panel.depth + offset, k, a);
    Upcoming upcoming_a = next < panel.depths ? Upcoming(g.a, row, rows, panel.depth + next,
                                                         std::min(panel.slice, panel.depths - next))
                                              : next_a;
    const int64_t a_lines = ceil_divide(upcoming_a.size(), calls);
    const bool first = panel.depth + offset == 0;
    if (g.row_sums && panel.column + task.strip == 0)
      add_row_sums(a, rows, k, !first, g.row_sums + row);
    const TileInit init = !first || g.accumulate ? TileInit::kAccumulate
                          : g.bias               ? TileInit::kBias
                                                 : TileInit::kZero;
    const float* packed = panel_packed + offset * strips * kTileColumns;
    for (int64_t s = task.strip; s < task.strip_end; ++s) {
      const float* b = packed + s * kTileColumns * k;
      const float* next_strip =
          packed + (s + 1 < task.strip_end ? s + 1 : task.strip) * kTileColumns * k;
      const int64_t column = panel.column + s * kTileColumns,
                    columns = std::min(kTileColumns, g.n - column);
      for (int64_t i = 0; i < rows; i += kTileRows) {
        const int64_t tile_rows = std::min<int64_t>(kTileRows, rows - i);
        float* c = g.c + (g.c_row ? 0 : row + i) * g.ldc + column;
        if (g.c_row) {
          prefetch_rows(c, g.ldc, tile_rows, g.c_row + row + i);
        } else if (!g.c_bfloat16) {
          prefetch_tile<kTileRows>(c, g.ldc);
        }
        upcoming_a.ask(a_lines);
        next_b.ask(b_lines);
        auto tile = multiply_tile(g, k, a + i * k, b, next_strip + i * kTileColumns * k / rows);
        if (g.c_row) {
          add_tile_to_rows(tile, c, g.ldc, tile_rows, columns, g.c_row + row + i,
                           g.c_weight ? g.c_weight + row + i : nullptr,
                           first && g.bias ? g.bias + column : nullptr);
        } else if (g.c_bfloat16) {
          float* sum =
              sums ? sums + ((s - task.strip) * tiles * kTileRows + i) * kTileColumns : nullptr;
          if (!first) add_to_tile(sum, tile);
          if (next < panel.depths) {
            store_full<kTileRows, TileInit::kZero>(tile, sum, kTileColumns, nullptr);
            continue;
          }
          store_tile(tile, g.c_bfloat16 + (row + i) * g.ldc + column, g.ldc, tile_rows, columns,
                     g.bias ? g.bias + column : nullptr);
        } else {
          store_tile(tile, c, g.ldc, tile_rows, columns, init, g.bias ? g.bias + column : nullptr);
        }
      }
    }
  }
}

/// One panel of one problem. Its packing is cut into parts, then its product into tasks, which need
/// all of these parts.
struct Stage {
  const GemmProblem* g;
  Panel panel;
  float* packed = nullptr;
  // Previous stage that adds to the same columns of c; -1 if there is none.
  int64_t after;
  int64_t row_blocks;
  int64_t strips_per_part = 0, parts = 0;
  int64_t strips_per_task = 0, column_blocks = 0;

  int64_t strips() const { return ceil_divide(panel.columns, kTileColumns); }
  int64_t tasks() const { return row_blocks * column_blocks; }
};

/// Numbers of finished parts and tasks of a stage.
struct Progress {
  std::atomic<int64_t> parts{0}, tasks{0};
  std::unique_ptr<std::atomic<int64_t>[]> tasks_of_columns;
};

// Packed panels in memory at once. One is read and one is filled meanwhile. The last readers of the
// third one may not be done.
constexpr int64_t kPanels = 3;

/// Products in stages, for threads that take pieces of work in a fixed order. The packing of stage
/// i + 1 comes before the product of stage i. So a piece hardly ever waits for previous pieces.
class Pipeline {
 public:
  explicit Pipeline(std::span<const GemmProblem> problems) {
    for (const GemmProblem& g : problems) add_stages(g);
    const auto stages = static_cast<int64_t>(stages_.size());
    const int64_t panels = std::min(kPanels, stages);
    float* packed = workspace(Workspace::kGemmPanel, static_cast<size_t>(panels * panel_floats_));
    int64_t row_blocks = 0;
    for (const Stage& stage : stages_) row_blocks += stage.row_blocks;
    for (int64_t i = 0; i < stages; ++i) {
      stages_[i].packed = packed + i % panels * panel_floats_;
      cut(stages_[i], row_blocks);
    }
    progress_ = std::vector<Progress>(stages_.size());
    for (int64_t i = 0; i < stages; ++i)
      progress_[i].tasks_of_columns =
          std::make_unique<std::atomic<int64_t>[]>(stages_[i].column_blocks);
    for (int64_t i = 0; i <= stages; ++i) {
      if (i < stages) add_pieces(i, Kind::kPack, stages_[i].parts);
      if (i > 0) add_pieces(i - 1, Kind::kMultiply, stages_[i - 1].tasks());
    }
  }

  void run() {
    parallel_pieces(pieces_, 1, [this](int64_t begin, int64_t) {
      try {
        run_piece(begin);
      } catch (...) {
        failed_ = true;  // other threads stop waiting for this piece
        throw;
      }
    });
  }

 private:
  enum class Kind { kPack, kMultiply };
  /// Pieces from `begin` on are parts or tasks of a stage.
  struct Run {
    int64_t begin, stage;
    Kind kind;
  };

  void add_stages(const GemmProblem& g) {
    if (g.m == 0 || g.n == 0) return;
    const auto [columns, depths, slice] = panel_shape(g.n, g.k, g.c_row != nullptr);
    panel_floats_ = std::max(panel_floats_, columns * std::min(depths, g.k));
    for (int64_t column = 0; column < g.n; column += columns) {
      for (int64_t depth = 0; depth < g.k; depth += depths) {
        const Panel panel{.column = column,
                          .columns = std::min(columns, g.n - column),
                          .depth = depth,
                          .depths = std::min(depths, g.k - depth),
                          .slice = slice};
        stages_.push_back({.g = &g,
                           .panel = panel,
                           .after = stage_before(g, panel),
                           .row_blocks = ceil_divide(g.m, kTaskRows)});
      }
    }
  }

  int64_t stage_before(const GemmProblem& g, const Panel& panel) const {
    if (panel.depth == 0 && !g.c_row) return -1;
    for (auto i = static_cast<int64_t>(stages_.size()) - 1; i >= 0; --i) {
      if (stages_[i].g->c == g.c && stages_[i].panel.column == panel.column) return i;
    }
    return -1;
  }

  /// Chooses the sizes of parts and tasks. `row_blocks` is the total of all stages.
  void cut(Stage& stage, int64_t row_blocks) const {
    const int64_t strips = stage.strips();
    stage.strips_per_part = std::clamp<int64_t>(strips / (2 * workers_), 1, 8);
    stage.parts = ceil_divide(strips, stage.strips_per_part) *
                  ceil_divide(stage.panel.depths, stage.panel.slice);
    // Few rows: cuts the columns, too, so that there are some tasks for every thread. Stages that
    // add to the same columns cut them in the same way. So one stage need not wait for all of
    // another. No sum depends on the cut.
    const int64_t wanted =
        stage.g->c_row ? 2 + workers_ / 4 : ceil_divide(4 * workers_, row_blocks);
    stage.strips_per_task = std::max(std::min<int64_t>(4, strips), ceil_divide(strips, wanted));
    stage.column_blocks = ceil_divide(strips, stage.strips_per_task);
  }

  void add_pieces(int64_t stage, Kind kind, int64_t count) {
    runs_.push_back({.begin = pieces_, .stage = stage, .kind = kind});
    pieces_ += count;
  }

  void run_piece(int64_t piece) {
    const auto run = std::upper_bound(runs_.begin(), runs_.end(), piece,
                                      [](int64_t value, const Run& r) { return value < r.begin; }) -
                     1;
    if (run->kind == Kind::kPack) {
      pack_piece(run->stage, piece - run->begin);
    } else {
      multiply_piece(run->stage, piece - run->begin);
    }
  }

  void pack_piece(int64_t i, int64_t part) {
    const Stage& stage = stages_[i];
    if (i >= kPanels) wait(progress_[i - kPanels].tasks, stages_[i - kPanels].tasks());
    const int64_t of_slice = ceil_divide(stage.strips(), stage.strips_per_part);
    const int64_t strip = part % of_slice * stage.strips_per_part;
    pack_part(*stage.g, stage.panel, part / of_slice, strip,
              std::min(strip + stage.strips_per_part, stage.strips()), stage.packed);
    progress_[i].parts.fetch_add(1, std::memory_order_release);
  }

  /// Returns task number `task`: all rows of one block of columns, then the next block. Tasks that
  /// add to the same columns are thus far apart.
  static Task task_of(const Stage& stage, int64_t task) {
    const int64_t block = task / stage.row_blocks, row = task % stage.row_blocks * kTaskRows;
    const int64_t strip = block * stage.strips_per_task;
    return {.row = row,
            .rows = std::min(kTaskRows, stage.g->m - row),
            .strip = strip,
            .strip_end = std::min(strip + stage.strips_per_task, stage.strips())};
  }

  void multiply_piece(int64_t i, int64_t number) {
    const Stage& stage = stages_[i];
    const int64_t block = number / stage.row_blocks;
    wait(progress_[i].parts, stage.parts);
    if (stage.after >= 0)
      wait(progress_[stage.after].tasks_of_columns[block], stages_[stage.after].row_blocks);
    if (failed_) return;
    multiply_block(*stage.g, stage.panel, stage.packed, task_of(stage, number),
                   rows_after(i, number), panel_share(i + 2, number, stage.tasks()));
    progress_[i].tasks_of_columns[block].fetch_add(1, std::memory_order_release);
    progress_[i].tasks.fetch_add(1, std::memory_order_release);
  }

  /// Returns the rows of a that this thread is likely to pack after task `number` of stage i.
  Upcoming rows_after(int64_t i, int64_t number) const {
    number += workers_;
    for (; i < std::ssize(stages_) && number >= stages_[i].tasks(); ++i)
      number -= stages_[i].tasks();
    if (i == std::ssize(stages_)) return {};
    const Task task = task_of(stages_[i], number);
    const Panel& panel = stages_[i].panel;
    return {stages_[i].g->a, task.row, task.rows, panel.depth, std::min(panel.slice, panel.depths)};
  }

  /// Returns one of `shares` parts of the memory that the panel of stage i is packed from. Callers
  /// pass the stage after the next: its packing comes first when the current stage is done.
  Upcoming panel_share(int64_t i, int64_t share, int64_t shares) const {
    if (i >= std::ssize(stages_)) return {};
    const Panel& panel = stages_[i].panel;
    return Upcoming(transposed(stages_[i].g->b), panel.column, panel.columns, panel.depth,
                    panel.depths)
        .share(share, shares);
  }

  void wait(const std::atomic<int64_t>& done, int64_t count) const {
    // Some microseconds. Afterwards the awaited thread may need this processor.
    constexpr int kSpins = 2000;
    for (int spin = 0; done.load(std::memory_order_acquire) < count && !failed_; ++spin) {
      if (spin < kSpins) {
        hwy::Pause();
      } else {
        std::this_thread::yield();
      }
    }
  }

  const int64_t workers_ = parallel_workers();  // read here: within a piece it would be 1
  std::vector<Stage> stages_;
  std::vector<Progress> progress_;
  std::vector<Run> runs_;
  int64_t pieces_ = 0, panel_floats_ = 0;
  std::atomic<bool> failed_{false};
};

void Gemm(std::span<const GemmProblem> problems) { Pipeline(problems).run(); }

bool RoundsInOnePanel(int64_t n, int64_t k) { return panel_shape(n, k, false).depths >= k; }

bool MultipliesPairs() {
#if HWY_TARGET == HWY_AVX3
  return __builtin_cpu_supports("avx512bf16") != 0;
#else
  return false;
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace dovetail::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dovetail::ops {

HWY_EXPORT(Gemm);

HWY_EXPORT(MultipliesPairs);

HWY_EXPORT(RoundsInOnePanel);

bool multiplies_pairs() { return HWY_DYNAMIC_DISPATCH(MultipliesPairs)(); }

bool rounds_in_one_panel(int64_t n, int64_t k) {
  return HWY_DYNAMIC_DISPATCH(RoundsInOnePanel)(n, k);
}

void gemm_float32(std::span<const GemmProblem> problems) { HWY_DYNAMIC_DISPATCH(Gemm)(problems); }

}  // namespace dovetail::ops
#endif
