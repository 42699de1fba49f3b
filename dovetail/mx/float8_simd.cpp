#include "dovetail/ops/simd_config.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dovetail/mx/float8_simd.cpp"
#include "hwy/foreach_target.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>
#include <vector>

#include "dovetail/base/threads.h"
#include "dovetail/mx/float8_inl.h"
#include "dovetail/mx/float8_simd.h"
#include "dovetail/mx/quantize_inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail::mx {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR
void QuantizeFloat8Piece(const Float8Problem& p, PieceRange piece, Statistics& statistics) {
  quantize_float8_exactly(p, piece, statistics);
}
uint32_t Float8Maximum(const Float8Problem& p, PieceRange piece) {
  return float8_maximum(p, piece);
}
void EncodeFloat8Run(const Float8Problem& p, PieceRange run, Float8Scale scale,
                     Statistics& statistics) {
  encode_float8_exactly(p, run, p.whole, scale, &statistics);
}
#else

HWY_INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <class T>
HWY_INLINE const T* at(const Float8Problem& p, int64_t row, int64_t col) {
  return static_cast<const T*>(p.x) + row * p.cols + col;
}

/// Encodes `count` neighbours in runs that share a scale, each of `run` elements except the last.
template <class L>
void encode_row(const Coder& f, const typename LoopTypes<L>::T* x, int64_t count, int64_t run,
                const Float8Scale* scales, bool unscaled, typename LoopTypes<L>::Out* out,
                Statistics* statistics) {
  using T = typename LoopTypes<L>::T;
  using Out = typename LoopTypes<L>::Out;
  const Constants constants = f.constants;
  const BitsVector most = f.most;
  PackCounts<2> counts;
  Sums sums(largest_scale(scales, (count + run - 1) / run));
  for (int64_t begin = 0; begin < count; begin += run, ++scales) {
    const int64_t end = std::min(begin + run, count);
    const PackScales pack_scales = same_scales(scales->factor, unscaled ? 1.0F : scales->scale);
    counts.clear();
    int64_t i = begin;
    for (; i + kPacked <= end; i += kPacked)
      L::encode_pack(constants, most, x + i, pack_scales, counts, out + i);
    if (i < end) {
      HWY_ALIGN T padded[kPacked] = {};
      HWY_ALIGN Out padded_out[kPacked];
      std::memcpy(padded, x + i, static_cast<size_t>(end - i) * sizeof(T));
      L::encode_pack(constants, most, padded, pack_scales, counts, padded_out);
      std::memcpy(out + i, padded_out, static_cast<size_t>(end - i) * sizeof(Out));
    }
    if constexpr (LoopTypes<L>::kCount) {
      const FloatVector scale = hn::Set(FloatTag(), scales->scale);
      sums.add(counts.energies[0], scale);
      sums.add(counts.energies[1], scale);
    }
  }
  if constexpr (LoopTypes<L>::kCount) {
    sums.finish(*statistics);
    counts.finish(count, *statistics);
  }
}

/// Encodes a row of blocks, or a part of the whole tensor, in runs that share a scale.
template <class T>
void encode_row(const Float8Problem& p, const Coder& f, PieceRange row, int64_t run,
                const Float8Scale* scales, const Float8Target& target, Statistics* statistics) {
  const int64_t runs = ceil_div(row.cols, run), index = row.row * p.cols + row.col;
  bool finite = true;
  for (int64_t i = 0; i < runs; ++i) finite &= scales[i].factor != 0;
  if (!finite && runs > 1) {
    for (int64_t i = 0; i < runs; ++i)
      encode_row<T>(p, f, {row.row, 1, row.col + i * run, std::min(run, row.cols - i * run)}, run,
                    scales + i, target, statistics);
    return;
  }
  if (!finite) return encode_float8_exactly(p, row, target, *scales, statistics);
  with_loops<T>(f, target, statistics != nullptr, [&](auto* loop, auto* out) {
    encode_row<std::remove_pointer_t<decltype(loop)> >(f, static_cast<const T*>(p.x) + index,
                                                       row.cols, run, scales, target.unscaled,
                                                       out + index, statistics);
  });
}

