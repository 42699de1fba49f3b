// Search for the two centres with the lowest scores of each row, in two variants. A score measures
// how far a centre is from a row (scores_inl.h). Compiled once per instruction set: included by
// *_simd.cpp after simd_config.h, through foreach_target.
#if defined(DOVETAIL_FIT_KMEANS_NEAREST_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DOVETAIL_FIT_KMEANS_NEAREST_INL_H_
#undef DOVETAIL_FIT_KMEANS_NEAREST_INL_H_
#else
#define DOVETAIL_FIT_KMEANS_NEAREST_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "dovetail/fit/kmeans/scores_inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail::fit {
namespace HWY_NAMESPACE {

/// Maximum number of rows of a block. All its rows pass one step before they pass the next.
constexpr int64_t kMostBlockRows = 256;

/// The positions of the bits of each byte, ascending, then zeros.
constexpr std::array<std::array<uint8_t, 8>, 256> kSetBits = [] {
  std::array<std::array<uint8_t, 8>, 256> all = {};
  for (size_t byte = 0; byte < 256; ++byte)
    for (size_t bit = 0, next = 0; bit < 8; ++bit)
      if ((byte >> bit & 1) != 0) all[byte][next++] = static_cast<uint8_t>(bit);
  return all;
}();

/// Returns the integers from `first` on. Iota(d, first) would write the lanes one by one to memory
/// and read them as a vector, which stalls.
HWY_INLINE auto count_from(int32_t first) {
  const hn::RebindToSigned<FloatTag> d;
  return hn::Add(hn::Iota(d, 0), hn::Set(d, first));
}

/// Stores the lanes of `mask` one after another, and undefined numbers up to kLanes.
template <class Int, class Mask>
HWY_INLINE void store_compressed(Int numbers, Mask mask, int32_t* to) {
  const hn::RebindToSigned<FloatTag> d;
  if constexpr (kLanes == 8 && HWY_TARGET > HWY_AVX3) {
    // Compress has a table of its own there, which g++ copies to the stack in each call.
    uint8_t bits[8] = {};
    hn::StoreMaskBits(d, mask, bits);
    const hn::Rebind<uint8_t, decltype(d)> bytes;
    const auto lanes = hn::PromoteTo(d, hn::LoadU(bytes, kSetBits[bits[0]].data()));
    hn::StoreU(hn::TableLookupLanes(numbers, hn::IndicesFromVec(d, lanes)), d, to);
  } else {
    hn::StoreU(hn::Compress(numbers, mask), d, to);
  }
}

// Assigns rows to their nearest centres: finds the label (index of the nearest centre) of each row.
// There are two kernels. scores_inl.h explains scores and strips. It also explains when a score
// proves that its centre is the nearest.

// Kernel for many centres. A vector holds one column of several rows. A tile of kTileColumns rows,
// transposed, stays in the first-level cache while strips of centres are read.

/// Transposes a tile: to[p * kTileColumns + i] = x[i][p] - shift[p]. There are `rows` rows, at most
/// kTileColumns. Copies of the last one fill the rest of the tile.
HWY_INLINE void transpose_shifted(const float* x, int64_t rows, int64_t dim, const float* shift,
                                  float* to) {
  const auto line = [&](int64_t i) { return x + std::min(i, rows - 1) * dim; };
  int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::FixedTag<float, 4> d;
  for (; i < kTileColumns; i += 4) {
    const float *r0 = line(i), *r1 = line(i + 1), *r2 = line(i + 2), *r3 = line(i + 3);
    float* out = to + i;
    int64_t p = 0;
    for (; p + 4 <= dim; p += 4, out += 4 * kTileColumns) {
      const auto s = hn::LoadU(d, shift + p);
      const auto v0 = hn::Sub(hn::LoadU(d, r0 + p), s), v1 = hn::Sub(hn::LoadU(d, r1 + p), s),
                 v2 = hn::Sub(hn::LoadU(d, r2 + p), s), v3 = hn::Sub(hn::LoadU(d, r3 + p), s);
      store_transposed(v0, v1, v2, v3, out, kTileColumns);
    }
    for (; p < dim; ++p, out += kTileColumns) {
      out[0] = r0[p] - shift[p];
      out[1] = r1[p] - shift[p];
      out[2] = r2[p] - shift[p];
      out[3] = r3[p] - shift[p];
    }
  }
#endif
  for (; i < kTileColumns; ++i)
    for (int64_t p = 0; p < dim; ++p) to[p * kTileColumns + i] = line(i)[p] - shift[p];
}

/// Updates `nearest` for the rows of a tile by the kCentres centres of one strip. `first` is the
/// number of the strip's first centre. `terms` is D + 2. `upcoming` is memory to prefetch (null:
/// none).
template <int kCentres>
HWY_NOINLINE void take_strip(int64_t terms, const float* strip, const float* rows, float first,
                             const float* upcoming, NearestRows& nearest) {
  const Tile<kCentres> tile =
      multiply<kCentres, 1>(terms, strip, kTileRows, rows, kTileColumns, upcoming);
#pragma GCC unroll 2
  for (int j = 0; j < kTileVectors; ++j) {
    Nearest n = nearest.get(j * kLanes);
    FloatVector centre = splat(first);
#pragma GCC unroll 16
    for (int c = 0; c < kCentres; ++c) {
      take(tile.v[c][j], centre, n);
      centre = hn::Add(centre, splat(1.0f));
    }
    nearest.set(n, j * kLanes);
  }
}

using TakeStrip = void (*)(int64_t, const float*, const float*, float, const float*, NearestRows&);
template <int... kCentres>
TakeStrip strip_of(int64_t centres, std::integer_sequence<int, kCentres...>) {
  static constexpr TakeStrip kStrips[] = {take_strip<kCentres + 1>...};
  return kStrips[centres - 1];
}

/// Fills a tile: `count` rows from row `begin` on. `rows` is a buffer for (D + 2) * kTileColumns
/// floats: y, |y| and 1 of each row, transposed.
HWY_INLINE void place_tile(const AssignProblem& p, const Centres& centres, int64_t begin,
                           int64_t count, float* rows) {
  transpose_shifted(p.x + begin * p.dim, count, p.dim, centres.shift.get(), rows);
  for (int64_t j = 0; j < kTileColumns; j += kLanes) {
    store(load(p.norm + begin + std::min(j, count), std::max<int64_t>(count - j, 0)),
          rows + p.dim * kTileColumns + j);
    store(splat(1.0f), rows + (p.dim + 1) * kTileColumns + j);
  }
}

/// Sets `nearest` for a tile. Arguments are the same as for place_tile.
HWY_INLINE void nearest_of_many(const AssignProblem& p, const Centres& centres, int64_t begin,
                                int64_t count, float* rows, NearestRows& nearest) {
  place_tile(p, centres, begin, count, rows);
  for (int64_t j = 0; j < kTileColumns; j += kLanes)
    nearest.set({splat(kFar), splat(kFar), splat(0.0f)}, j);
  // Meanwhile prefetches the rows of the next tile, a piece with each strip.
  const int64_t terms = p.dim + 2, piece = terms / kUpcomingSteps * 2 * kLineFloats;
  const float *next = p.x + (begin + kTileColumns) * p.dim, *next_end = next + kTileColumns * p.dim;
  const float* strip = centres.packed.get();
  for (int64_t c = 0; c < p.num_centres;
       c += kTileRows, strip += centres.strip_floats, next += piece) {
    const auto take_it = strip_of(std::min<int64_t>(kTileRows, p.num_centres - c),
                                  std::make_integer_sequence<int, kTileRows>());
    take_it(terms, strip, rows, static_cast<float>(c), next < next_end ? next : nullptr, nearest);
  }
}

/// Sets the labels of a tile, and counts the rows of each label in p.counts. Arguments are the same
/// as for nearest_of_many. Returns the number of changed labels.
HWY_INLINE int64_t label_of_many(const AssignProblem& p, const Centres& centres, int64_t begin,
                                 int64_t count, float* rows, NearestRows& nearest) {
  nearest_of_many(p, centres, begin, count, rows, nearest);
  bool proven = true;
  for (int64_t j = 0; j < count; j += kLanes) {
    const FloatVector upper =
        hn::Add(load(nearest.best + j), centres.doubt(load(p.norm + begin + j, count - j)));
    proven = proven && hn::AllTrue(FloatTag(), hn::Lt(upper, load(nearest.second + j)));
  }
  if (HWY_UNLIKELY(!proven))
    settle(p, centres, begin, count, nearest.best, nearest.second, nearest.index);
  int64_t changed = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto label = static_cast<int32_t>(nearest.index[i]);
    changed += p.label[begin + i] != label;
    p.label[begin + i] = label;
    ++p.counts[label];
  }
  return changed;
}

