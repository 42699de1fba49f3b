#include "dovetail/ops/simd_config.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dovetail/mx/float8_simd.cpp"
#include "hwy/foreach_target.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "dovetail/base/threads.h"
#include "dovetail/mx/float8_simd.h"
#include "dovetail/mx/quantize_inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail::mx {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR
void RaiseColumnMaxima(const Float8Problem& p, PieceRange piece, uint32_t* most) {
  raise_column_maxima(p, piece, most);
}
void EncodePiece(const Float8Problem& p, PieceRange piece, const ColumnScales& scales,
                 Statistics& statistics) {
  encode_float8_piece(p, piece, scales, statistics);
}
#else

/// Loads up to kLanes elements as float32 bits, with zeros after them.
template <class T>
HWY_INLINE BitsVector load_some(const T* x, int64_t count) {
  if (HWY_LIKELY(count == kLanes)) return load_bits(x);
  HWY_ALIGN T padded[kLanes] = {};
  std::memcpy(padded, x, static_cast<size_t>(count) * sizeof(T));
  return load_bits(padded);
}

HWY_INLINE void store_all(BitsVector v, float* to) {
  hn::StoreU(v, BitsTag(), reinterpret_cast<uint32_t*>(to));
}
HWY_INLINE void store_all(BitsVector v, BFloat16* to) {  // exact in 16 bits
  hn::StoreU(hn::TruncateTo(HalfTag(), hn::ShiftRight<16>(v)), HalfTag(),
             reinterpret_cast<uint16_t*>(to));
}
HWY_INLINE void store_all(BitsVector v, uint8_t* to) {
  const hn::Rebind<uint8_t, BitsTag> d8;
  hn::StoreU(hn::TruncateTo(d8, v), d8, to);
}
template <class Out>
HWY_INLINE void store_some(BitsVector v, int64_t count, Out* to) {
  if (HWY_LIKELY(count == kLanes)) return store_all(v, to);
  HWY_ALIGN Out padded[kLanes];
  store_all(v, padded);
  std::memcpy(to, padded, static_cast<size_t>(count) * sizeof(Out));
}

template <class T>
void raise_maxima(const Float8Problem& p, PieceRange piece, uint32_t* most) {
  const BitsTag d;
  for (int64_t row = piece.row; row < piece.row + piece.rows; ++row) {
    const T* x = static_cast<const T*>(p.x) + row * p.cols + piece.col;
    for (int64_t i = 0; i < piece.cols; i += kLanes) {
      const BitsVector v = load_some(x + i, std::min(kLanes, piece.cols - i));
      hn::Store(hn::Max(hn::Load(d, most + i), hn::And(v, splat(bits::kMagnitude))), d, most + i);
    }
  }
}

void RaiseColumnMaxima(const Float8Problem& p, PieceRange piece, uint32_t* most) {
  return p.source == Source::kFloat32 ? raise_maxima<float>(p, piece, most)
                                      : raise_maxima<BFloat16>(p, piece, most);
}

