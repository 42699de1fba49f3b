#include "dovetail/ops/simd_config.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dovetail/mx/quantize_simd.cpp"
#include "hwy/foreach_target.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "dovetail/base/parallel.h"
#include "dovetail/mx/quantize_inl.h"
#include "dovetail/mx/quantize_simd.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail::mx {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR
// One lane: the codec does the same in as much time.
void QuantizePiece(const QuantizeProblem& p, PieceRange piece, QuantizeCounts& counts) {
  quantize_piece_exactly(p, piece, counts);
}
#else

constexpr int64_t kChunk = kPieceColumns;
constexpr int64_t kChunkBlocks = kChunk / kBlock;
constexpr int64_t kGroup = 4 * kBlock;               // whole groups of a row go through without copies
constexpr uint32_t kSmallestNormalAmax = 47u << 23;  // 2^-80: below it half of the last place may be subnormal

/// What the blocks of one group need: for each the scale byte, 2^-X, and 4^(X - largest X), which adds up energies.
struct Scales {
  HWY_ALIGN uint32_t amax[kChunkBlocks];  ///< bits of the input type, then of float32
  HWY_ALIGN uint32_t byte[kChunkBlocks];
  HWY_ALIGN float inverse[kChunkBlocks];
  HWY_ALIGN float weight[kChunkBlocks];
  int largest = 0;         ///< byte
  bool saturates = false;  ///< any of the blocks
};
static_assert(kPacked <= kChunkBlocks, "a tile of columns is a group too");

/// Counts of one call, added to the statistics when the call has found nothing that it leaves to `quantize_exactly`.
struct ScaleCounts {
  BitsVector most, least_byte, most_byte, special;
  int64_t zero, saturating, floor_saturated;
};

template <class T>
HWY_INLINE void choose_scale(const QuantizeProblem& p, const Encoder& f, Scales& s, int64_t i, ScaleCounts& counts) {
  const BitsTag d;
  const hn::RebindToSigned<BitsTag> di;
  const BitsVector a = widen<T>(hn::Load(d, s.amax + i));
  const auto exponent = hn::ShiftRight<bits::kFractionBits>(hn::Add(a, splat(p.addend)));
  const auto shifted = hn::Sub(hn::BitCast(di, exponent), hn::Set(di, p.spec.max_exponent));
  const BitsVector byte = hn::BitCast(d, hn::Max(shifted, hn::Zero(di)));
  const auto zero = hn::Eq(a, splat(0));
  const auto tiny = hn::Lt(hn::Sub(a, splat(1)), splat(kSmallestNormalAmax - 1));
  const auto special =
      hn::Or(hn::Or(tiny, hn::Gt(a, splat(bits::kInfinity - 1))), hn::Gt(byte, splat(kLargestScale - 1)));
  counts.special = hn::Or(counts.special, hn::VecFromMask(d, special));
  counts.most = hn::Max(counts.most, a);
  counts.most_byte = hn::Max(counts.most_byte, byte);
  counts.least_byte = hn::Min(counts.least_byte, hn::IfThenElse(zero, splat(255), byte));
  counts.zero += count_true(zero);
  counts.floor_saturated += count_true(hn::Gt(hn::And(a, splat(bits::kFraction)), splat(p.spec.max_fraction)));
  const BitsVector limit =
      hn::Add(hn::ShiftLeft<bits::kFractionBits>(hn::Sub(byte, splat(kScaleBias))), splat(f.max_bits));
  counts.saturating += count_true(hn::Gt(a, limit));
  hn::Store(a, d, s.amax + i);
  hn::Store(byte, d, s.byte + i);
  hn::Store(as_float(hn::ShiftLeft<bits::kFractionBits>(hn::Sub(splat(254), byte))), FloatTag(), s.inverse + i);
}