#if HWY_TARGET != HWY_SCALAR
// Kernel for few centres. A vector holds several columns of one row, so that rows are read as they
// lie in memory. Constant kBlocks is the number of 128-bit blocks (four lanes) in a vector. The
// kernel multiplies kBlocks rows at a time with all centres and keeps the products in registers.
// For each centre, the products of the kBlocks rows are then added into one vector with a block per
// row.
constexpr int kBlocks = static_cast<int>(kLanes / 4);
constexpr int64_t kFewCentres = 6;  // maximum number of centres of this kernel

/// Rows of a block, grouped by label. Rows of one label keep their order.
struct RowsByLabel {
  /// Row numbers of each label, counted from the first row of the block.
  int32_t row[kFewCentres][kMostBlockRows + kLanes];
  int64_t count[kFewCentres];  ///< number of rows of each label
};

/// Prefetches the memory [at, end) of the next block of rows, by cache lines. Most lines are
/// requested while rows are labelled, and the rest while rows are added to the sums. Requesting all
/// lines at once would fill the queue of memory requests and stop the arithmetic. A line that was
/// not requested takes twice the time, since nothing overlaps with its transfer.
struct ReadAhead {
  const float *at, *end;
  /// Requests the next `lines` lines.
  HWY_INLINE void ask(int lines) {
#pragma GCC unroll 4
    for (int i = 0; i < lines; ++i, at += kLineFloats) prefetch_to_second_level(at);
  }
  /// Returns how many lines to request per row, so that `rows` rows request all remaining lines.
  int lines_for_each(int64_t rows) const {
    const int64_t left = (end - at + kLineFloats - 1) / kLineFloats;
    return static_cast<int>(std::max<int64_t>(0, (left + rows - 1) / rows));
  }
};
// Lines to request per step while rows are labelled.
constexpr int kLabelLines = kLanes >= 16 ? 3 : 1;