/// Returns the largest magnitude of `count` elements, as float32 bits. Raises the maxima of
/// columns, most[i], in bits of T, if `most` is not null. They are padded to whole vectors.
template <class T, bool kColumns>
uint32_t row_maximum(const T* x, int64_t count, hn::TFromD<MagnitudeTag<T> >* columns) {
  const MagnitudeTag<T> d;
  using U = hn::TFromD<MagnitudeTag<T> >;
  constexpr int64_t kStep = static_cast<int64_t>(hn::MaxLanes(MagnitudeTag<T>()));
  const auto mask = hn::Set(d, static_cast<U>(static_cast<U>(~U{0}) >> 1));
  auto most = hn::Zero(d);
  const auto visit = [&](const U* from, int64_t i) {
    const auto size = hn::And(hn::LoadU(d, from), mask);
    most = hn::Max(most, size);
    if constexpr (kColumns) hn::Store(hn::Max(size, hn::Load(d, columns + i)), d, columns + i);
  };
  const auto* from = reinterpret_cast<const U*>(x);
  int64_t i = 0;
  for (; i + kStep <= count; i += kStep) visit(from + i, i);
  if (i < count) {
    HWY_ALIGN U padded[kStep] = {};
    std::memcpy(padded, from + i, static_cast<size_t>(count - i) * sizeof(U));
    visit(padded, i);
  }
  HWY_ALIGN uint32_t parts[4];
  store_maximum_of_parts(d, most, parts);
  const uint32_t bits = std::max(std::max(parts[0], parts[1]), std::max(parts[2], parts[3]));
  return sizeof(T) == 2 ? bits << 16 : bits;
}

/// Scales of a piece's columns, in the order of `load_pack`, with zeros up to a whole pack.
struct ColumnScales {
  HWY_ALIGN float factor[kFloat8PieceColumns];
  HWY_ALIGN float scale[kFloat8PieceColumns];
  float largest = 0;
  HWY_INLINE PackScales of_pack(int64_t begin) const {
    const FloatTag d;
    PackScales s;
    DOVETAIL_UNROLL
    for (int v = 0; v < kPack; ++v) {
      s.factor[v] = hn::Load(d, factor + begin + v * kLanes);
      s.scale[v] = hn::Load(d, scale + begin + v * kLanes);
    }
    return s;
  }
};

/// Arranges `count` numbers, one per column, in the order in which `load_pack` loads elements of T.
template <class T>
void arrange(float* of_columns, int64_t count) {
  std::fill(of_columns + count, of_columns + ceil_div(count, kPacked) * kPacked, 0.0F);
  for (int64_t i = 0; i < count; i += kPacked) {
    FloatVector pack[kPack];
    load_for_pack<T>(of_columns + i, pack);
    for (int v = 0; v < kPack; ++v) hn::Store(pack[v], FloatTag(), of_columns + i + v * kLanes);
  }
}

/// Encodes a piece row by row, since rows are contiguous. Each column has its scale.
template <class L>
void encode_columns(const Float8Problem& p, const Coder& f, PieceRange piece,
                    const ColumnScales& columns, typename LoopTypes<L>::Out* out,
                    Statistics* statistics) {
  using T = typename LoopTypes<L>::T;
  using Out = typename LoopTypes<L>::Out;
  const Constants constants = f.constants;
  const BitsVector most = f.most;
  PackCounts<kPack> counts;
  for (int64_t row = piece.row; row < piece.row + piece.rows; ++row) {
    const T* x = at<T>(p, row, piece.col);
    Out* to = out + row * p.cols + piece.col;
    Sums sums(columns.largest);
    const auto encode_pack = [&](const T* from, int64_t i, Out* result) {
      const PackScales scales = columns.of_pack(i);
      counts.clear();
      L::encode_pack(constants, most, from, scales, counts, result);
      if constexpr (LoopTypes<L>::kCount) {
        DOVETAIL_UNROLL
        for (int v = 0; v < kPack; ++v) sums.add(counts.energies[v], scales.scale[v]);
      }
    };
    int64_t i = 0;
    for (; i + kPacked <= piece.cols; i += kPacked) encode_pack(x + i, i, to + i);
    if (i < piece.cols) {
      const auto rest = static_cast<size_t>(piece.cols - i);
      HWY_ALIGN T padded[kPacked] = {};
      HWY_ALIGN Out padded_out[kPacked];
      std::memcpy(padded, x + i, rest * sizeof(T));
      encode_pack(padded, i, padded_out);
      std::memcpy(to + i, padded_out, rest * sizeof(Out));
    }
    if constexpr (LoopTypes<L>::kCount) sums.finish(*statistics);
  }
  if constexpr (LoopTypes<L>::kCount) counts.finish(piece.rows * piece.cols, *statistics);
}