template <class T, class Out>
void encode_piece(const Float8Problem& p, PieceRange piece, const ColumnScales& scales, Out* out,
                  Statistics& statistics) {
  const FloatTag d;
  const Encoder f(p.spec);
  const Constants constants = constants_of(f);
  const BitsVector most = splat(p.amax > 0 ? std::bit_cast<uint32_t>(p.amax) : bits::kInfinity);
  const BitsVector magnitude = splat(std::is_same_v<Out, uint8_t> ? f.code_mask : bits::kMagnitude);
  FloatVector signal = hn::Zero(d), error = hn::Zero(d);
  const float largest = *std::max_element(scales.scale, scales.scale + piece.cols,
                                          [](float a, float b) { return a < b || std::isnan(a); });
  for (int64_t row = piece.row; row < piece.row + piece.rows; ++row) {
    const int64_t at = row * p.cols + piece.col;
    const T* x = static_cast<const T*>(p.x) + at;
    for (int64_t i = 0; i < piece.cols; i += kLanes) {
      const int64_t count = std::min(kLanes, piece.cols - i);
      const FloatVector factor = hn::Load(d, scales.factor + i),
                        scale = hn::Load(d, scales.scale + i);
      const auto finite = hn::RebindMask(BitsTag(), hn::Ne(factor, hn::Zero(d)));
      const BitsVector v = hn::IfThenElseZero(finite, load_some(x + i, count));
      Energies energies = {hn::Zero(d), hn::Zero(d)};
      const BitsVector encoded =
          encode<Out, false, Path::kClamp>(constants, v, factor, scale, energies);
      store_some(encoded, count, out + at + i);
      const FloatVector ratio =
          hn::IfThenElseZero(hn::Ne(factor, hn::Zero(d)), hn::Div(scale, hn::Set(d, largest)));
      const FloatVector weight = hn::Mul(ratio, ratio);
      signal = hn::MulAdd(energies.signal, weight, signal);
      error = hn::MulAdd(energies.error, weight, error);
      const BitsVector size = hn::And(v, splat(bits::kMagnitude));
      const auto vanished =
          hn::And(hn::Ne(size, splat(0)), hn::Eq(hn::And(encoded, magnitude), splat(0)));
      statistics.underflows += count_true(vanished);
      statistics.saturations += count_true(hn::Gt(size, most));
    }
  }
  if (std::isnan(largest)) return;
  const double unit = static_cast<double>(largest) * static_cast<double>(largest);
  statistics.signal += static_cast<double>(sum_lanes(signal)) * unit;
  statistics.error += static_cast<double>(sum_lanes(error)) * unit;
}

template <class T>
void encode_piece_of(const Float8Problem& p, PieceRange piece, const ColumnScales& scales,
                     Statistics& statistics) {
  if (p.codes) return encode_piece<T>(p, piece, scales, p.codes, statistics);
  if (p.power_of_two)
    return encode_piece<T>(p, piece, scales, static_cast<T*>(p.values), statistics);
  return encode_piece<T>(p, piece, scales, static_cast<float*>(p.values), statistics);
}

void EncodePiece(const Float8Problem& p, PieceRange piece, const ColumnScales& scales,
                 Statistics& statistics) {
  return p.source == Source::kFloat32 ? encode_piece_of<float>(p, piece, scales, statistics)
                                      : encode_piece_of<BFloat16>(p, piece, scales, statistics);
}