/// s.amax to everything else of s, for `count` blocks; beyond them, up to whole vectors, amax must be zero. The scale
/// bytes go to `scales`. False, and nothing counted, where a block needs `quantize_exactly`.
template <class T>
bool choose_scales(const QuantizeProblem& p, const Encoder& f, Scales& s, int64_t count, uint8_t* scales,
                   Statistics& statistics) {
  const BitsTag d;
  const hn::RebindToSigned<BitsTag> di;
  const int64_t padded = hwy::RoundUpTo(static_cast<size_t>(count), static_cast<size_t>(kLanes));
  ScaleCounts counts = {splat(0), splat(255), splat(0), splat(0), 0, 0, 0};
  for (int64_t i = 0; i < padded; i += kLanes) choose_scale<T>(p, f, s, i, counts);
  if (!hn::AllTrue(d, hn::Eq(counts.special, splat(0)))) return false;
  s.largest = static_cast<int>(hn::GetLane(hn::MaxOfLanes(d, counts.most_byte)));
  s.saturates = counts.saturating != 0;
  for (int64_t i = 0; i < padded; i += kLanes) {
    const auto byte = hn::BitCast(di, hn::Load(d, s.byte + i));
    const auto twice = hn::ShiftLeft<1>(hn::Sub(byte, hn::Set(di, s.largest)));
    const auto field = hn::Max(hn::Add(twice, hn::Set(di, bits::kExponentBias)), hn::Zero(di));
    hn::Store(hn::BitCast(FloatTag(), hn::ShiftLeft<bits::kFractionBits>(field)), FloatTag(), s.weight + i);
    const hn::Rebind<uint8_t, BitsTag> d8;
    if (i + kLanes <= count) {
      hn::StoreU(hn::DemoteTo(d8, byte), d8, scales + i);
    } else {
      for (int64_t j = i; j < count; ++j) scales[j] = static_cast<uint8_t>(s.byte[j]);
    }
  }
  statistics.blocks += count;
  statistics.zero_blocks += counts.zero - (padded - count);
  statistics.saturating_blocks += counts.saturating;
  statistics.floor_saturated_blocks += counts.floor_saturated;
  statistics.amax_bits = std::max(statistics.amax_bits, hn::GetLane(hn::MaxOfLanes(d, counts.most)));
  statistics.min_scale =
      std::min(statistics.min_scale, static_cast<int>(hn::GetLane(hn::MinOfLanes(d, counts.least_byte))));
  statistics.max_scale = std::max(statistics.max_scale, s.largest);
  return true;
}

/// Scale byte to the largest magnitude that rounds to zero, and to that which does not saturate.
HWY_INLINE BitsVector underflow_limit(const ElementSpec& spec, BitsVector byte) {
  const auto last = static_cast<uint32_t>(spec.min_exponent - spec.mantissa_bits - 1);
  return hn::ShiftLeft<bits::kFractionBits>(hn::Add(byte, splat(last)));
}
HWY_INLINE BitsVector saturation_limit(const Encoder& f, BitsVector byte) {
  return hn::Add(hn::ShiftLeft<bits::kFractionBits>(hn::Sub(byte, splat(kScaleBias))), splat(f.max_bits));
}

/// Codes of one vector's worth of bytes have been made; `least` is their smallest magnitude so far. Only where a zero
/// is among them, or a block saturates, are the elements looked at once more.
template <class T>
HWY_INLINE void count_limits(const QuantizeProblem& p, const Encoder& f, const T* x, BitsVector byte, bool saturates,
                             Statistics& statistics) {
  const BitsVector magnitude = hn::And(load_bits(x), splat(bits::kMagnitude));
  statistics.underflows += count_true(hn::Lt(hn::Sub(magnitude, splat(1)), underflow_limit(p.spec, byte)));
  if (saturates) statistics.saturations += count_true(hn::Gt(magnitude, saturation_limit(f, byte)));
}

void add_energies(const Energies& energies, int largest, Statistics& statistics) {
  const int exponent = 2 * (largest - kScaleBias);
  statistics.signal += std::ldexp(static_cast<double>(sum_lanes(energies.signal)), exponent);
  statistics.error += std::ldexp(static_cast<double>(sum_lanes(energies.error)), exponent);
}

HWY_INLINE bool has_zero(ByteVector least) { return !hn::AllTrue(ByteTag(), hn::Ne(least, hn::Zero(ByteTag()))); }