/// Quantizes the blocks of 128 x 1 of a piece whose columns have these maxima, in bits of T.
template <class T, class U>
void quantize_columns(const Float8Problem& p, const Coder& f, PieceRange piece, const U* maxima,
                      Statistics* statistics) {
  float* to = p.column.scales + piece.row / kFloat8Block * p.cols + piece.col;
  ColumnScales columns;
  std::vector<int64_t> not_finite;
  for (int64_t i = 0; i < piece.cols; ++i) {
    const auto most = static_cast<uint32_t>(maxima[i]) << (32 - 8 * sizeof(U));
    const Float8Scale scale = choose_float8_scale(p, most, statistics);
    to[i] = columns.scale[i] = scale.scale;
    columns.factor[i] = scale.factor;
    if (scale.factor == 0) not_finite.push_back(i);
    columns.largest = std::max(columns.largest, scale.scale);
  }
  const auto exactly = [&](int64_t i, float factor) {
    encode_float8_exactly(p, {piece.row, piece.rows, piece.col + i, 1}, p.column, {factor, to[i]},
                          statistics);
  };
  if (statistics && !not_finite.empty()) {  // their energies are not finite
    for (int64_t i = 0; i < piece.cols; ++i) exactly(i, columns.factor[i]);
    return;
  }
  for (float* numbers : {columns.factor, columns.scale}) arrange<T>(numbers, piece.cols);
  with_loops<T>(f, p.column, statistics != nullptr, [&](auto* loop, auto* out) {
    encode_columns<std::remove_pointer_t<decltype(loop)> >(p, f, piece, columns, out, statistics);
  });
  for (const int64_t i : not_finite) exactly(i, 0);
}

/// Quantizes the blocks of 1 x 128 of one row of a piece. Raises the maxima of its columns, in bits
/// of T, if `columns` is not null.
template <class T, class U>
void quantize_row(const Float8Problem& p, const Coder& f, PieceRange row, U* columns,
                  Statistics& statistics) {
  const int64_t runs = ceil_div(row.cols, kFloat8Block);
  Float8Scale scales[kFloat8PieceColumns / kFloat8Block];
  float* to = p.row.scales + row.row * ceil_div(p.cols, kFloat8Block) + row.col / kFloat8Block;
  const T* x = at<T>(p, row.row, row.col);
  for (int64_t i = 0; i < runs; ++i) {
    const int64_t begin = i * kFloat8Block, count = std::min(kFloat8Block, row.cols - begin);
    const uint32_t most = columns ? row_maximum<T, true>(x + begin, count, columns + begin)
                                  : row_maximum<T, false>(x + begin, count, nullptr);
    scales[i] = choose_float8_scale(p, most, &statistics);
    to[i] = scales[i].scale;
  }
  encode_row<T>(p, f, row, kFloat8Block, scales, p.row, &statistics);
}

/// Quantizes the blocks of 128 x 128 of a piece whose columns have these maxima, in bits of T.
template <class T, class U>
void quantize_squares(const Float8Problem& p, const Coder& f, PieceRange piece, const U* maxima,
                      Statistics& statistics) {
  Float8Scale scales[kFloat8PieceColumns / kFloat8Block];
  float* to = p.square.scales + piece.row / kFloat8Block * ceil_div(p.cols, kFloat8Block) +
              piece.col / kFloat8Block;
  for (int64_t i = 0; i < piece.cols; i += kFloat8Block) {
    const auto* columns = reinterpret_cast<const T*>(maxima + i);
    const uint32_t most =
        row_maximum<T, false>(columns, std::min(kFloat8Block, piece.cols - i), nullptr);
    scales[i / kFloat8Block] = choose_float8_scale(p, most, &statistics);
    to[i / kFloat8Block] = scales[i / kFloat8Block].scale;
  }
  for (int64_t row = piece.row; row < piece.row + piece.rows; ++row)
    encode_row<T>(p, f, {row, 1, piece.col, piece.cols}, kFloat8Block, scales, p.square,
                  &statistics);
}

template <class T>
void quantize_piece(const Float8Problem& p, PieceRange piece, Statistics& statistics) {
  using U = hn::TFromD<MagnitudeTag<T> >;
  const Coder f(p);
  HWY_ALIGN U maxima[kFloat8PieceColumns];
  const bool down = !p.row.wanted() || p.column.wanted();
  if (down) std::memset(maxima, 0, sizeof(maxima));
  for (int64_t row = piece.row; row < piece.row + piece.rows; ++row) {
    if (p.row.wanted()) {
      quantize_row<T, U>(p, f, {row, 1, piece.col, piece.cols}, down ? maxima : nullptr,
                         statistics);
    } else {
      row_maximum<T, true>(at<T>(p, row, piece.col), piece.cols, maxima);
    }
  }
  if (p.column.wanted())
    quantize_columns<T>(p, f, piece, maxima, p.row.wanted() ? nullptr : &statistics);
  if (p.square.wanted()) quantize_squares<T>(p, f, piece, maxima, statistics);
}