#endif  // HWY_SCALAR
}  // namespace HWY_NAMESPACE
}  // namespace dovetail::mx
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dovetail::mx {

HWY_EXPORT(RaiseColumnMaxima);
HWY_EXPORT(EncodePiece);

namespace {

constexpr float kSmallestAmax = 0x1p-80F;

void raise(const Float8Problem& p, PieceRange piece, uint32_t* most) {
  if (p.by_codec) return raise_column_maxima(p, piece, most);
  HWY_DYNAMIC_DISPATCH(RaiseColumnMaxima)(p, piece, most);
}

struct BlockScale {
  float factor, scale;
};

/// Returns the scale of a block whose largest magnitude is `most`, as float32 bits. Counts the
/// block.
BlockScale choose_scale(const Float8Problem& p, uint32_t most, Statistics& statistics) {
  ++statistics.blocks;
  if (most >= bits::kInfinity) {
    ++statistics.non_finite_blocks;
    return {0, std::numeric_limits<float>::quiet_NaN()};
  }
  const float amax = p.amax > 0 ? p.amax : std::bit_cast<float>(most);
  float factor = std::bit_cast<float>(largest_bits(p.spec)) / std::max(amax, kSmallestAmax);
  if (p.power_of_two)
    factor = std::bit_cast<float>(std::bit_cast<uint32_t>(factor) & bits::kInfinity);
  const float scale = 1 / factor;
  statistics.amax_bits = std::max(statistics.amax_bits, most);
  if (p.amax > 0 && most > std::bit_cast<uint32_t>(p.amax)) ++statistics.saturating_blocks;
  if ((most & bits::kFraction) > p.spec.max_fraction) ++statistics.floor_saturated_blocks;
  if (most == 0) {
    ++statistics.zero_blocks;
  } else {
    const int byte = static_cast<int>(std::bit_cast<uint32_t>(scale) >> bits::kFractionBits);
    statistics.min_scale = std::min(statistics.min_scale, byte);
    statistics.max_scale = std::max(statistics.max_scale, byte);
  }
  return {factor, scale};
}

/// Quantizes a piece that consists of whole blocks, or a part of the whole tensor's single block.
void quantize_piece(const Float8Problem& p, PieceRange piece, const BlockScale* whole,
                    Statistics& statistics) {
  ColumnScales columns;
  if (whole) {
    std::fill_n(columns.factor, piece.cols, whole->factor);
    std::fill_n(columns.scale, piece.cols, whole->scale);
  } else {
    alignas(64) uint32_t most[kPieceColumns] = {};
    raise(p, piece, most);
    const int64_t blocks = (p.cols + p.col_block - 1) / p.col_block;
    float* scales = p.scales + piece.row / p.row_block * blocks + piece.col / p.col_block;
    for (int64_t begin = 0; begin < piece.cols; begin += p.col_block) {
      const int64_t count = std::min(p.col_block, piece.cols - begin);
      const BlockScale block =
          choose_scale(p, *std::max_element(most + begin, most + begin + count), statistics);
      std::fill_n(columns.factor + begin, count, block.factor);
      std::fill_n(columns.scale + begin, count, block.scale);
      scales[begin / p.col_block] = block.scale;
    }
  }
  const auto padding = static_cast<int64_t>(kPieceColumns) - piece.cols;
  std::fill_n(columns.factor + piece.cols, std::min<int64_t>(padding, 16), 0.0F);
  std::fill_n(columns.scale + piece.cols, std::min<int64_t>(padding, 16), 0.0F);
  statistics.elements += piece.rows * piece.cols;
  if (p.by_codec) return encode_float8_piece(p, piece, columns, statistics);
  HWY_DYNAMIC_DISPATCH(EncodePiece)(p, piece, columns, statistics);
}

}  // namespace

Statistics quantize_float8_blocks(const Float8Problem& p) {
  constexpr int64_t kGrainElements = 65536, kStripRows = 32;
  if (p.rows == 0 || p.cols == 0) return {};
  const int64_t chunks = (p.cols + kPieceColumns - 1) / kPieceColumns;
  const int64_t strip = p.whole() ? kStripRows : p.row_block, strips = (p.rows + strip - 1) / strip;
  const int64_t grain =
      std::max<int64_t>(1, kGrainElements / (strip * std::min(p.cols, kPieceColumns)));
  const int64_t items = strips * chunks;
  const auto parts = static_cast<size_t>((items + grain - 1) / grain);
  const auto for_each_piece = [&](auto visit) {
    parallel_pieces(items, grain, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t row = item / chunks * strip, col = item % chunks * kPieceColumns;
        visit(static_cast<size_t>(begin / grain),
              PieceRange{row, std::min(strip, p.rows - row), col,
                         std::min(kPieceColumns, p.cols - col)});
      }
    });
  };
  Statistics sum;
  BlockScale scale = {};
  if (p.whole()) {
    std::vector<uint32_t> most(parts);
    for_each_piece([&](size_t part, PieceRange piece) {
      alignas(64) uint32_t columns[kPieceColumns] = {};
      raise(p, piece, columns);
      most[part] = std::max(most[part], *std::max_element(columns, columns + piece.cols));
    });
    scale = choose_scale(p, *std::max_element(most.begin(), most.end()), sum);
    *p.scales = scale.scale;
  }
  std::vector<Statistics> counts(parts);
  for_each_piece([&](size_t part, PieceRange piece) {
    quantize_piece(p, piece, p.whole() ? &scale : nullptr, counts[part]);
  });
  for (const Statistics& part : counts) sum.add(part);
  return sum;
}

}  // namespace dovetail::mx
#endif