/// The codes of `blocks` blocks of one row, a multiple of four, with their scales in s; `next` is what will be read
/// then.
template <class T, bool kTwosComplement, Path kPath>
void encode_row(const QuantizeProblem& p, const Encoder& f, const Scales& s, const T* x, int64_t blocks, const T* next,
                uint8_t* codes, Statistics& statistics) {
  constexpr int kBlockVectors = std::min<int64_t>(kPack, kBlock / kLanes);
  const Constants constants = constants_of(f);
  Energies total = {hn::Zero(FloatTag()), hn::Zero(FloatTag())};
  ByteVector least = hn::Set(ByteTag(), 255);
  const ByteVector mask = hn::Set(ByteTag(), static_cast<uint8_t>(f.code_mask));
  for (int64_t i = 0; i < blocks * kBlock; i += kPacked) {
    BitsVector packed[kPack];
    prefetch_pack(next + i);
    load_pack(x + i, packed);
    DOVETAIL_UNROLL
    for (int v = 0; v < kPack; v += kBlockVectors) {
      const int64_t block = (i + v * kLanes) / kBlock;
      const FloatVector inverse = hn::Set(FloatTag(), s.inverse[block]), weight = hn::Set(FloatTag(), s.weight[block]);
      Energies energies = {hn::Zero(FloatTag()), hn::Zero(FloatTag())};
      DOVETAIL_UNROLL
      for (int j = v; j < v + kBlockVectors; ++j)
        packed[j] = encode<kTwosComplement, kPath>(constants, packed[j], inverse, energies);
      total.signal = hn::MulAdd(energies.signal, weight, total.signal);
      total.error = hn::MulAdd(energies.error, weight, total.error);
    }
    const ByteVector bytes = pack<T>(packed);
    store_codes(bytes, p.stream, codes + i);
    least = hn::Min(least, kTwosComplement ? bytes : hn::And(bytes, mask));
  }
  add_energies(total, s.largest, statistics);
  if (!s.saturates && !has_zero(least)) return;
  for (int64_t i = 0; i < blocks * kBlock; i += kLanes)
    count_limits(p, f, x + i, splat(s.byte[i / kBlock]), s.saturates, statistics);
}

template <class T, bool kTwosComplement>
void encode_row(const QuantizeProblem& p, const Encoder& f, const Scales& s, const T* x, int64_t blocks, const T* next,
                uint8_t* codes, Statistics& statistics) {
  if (s.saturates) return encode_row<T, kTwosComplement, Path::kClamp>(p, f, s, x, blocks, next, codes, statistics);
  if (fits_table(p.spec))
    return encode_row<T, kTwosComplement, Path::kTable>(p, f, s, x, blocks, next, codes, statistics);
  return encode_row<T, kTwosComplement, Path::kPlain>(p, f, s, x, blocks, next, codes, statistics);
}

/// Blocks along a row: `count` elements from (row, col), whole groups of four blocks.
template <class T, bool kTwosComplement>
bool quantize_groups(const QuantizeProblem& p, const Encoder& f, const T* x, int64_t blocks, int64_t used_blocks,
                     uint8_t* codes, uint8_t* scales, Statistics& statistics) {
  Scales s;
  for (int64_t block = 0; block < blocks; block += 4) four_block_maxima(x + block * kBlock, s.amax + block);
  for (int64_t block = blocks; block % kLanes != 0; ++block) s.amax[block] = 0;
  if (!choose_scales<T>(p, f, s, used_blocks, scales, statistics)) return false;
  encode_row<T, kTwosComplement>(p, f, s, x, blocks, x + (p.column.codes ? p.cols : blocks * kBlock), codes,
                                 statistics);
  return true;
}