void QuantizeFloat8Piece(const Float8Problem& p, PieceRange piece, Statistics& statistics) {
  if (p.by_codec) return quantize_float8_exactly(p, piece, statistics);
  return p.source == Source::kFloat32 ? quantize_piece<float>(p, piece, statistics)
                                      : quantize_piece<BFloat16>(p, piece, statistics);
}

uint32_t Float8Maximum(const Float8Problem& p, PieceRange run) {
  if (p.by_codec) return float8_maximum(p, run);
  return p.source == Source::kFloat32
             ? row_maximum<float, false>(at<float>(p, run.row, run.col), run.cols, nullptr)
             : row_maximum<BFloat16, false>(at<BFloat16>(p, run.row, run.col), run.cols, nullptr);
}

void EncodeFloat8Run(const Float8Problem& p, PieceRange run, Float8Scale scale,
                     Statistics& statistics) {
  if (p.by_codec) return encode_float8_exactly(p, run, p.whole, scale, &statistics);
  const Coder f(p);
  return p.source == Source::kFloat32
             ? encode_row<float>(p, f, run, run.cols, &scale, p.whole, &statistics)
             : encode_row<BFloat16>(p, f, run, run.cols, &scale, p.whole, &statistics);
}

#endif  // HWY_SCALAR
}  // namespace HWY_NAMESPACE
}  // namespace dovetail::mx
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dovetail::mx {

HWY_EXPORT(QuantizeFloat8Piece);
HWY_EXPORT(Float8Maximum);
HWY_EXPORT(EncodeFloat8Run);

namespace {

/// Number of elements that a thread takes at a time.
constexpr int64_t kGrainElements = 65536;

Statistics sum_of(const std::vector<Statistics>& parts) {
  Statistics sum;
  for (const Statistics& part : parts) sum.add(part);
  return sum;
}

/// Quantizes x as one block: a row of rows * cols elements, in runs.
Statistics quantize_whole(Float8Problem p) {
  p.cols *= p.rows;
  p.rows = 1;
  const auto parts = static_cast<size_t>((p.cols + kGrainElements - 1) / kGrainElements);
  std::vector<uint32_t> maxima(parts);
  parallel_pieces(p.cols, kGrainElements, [&](int64_t begin, int64_t end) {
    maxima[static_cast<size_t>(begin / kGrainElements)] =
        HWY_DYNAMIC_DISPATCH(Float8Maximum)(p, {0, 1, begin, end - begin});
  });
  Statistics of_block;
  const Float8Scale scale =
      choose_float8_scale(p, *std::max_element(maxima.begin(), maxima.end()), &of_block);
  *p.whole.scales = scale.scale;
  std::vector<Statistics> counts(parts);
  parallel_pieces(p.cols, kGrainElements, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(EncodeFloat8Run)
    (p, {0, 1, begin, end - begin}, scale, counts[static_cast<size_t>(begin / kGrainElements)]);
  });
  of_block.add(sum_of(counts));
  return of_block;
}

}  // namespace

Statistics quantize_float8_blocks(const Float8Problem& p) {
  if (p.rows == 0 || p.cols == 0) return {};
  if (p.whole.wanted()) return quantize_whole(p);
  const bool down = p.column.wanted() || p.square.wanted();
  const int64_t width = std::min(p.cols, down ? kFloat8PieceColumns / 2 : kFloat8PieceColumns),
                height = down ? kFloat8Block : std::max<int64_t>(1, kGrainElements / width);
  const int64_t across = (p.cols + width - 1) / width, strips = (p.rows + height - 1) / height;
  const int64_t grain = std::max<int64_t>(1, kGrainElements / (width * height));
  std::vector<Statistics> counts(static_cast<size_t>((strips * across + grain - 1) / grain));
  parallel_pieces(strips * across, grain, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t row = item / across * height, col = item % across * width;
      HWY_DYNAMIC_DISPATCH(QuantizeFloat8Piece)
      (p, {row, std::min(height, p.rows - row), col, std::min(width, p.cols - col)},
       counts[static_cast<size_t>(begin / grain)]);
    }
  });
  return sum_of(counts);
}

}  // namespace dovetail::mx
#endif