/// Returns a vector whose lower half is the sum of the two halves of v. Its upper half is the sum
/// of the two halves of w.
HWY_INLINE FloatVector fold_halves(FloatVector v, FloatVector w) {
  const FloatTag d;
  return hn::Add(hn::ConcatLowerLower(d, w, v), hn::ConcatUpperUpper(d, w, v));
}

/// Returns a vector whose block b (four lanes) is the sum of all blocks of v[b].
HWY_INLINE FloatVector fold_blocks(const FloatVector (&v)[kBlocks]) {
  if constexpr (kBlocks == 4) {
    const FloatVector even = fold_halves(v[0], v[2]), odd = fold_halves(v[1], v[3]);
    return hn::Add(hn::OddEvenBlocks(odd, even),
                   hn::SwapAdjacentBlocks(hn::OddEvenBlocks(even, odd)));
  } else if constexpr (kBlocks == 2) {
    return fold_halves(v[0], v[1]);
  } else {
    return v[0];
  }
}

/// Returns a vector in which lane q of each block is the sum of that block's lanes of v[q].
HWY_INLINE FloatVector fold_lanes(const FloatVector (&v)[4]) {
  const FloatTag d;
  const hn::RepartitionToWide<FloatTag> dw;
  const auto fold = [&](FloatVector a, FloatVector b) HWY_ATTR {
    return hn::BitCast(dw, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  };
  const auto low = fold(v[0], v[1]), high = fold(v[2], v[3]);
  return hn::Add(hn::BitCast(d, hn::InterleaveLower(dw, low, high)),
                 hn::BitCast(d, hn::InterleaveUpper(dw, low, high)));
}

/// Partial sums of the products of kBlocks rows with kCentres centres. The lanes of v[c][b] are not
/// added yet; together they are the product of row b with centre c.
template <int kCentres>
struct FewSums {
  FloatVector v[kCentres][kBlocks];
};

/// Adds to `sums` the products of kLanes columns of kBlocks rows with all centres. load_row(b)
/// returns these columns of row b. `shift` and `centres` begin at the same column.
template <int kCentres, class Load>
HWY_INLINE void multiply_columns(const Load& load_row, FloatVector shift, const float* centres,
                                 int64_t row_floats, FewSums<kCentres>& sums) {
  FloatVector y[kBlocks];
#pragma GCC unroll 4
  for (int b = 0; b < kBlocks; ++b) y[b] = hn::Sub(load_row(b), shift);
#pragma GCC unroll 8
  for (int c = 0; c < kCentres; ++c) {
    const FloatVector d = load(centres + c * row_floats);
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) sums.v[c][b] = hn::MulAdd(y[b], d, sums.v[c][b]);
  }
}