HWY_INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Up to kChunk elements of a row.
template <class T, bool kTwosComplement>
void quantize_row(const QuantizeProblem& p, const Encoder& f, int64_t row, int64_t col, int64_t count,
                  Statistics& statistics) {
  const T* x = static_cast<const T*>(p.x) + row * p.cols + col;
  uint8_t* codes = p.row.codes + row * p.cols + col;
  uint8_t* scales = p.row.scales + row * ceil_div(p.cols, kBlock) + col / kBlock;
  const auto exactly = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += kBlock)
      quantize_exactly(p, {row, 1, col + i, std::min(kBlock + i, end) - i}, p.row.codes, scales + i / kBlock,
                       statistics);
  };
  const int64_t whole = count / kGroup * kGroup, rest = count - whole;
  if (whole > 0) {
    const bool done =
        quantize_groups<T, kTwosComplement>(p, f, x, whole / kBlock, whole / kBlock, codes, scales, statistics);
    if (done) statistics.elements += whole;
    if (!done) exactly(0, whole);
  }
  if (rest == 0) return;
  HWY_ALIGN T padded[kGroup] = {};
  HWY_ALIGN uint8_t padded_codes[kGroup];
  std::memcpy(padded, x + whole, static_cast<size_t>(std::min(rest, kGroup)) * sizeof(T));
  if (!quantize_groups<T, kTwosComplement>(p, f, padded, 4, ceil_div(rest, kBlock), padded_codes,
                                           scales + whole / kBlock, statistics))
    return exactly(whole, count);
  statistics.elements += rest;
  std::memcpy(codes + whole, padded_codes, static_cast<size_t>(rest));
}

/// most[i] = max(most[i], |x[i]|), in bits of the input type.
template <class T, class U>
void raise_maxima(const T* x, int64_t count, U* most) {
  const hn::ScalableTag<U> d;
  constexpr int64_t kStep = static_cast<int64_t>(hn::MaxLanes(d));
  constexpr U kMask = static_cast<U>(~U{0}) >> 1;
  const auto* from = reinterpret_cast<const U*>(x);
  int64_t i = 0;
  for (; i + kStep <= count; i += kStep)
    hn::StoreU(hn::Max(hn::LoadU(d, most + i), hn::And(hn::LoadU(d, from + i), hn::Set(d, kMask))), d, most + i);
  for (; i < count; ++i) most[i] = std::max<U>(most[i], from[i] & kMask);
}

/// A tile of codes or of numbers: up to 32 rows, kPacked columns wide.
template <class T>
struct Tile {
  T* data;
  int64_t stride;
};

/// The codes of a tile whose column blocks have their scales in s.
template <class T, bool kTwosComplement, Path kPath>
void encode_tile(const QuantizeProblem& p, const Encoder& f, const Scales& s, Tile<const T> x, int64_t rows,
                 const T* next, Tile<uint8_t> codes, Statistics& statistics) {
  const Constants constants = constants_of(f);
  FloatVector inverse[kPack], weight[kPack];
  load_for_pack<T>(s.inverse, inverse);
  load_for_pack<T>(s.weight, weight);
  Energies energies[kPack];
  DOVETAIL_UNROLL
  for (int v = 0; v < kPack; ++v) energies[v] = {hn::Zero(FloatTag()), hn::Zero(FloatTag())};
  ByteVector least = hn::Set(ByteTag(), 255);
  const ByteVector mask = hn::Set(ByteTag(), static_cast<uint8_t>(f.code_mask));
  for (int64_t row = 0; row < rows; ++row) {
    BitsVector packed[kPack];
    prefetch_pack(next + row * kPacked);
    load_pack(x.data + row * x.stride, packed);
    DOVETAIL_UNROLL
    for (int v = 0; v < kPack; ++v)
      packed[v] = encode<kTwosComplement, kPath>(constants, packed[v], inverse[v], energies[v]);
    const ByteVector bytes = pack<T>(packed);
    store_codes(bytes, p.stream && kPacked == kLine, codes.data + row * codes.stride);
    least = hn::Min(least, kTwosComplement ? bytes : hn::And(bytes, mask));
  }
  Energies total = {hn::Zero(FloatTag()), hn::Zero(FloatTag())};
  DOVETAIL_UNROLL
  for (int v = 0; v < kPack; ++v) {
    total.signal = hn::MulAdd(energies[v].signal, weight[v], total.signal);
    total.error = hn::MulAdd(energies[v].error, weight[v], total.error);
  }
  add_energies(total, s.largest, statistics);
  if (!s.saturates && !has_zero(least)) return;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < kPacked; i += kLanes)
      count_limits(p, f, x.data + row * x.stride + i, hn::Load(BitsTag(), s.byte + i), s.saturates, statistics);
  }
}

template <class T, bool kTwosComplement>
void encode_tile(const QuantizeProblem& p, const Encoder& f, const Scales& s, Tile<const T> x, int64_t rows,
                 const T* next, Tile<uint8_t> codes, Statistics& statistics) {
  if (s.saturates) return encode_tile<T, kTwosComplement, Path::kClamp>(p, f, s, x, rows, next, codes, statistics);
  if (fits_table(p.spec))
    return encode_tile<T, kTwosComplement, Path::kTable>(p, f, s, x, rows, next, codes, statistics);
  return encode_tile<T, kTwosComplement, Path::kPlain>(p, f, s, x, rows, next, codes, statistics);
}

/// Blocks down the columns of a tile, at most kPacked of them, whose maxima are known.
template <class T, class U, bool kTwosComplement>
void quantize_tile(const QuantizeProblem& p, const Encoder& f, PieceRange tile, const U* maxima, const T* next,
                   Statistics& statistics) {
  Scales s;
  const auto [row, rows, col, width] = tile;
  for (int64_t i = 0; i < kPacked; ++i) s.amax[i] = i < width ? maxima[i] : 0;
  uint8_t* scales = p.column.scales + row / kBlock * p.cols + col;
  if (!choose_scales<T>(p, f, s, width, scales, statistics)) {
    for (int64_t i = 0; i < width; ++i)
      quantize_exactly(p, {row, rows, col + i, 1}, p.column.codes, scales + i, statistics);
    return;
  }
  statistics.elements += rows * width;
  const T* x = static_cast<const T*>(p.x) + row * p.cols + col;
  uint8_t* codes = p.column.codes + row * p.cols + col;
  if (width == kPacked)
    return encode_tile<T, kTwosComplement>(p, f, s, {x, p.cols}, rows, next, {codes, p.cols}, statistics);
  for (int64_t i = ceil_div(width, kLanes) * kLanes; i < kPacked; ++i) s.byte[i] = 0, s.inverse[i] = s.weight[i] = 0;
  HWY_ALIGN T padded[kBlock * kPacked] = {};
  HWY_ALIGN uint8_t padded_codes[kBlock * kPacked];
  for (int64_t i = 0; i < rows; ++i)
    std::memcpy(padded + i * kPacked, x + i * p.cols, static_cast<size_t>(width) * sizeof(T));
  encode_tile<T, kTwosComplement>(p, f, s, {padded, kPacked}, rows, padded, {padded_codes, kPacked}, statistics);
  for (int64_t i = 0; i < rows; ++i)
    std::memcpy(codes + i * p.cols, padded_codes + i * kPacked, static_cast<size_t>(width));
}

/// Blocks of 32 x 32 of a strip whose column maxima are known.
template <class T, class U, bool kTwosComplement>
void quantize_squares(const QuantizeProblem& p, const Encoder& f, PieceRange piece, const U* maxima,
                      Statistics& statistics) {
  const auto [row, rows, col, count] = piece;
  const int64_t blocks = ceil_div(count, kBlock), padded_blocks = ceil_div(count, kGroup) * 4;
  Scales s = {};
  for (int64_t i = 0; i < count; ++i) s.amax[i / kBlock] = std::max<uint32_t>(s.amax[i / kBlock], maxima[i]);
  uint8_t* scales = p.square.scales + row / kBlock * ceil_div(p.cols, kBlock) + col / kBlock;
  if (!choose_scales<T>(p, f, s, blocks, scales, statistics)) {
    for (int64_t i = 0; i < blocks; ++i)
      quantize_exactly(p, {row, rows, col + i * kBlock, std::min(kBlock + 0L, count - i * kBlock)}, p.square.codes,
                       scales + i, statistics);
    return;
  }
  statistics.elements += rows * count;
  HWY_ALIGN T padded[kChunk];
  HWY_ALIGN uint8_t padded_codes[kChunk];
  for (int64_t r = row; r < row + rows; ++r) {
    const T* x = static_cast<const T*>(p.x) + r * p.cols + col;
    uint8_t* codes = p.square.codes + r * p.cols + col;
    if (count % kGroup == 0) {
      encode_row<T, kTwosComplement>(p, f, s, x, blocks, x + kBlock * p.cols, codes, statistics);
      continue;
    }
    std::memcpy(padded, x, static_cast<size_t>(count) * sizeof(T));
    std::memset(padded + count, 0, static_cast<size_t>(padded_blocks * kBlock - count) * sizeof(T));
    encode_row<T, kTwosComplement>(p, f, s, padded, padded_blocks, padded, padded_codes, statistics);
    std::memcpy(codes, padded_codes, static_cast<size_t>(count));
  }
}