/// Returns the products -2 y d of kBlocks rows with all centres, before lanes are added. `row`
/// holds the rows' addresses. Prefetches memory by `ahead` meanwhile.
template <int kCentres>
HWY_INLINE FewSums<kCentres> few_products(const float* const (&row)[kBlocks], int64_t dim,
                                          const Centres& centres, ReadAhead& ahead) {
  const FloatTag d;
  FewSums<kCentres> sums;
#pragma GCC unroll 8
  for (int c = 0; c < kCentres; ++c) {
#pragma GCC unroll 4
    for (int b = 0; b < kBlocks; ++b) sums.v[c][b] = hn::Zero(d);
  }
  const float *shift = centres.shift.get(), *packed = centres.packed.get();
  int64_t p = 0;
  for (; p + kLanes <= dim; p += kLanes) {
    const auto load_row = [&](int b) HWY_ATTR { return load(row[b] + p); };
    ahead.ask(kLabelLines);
    multiply_columns<kCentres>(load_row, load(shift + p), packed + p, centres.row_floats, sums);
  }
  if (p < dim) {
    const auto there = hn::FirstN(d, static_cast<size_t>(dim - p));
    const auto load_row = [&](int b) HWY_ATTR { return hn::MaskedLoad(there, d, row[b] + p); };
    multiply_columns<kCentres>(load_row, load(shift + p), packed + p, centres.row_floats, sums);
  }
  return sums;
}

/// Returns the nearest centres of kLanes rows from row `begin` on; `norm` holds their |y|. If
/// `count` is below kLanes, only the first `count` results are valid.
template <int kCentres>
HWY_INLINE Nearest nearest_of_few(const AssignProblem& p, const Centres& centres, int64_t begin,
                                  int64_t count, FloatVector norm, ReadAhead& ahead) {
  FloatVector quarter[kCentres][4];
  for (int q = 0; q < 4; ++q) {
    const float* row[kBlocks];
    for (int b = 0; b < kBlocks; ++b)
      row[b] = p.x + (begin + std::min<int64_t>(kBlocks * q + b, count - 1)) * p.dim;
    const FewSums<kCentres> sums = few_products<kCentres>(row, p.dim, centres, ahead);
#pragma GCC unroll 8
    for (int c = 0; c < kCentres; ++c) quarter[c][q] = fold_blocks(sums.v[c]);
    ahead.ask(kLabelLines);
  }
  // Lane 4 b + q has row kBlocks q + b. So rows are read in their order, which suits the hardware
  // prefetcher.
  HWY_ALIGN int32_t lane_of_row[kLanes];
  for (int i = 0; i < kLanes; ++i) lane_of_row[i] = 4 * (i % kBlocks) + i / kBlocks;
  const auto in_order = hn::SetTableIndices(FloatTag(), lane_of_row);
  Nearest n{splat(kFar), splat(kFar), splat(0.0f)};
#pragma GCC unroll 8
  for (int c = 0; c < kCentres; ++c) {
    const auto i = static_cast<size_t>(c);
    const FloatVector rest = hn::MulAdd(norm, splat(centres.slope[i]), splat(centres.base[i]));
    take(hn::Add(hn::TableLookupLanes(fold_lanes(quarter[c]), in_order), rest),
         splat(static_cast<float>(c)), n);
  }
  return n;
}