template <class T, bool kTwosComplement>
void quantize_piece(const QuantizeProblem& p, PieceRange piece, QuantizeCounts& counts) {
  using U = std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>;
  const Encoder f(p.spec);
  const auto [row, rows, col, cols] = piece;
  const bool down = p.column.codes || p.square.codes;
  HWY_ALIGN U maxima[kChunk];
  if (down) std::memset(maxima, 0, sizeof(maxima));
  for (int64_t r = row; r < row + rows; ++r) {
    if (p.row.codes) quantize_row<T, kTwosComplement>(p, f, r, col, cols, counts.row);
    if (down) raise_maxima(static_cast<const T*>(p.x) + r * p.cols + col, cols, maxima);
  }
  if (p.column.codes) {
    const T* x = static_cast<const T*>(p.x) + row * p.cols + col;
    // The next piece lies beside this one, or begins the next strip.
    const T* next = col + cols < p.cols ? x + cols : x + kBlock * p.cols - col;
    for (int64_t i = 0; i < cols; i += kPacked) {
      // Each tile asks for the 32nd part of it that is one row's.
      const int64_t ahead = std::min<int64_t>(i / kPacked * kBlock / ceil_div(kChunk, kPacked), kBlock - 1);
      quantize_tile<T, U, kTwosComplement>(p, f, {row, rows, col + i, std::min(kPacked, cols - i)}, maxima + i,
                                           next + ahead * p.cols, counts.column);
    }
  }
  if (p.square.codes) quantize_squares<T, U, kTwosComplement>(p, f, piece, maxima, counts.square);
}

template <class T>
void run(const QuantizeProblem& p, PieceRange piece, QuantizeCounts& counts) {
  return p.spec.twos_complement ? quantize_piece<T, true>(p, piece, counts)
                                : quantize_piece<T, false>(p, piece, counts);
}

void QuantizePiece(const QuantizeProblem& p, PieceRange piece, QuantizeCounts& counts) {
  if (p.stochastic) return quantize_piece_exactly(p, piece, counts);
  switch (p.source) {
    case Source::kFloat32:
      return run<float>(p, piece, counts);
    case Source::kBFloat16:
      return run<BFloat16>(p, piece, counts);
    case Source::kFloat16:
      return run<Float16>(p, piece, counts);
  }
}

#endif  // HWY_SCALAR
}  // namespace HWY_NAMESPACE
}  // namespace dovetail::mx
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dovetail::mx {

HWY_EXPORT(QuantizePiece);

QuantizeCounts quantize_blocks(const QuantizeProblem& p) {
  constexpr int64_t kGrainElements = 65536;
  const int64_t chunks = (p.cols + kPieceColumns - 1) / kPieceColumns;
  const int64_t strip = p.column.codes || p.square.codes ? kBlock : 1;
  const int64_t strips = (p.rows + strip - 1) / strip, items = strips * chunks;
  if (p.rows == 0 || p.cols == 0) return {};
  const int64_t grain = std::max<int64_t>(1, kGrainElements / (strip * std::min(p.cols, kPieceColumns)));
  std::vector<QuantizeCounts> parts(static_cast<size_t>((items + grain - 1) / grain));
  parallel_pieces(items, grain, [&](int64_t begin, int64_t end) {
    QuantizeCounts& counts = parts[static_cast<size_t>(begin / grain)];
    for (int64_t item = begin; item < end; ++item) {
      const int64_t row = item / chunks * strip, col = item % chunks * kPieceColumns;
      HWY_DYNAMIC_DISPATCH(QuantizePiece)
      (p, {row, std::min(strip, p.rows - row), col, std::min(kPieceColumns, p.cols - col)}, counts);
    }
  });
  QuantizeCounts sum;
  for (const QuantizeCounts& part : parts) sum.add(part);
  return sum;
}

}  // namespace dovetail::mx
#endif