/// Returns n.index, corrected for rows whose scores do not prove which centre is the nearest
/// (`settle` in scores_inl.h).
HWY_NOINLINE FloatVector settle(const AssignProblem& p, const Centres& centres, int64_t begin,
                                int64_t count, const Nearest& n) {
  HWY_ALIGN float best[kLanes], second[kLanes], index[kLanes];
  store(n.best, best);
  store(n.second, second);
  store(n.index, index);
  settle(p, centres, begin, count, best, second, index);
  return load(index);
}

/// Sets the labels of `count` rows from row `begin` on, at most kLanes. Appends each row to the
/// list of its label in `by_label`; row `begin` has the number `first` in its block. Returns the
/// number of changed labels.
template <int kCentres>
HWY_INLINE int64_t label_lanes(const AssignProblem& p, const Centres& centres, int64_t begin,
                               int64_t count, int64_t first, RowsByLabel& by_label,
                               ReadAhead& ahead) {
  const hn::RebindToSigned<FloatTag> d;
  const FloatVector norm = load(p.norm + begin, count);
  const Nearest n = nearest_of_few<kCentres>(p, centres, begin, count, norm, ahead);
  FloatVector index = n.index;
  if (HWY_UNLIKELY(
          !hn::AllTrue(FloatTag(), hn::Lt(hn::Add(n.best, centres.doubt(norm)), n.second))))
    index = settle(p, centres, begin, count, n);
  const auto label = hn::ConvertTo(d, index), row = count_from(static_cast<int32_t>(first));
  const auto there = hn::FirstN(d, static_cast<size_t>(count));
  const bool full = count == kLanes;
  const auto before =
      full ? hn::LoadU(d, p.label + begin) : hn::MaskedLoad(there, d, p.label + begin);
  if (full)
    hn::StoreU(label, d, p.label + begin);
  else
    hn::BlendedStore(label, there, d, p.label + begin);
#pragma GCC unroll 8
  for (int c = 0; c < kCentres; ++c) {
    const auto mine = hn::And(hn::Eq(label, hn::Set(d, c)), there);
    store_compressed(row, mine, by_label.row[c] + by_label.count[c]);
    by_label.count[c] += static_cast<int64_t>(hn::CountTrue(d, mine));
  }
  return static_cast<int64_t>(hn::CountTrue(d, hn::And(hn::Ne(label, before), there)));
}

/// Sets the labels of a block of `count` rows from row `begin` on, and groups them. Returns the
/// number of changed labels.
template <int kCentres>
HWY_NOINLINE int64_t label_of_few(const AssignProblem& p, const Centres& centres, int64_t begin,
                                  int64_t count, RowsByLabel& by_label, ReadAhead& ahead) {
  int64_t changed = 0, i = 0;
  for (; i + kLanes <= count; i += kLanes)
    changed += label_lanes<kCentres>(p, centres, begin + i, kLanes, i, by_label, ahead);
  if (i < count)
    changed += label_lanes<kCentres>(p, centres, begin + i, count - i, i, by_label, ahead);
  return changed;
}

using LabelOfFew = int64_t (*)(const AssignProblem&, const Centres&, int64_t, int64_t, RowsByLabel&,
                               ReadAhead&);
template <int... kCentres>
LabelOfFew label_kernel_of(int64_t centres, std::integer_sequence<int, kCentres...>) {
  static constexpr LabelOfFew kFew[] = {label_of_few<kCentres + 1>...};
  return kFew[centres - 1];
}
#else
constexpr int64_t kFewCentres = 0;
#endif

}  // namespace HWY_NAMESPACE
}  // namespace dovetail::fit
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
