#include "dovetail/ops/simd_config.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dovetail/mx/quantize_simd.cpp"
#include "hwy/foreach_target.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "dovetail/base/rng.h"
#include "dovetail/base/threads.h"
#include "dovetail/mx/bfloat16_inl.h"
#include "dovetail/mx/quantize_inl.h"
#include "dovetail/mx/quantize_simd.h"
#include "dovetail/mx/random_inl.h"
#include "dovetail/mx/scales_inl.h"
#include "dovetail/ops/workspace.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail::mx {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR
// With one lane, the codec does the same in the same time.
void QuantizePiece(const QuantizeProblem& p, PieceRange piece, QuantizeCounts& counts) {
  quantize_piece_exactly(p, piece, counts);
}
#else

/// Encoder with its vector constants, made once for many loops.
struct VectorEncoder : Encoder {
  explicit VectorEncoder(const ElementSpec& spec)
      : Encoder(spec), constants(constants_of(*this)), words(spec) {}
  Constants constants;
  WordConstants words;
};

/// Random words for stochastic rounding of a piece, made once for all orientations. A row's words
/// begin kWordsMargin after the row's memory. So the first word of a Philox call is aligned if the
/// row's memory is. They continue up to whole groups.
constexpr int64_t kWordsMargin = kLine / 4, kWordsStride = kChunk + kGroup + 2 * kWordsMargin;

uint32_t* words_memory(int64_t rows) {
  return reinterpret_cast<uint32_t*>(
      ops::workspace(ops::Workspace::kRandomWords, static_cast<size_t>(rows * kWordsStride)));
}

/// Writes the words for `count` elements (at most kChunk) from (row, col) on.
void fill_words(const QuantizeProblem& p, int64_t row, int64_t col, int64_t count,
                uint32_t* memory) {
  const int64_t index = row * p.cols + col, before = index % 4,
                padded = (count + kGroup - 1) / kGroup * kGroup;
  fill_philox(p.seed, static_cast<uint64_t>(index / 4),
              static_cast<uint64_t>(RandomStream::kQuantize), (before + padded + 3) / 4,
              memory + kWordsMargin - before);
}

/// Returns the words for vector v of a pack, in the order in which `load_pack` loads elements of T.
template <class T>
HWY_INLINE BitsVector words_of(const uint32_t* words, int v) {
  const BitsTag d;
  if constexpr (sizeof(T) == 4) return hn::LoadU(d, words + v * kLanes);
  const int64_t pair = v / 2 * 2 * kLanes;
  const BitsVector low = hn::LoadU(d, words + pair), high = hn::LoadU(d, words + pair + kLanes);
  return v % 2 == 0 ? hn::ConcatEven(d, high, low) : hn::ConcatOdd(d, high, low);
}

/// Encodes vector v of a pack with `encode`, or with `encode_at_random` and the words from
/// words[offset] on.
template <class T, class Out, bool kTwosComplement, Path kPath>
HWY_INLINE BitsVector encode_vector(const Constants& constants, BitsVector x, int v,
                                    const uint32_t* words, int64_t offset, FloatVector inverse,
                                    Energies& energies, BitsVector& underflows) {
  if constexpr (kPath == Path::kRandom) {
    return encode_at_random<Out, kTwosComplement>(constants, x, words_of<T>(words + offset, v),
                                                  inverse, scale_of(inverse), energies, underflows);
  } else {
    return encode<Out, kTwosComplement, kPath>(constants, x, inverse, scale_of(inverse), energies);
  }
}

/// Encodes `blocks` blocks of one row, a multiple of four, with their scales in s. `next` is the
/// row to prefetch. `words`: for stochastic rounding, otherwise null.
template <class T, bool kTwosComplement, Path kPath, class Out>
void encode_row(const QuantizeProblem& p, const VectorEncoder& f, const Scales& s, const T* x,
                const uint32_t* words, int64_t blocks, const T* next, Out* out,
                Statistics& statistics) {
  constexpr int kBlockVectors = std::min<int64_t>(kPack, kBlock / kLanes);
  constexpr Path kVectorPath = kPath == Path::kWords ? Path::kTable : kPath;
  const Constants constants = f.constants;
  [[maybe_unused]] const RowWords row_words(f.words);
  Energies total = {hn::Zero(FloatTag()), hn::Zero(FloatTag())};
  BitsVector underflows = splat(0);
  Sink<T, Out, kTwosComplement> sink(f, p.stream);
  for (int64_t i = 0; i < blocks * kBlock; i += kPacked) {
    BitsVector packed[kPack];
    prefetch_pack(next + i);
    if constexpr (kPath == Path::kWords) {
      if (row_words.encode(s, i / kBlock, x + i, total, sink, out + i)) continue;
    }
    load_pack(x + i, packed);
    DOVETAIL_UNROLL
    for (int v = 0; v < kPack; v += kBlockVectors) {
      const int64_t block = (i + v * kLanes) / kBlock;
      const FloatVector inverse = hn::Set(FloatTag(), s.inverse[block]),
                        weight = hn::Set(FloatTag(), s.weight[block]);
      Energies energies = {hn::Zero(FloatTag()), hn::Zero(FloatTag())};
      DOVETAIL_UNROLL
      for (int j = v; j < v + kBlockVectors; ++j)
        packed[j] = encode_vector<T, Out, kTwosComplement, kVectorPath>(
            constants, packed[j], j, words, i, inverse, energies, underflows);
      total.signal = hn::MulAdd(energies.signal, weight, total.signal);
      total.error = hn::MulAdd(energies.error, weight, total.error);
    }
    sink.put(packed, out + i);
  }
  add_energies(total, s.largest, statistics);
  if constexpr (kPath == Path::kRandom) statistics.underflows += sum_counts(underflows);
  if (!s.saturates && (kPath == Path::kRandom || !sink.has_zero())) return;
  for (int64_t i = 0; i < blocks * kBlock; i += kLanes)
    count_limits<kPath>(p, f, x + i, splat(s.byte[i / kBlock]), s.saturates, statistics);
}

template <class T, bool kTwosComplement, class Out>
void encode_row(const QuantizeProblem& p, const VectorEncoder& f, const Scales& s, const T* x,
                const uint32_t* words, int64_t blocks, const T* next, Out* out,
                Statistics& statistics) {
  if (p.stochastic)
    return encode_row<T, kTwosComplement, Path::kRandom>(p, f, s, x, words, blocks, next, out,
                                                         statistics);
  if (s.saturates)
    return encode_row<T, kTwosComplement, Path::kClamp>(p, f, s, x, words, blocks, next, out,
                                                        statistics);
  if constexpr (kHasWords<T, Out>) {
    if (fits_words(p.spec))
      return encode_row<T, kTwosComplement, Path::kWords>(p, f, s, x, words, blocks, next, out,
                                                          statistics);
  }
  if (fits_table(p.spec))
    return encode_row<T, kTwosComplement, Path::kTable>(p, f, s, x, words, blocks, next, out,
                                                        statistics);
  return encode_row<T, kTwosComplement, Path::kPlain>(p, f, s, x, words, blocks, next, out,
                                                      statistics);
}

/// Returns the memory of a target as Out.
template <class Out>
HWY_INLINE Out* memory_of(const QuantizeTarget& target) {
  if constexpr (std::is_same_v<Out, uint8_t>) {
    return target.codes;
  } else {
    return static_cast<Out*>(target.values);
  }
}

/// Quantizes blocks along a row, in whole groups of four. The last groups may be padding: only
/// `used_blocks` blocks count. Returns false if a block needs `quantize_exactly`.
template <class T, bool kTwosComplement, class Out>
bool quantize_groups(const QuantizeProblem& p, const VectorEncoder& f, const T* x,
                     const uint32_t* words, int64_t blocks, int64_t used_blocks, Out* out,
                     uint8_t* scales, Statistics& statistics) {
  Scales s;
  for (int64_t block = 0; block < blocks; block += 4)
    four_block_maxima(x + block * kBlock, s.amax + block);
  for (int64_t block = blocks; block % kLanes != 0; ++block) s.amax[block] = 0;
  if (!choose_scales<T>(p, f, s, used_blocks, scales, statistics)) return false;
  encode_row<T, kTwosComplement>(p, f, s, x, words, blocks,
                                 x + (p.column.wanted() ? p.cols : blocks * kBlock), out,
                                 statistics);
  return true;
}

HWY_INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Returns the address of element (row, col).
template <class T>
HWY_INLINE const T* at(const QuantizeProblem& p, int64_t row, int64_t col) {
  return static_cast<const T*>(p.x) + (row - p.first_row) * p.cols + col;
}

/// Quantizes up to kChunk elements of a row.
template <class T, bool kTwosComplement, class Out>
void quantize_row(const QuantizeProblem& p, const VectorEncoder& f, int64_t row, int64_t col,
                  int64_t count, const uint32_t* words, Statistics& statistics) {
  const T* x = at<T>(p, row, col);
  Out* out = memory_of<Out>(p.row) + row * p.cols + col;
  uint8_t* scales = p.row.scales + row * ceil_div(p.cols, kBlock) + col / kBlock;
  const auto exactly = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += kBlock)
      quantize_exactly(p, {row, 1, col + i, std::min(kBlock + i, end) - i}, p.row,
                       scales + i / kBlock, statistics);
  };
  const int64_t whole = count / kGroup * kGroup, rest = count - whole;
  if (whole > 0) {
    const bool done = quantize_groups<T, kTwosComplement>(p, f, x, words, whole / kBlock,
                                                          whole / kBlock, out, scales, statistics);
    if (done) statistics.elements += whole;
    if (!done) exactly(0, whole);
  }
  if (rest == 0) return;
  HWY_ALIGN T padded[kGroup] = {};
  HWY_ALIGN Out padded_out[kGroup];
  std::memcpy(padded, x + whole, static_cast<size_t>(std::min(rest, kGroup)) * sizeof(T));
  if (!quantize_groups<T, kTwosComplement>(p, f, padded, words ? words + whole : words, 4,
                                           ceil_div(rest, kBlock), padded_out,
                                           scales + whole / kBlock, statistics))
    return exactly(whole, count);
  statistics.elements += rest;
  std::memcpy(out + whole, padded_out, static_cast<size_t>(rest) * sizeof(Out));
}

/// Sets most[i] = max(most[i], |x[i]|), in bits of the input type.
template <class T, class U>
void raise_maxima(const T* x, int64_t count, U* most) {
  const hn::ScalableTag<U> d;
  constexpr int64_t kStep = static_cast<int64_t>(hn::MaxLanes(d));
  constexpr U kMask = static_cast<U>(~U{0}) >> 1;
  const auto* from = reinterpret_cast<const U*>(x);
  int64_t i = 0;
  for (; i + kStep <= count; i += kStep)
    hn::StoreU(hn::Max(hn::LoadU(d, most + i), hn::And(hn::LoadU(d, from + i), hn::Set(d, kMask))),
               d, most + i);
  for (; i < count; ++i) most[i] = std::max<U>(most[i], from[i] & kMask);
}

/// Tile of codes or numbers: up to 32 rows, kPacked columns.
template <class T>
struct Tile {
  T* data;
  int64_t stride;
};

/// Encodes a tile whose column blocks have their scales in s. `words` has the layout of a piece's
/// rows.
template <class T, bool kTwosComplement, Path kPath, class Out>
void encode_tile(const QuantizeProblem& p, const VectorEncoder& f, const Scales& s, Tile<const T> x,
                 const uint32_t* words, int64_t rows, const T* next, Tile<Out> out,
                 Statistics& statistics) {
  constexpr Path kVectorPath = kPath == Path::kWords ? Path::kTable : kPath;
  const Constants constants = f.constants;
  [[maybe_unused]] const TileWords tile_words(f.words, s);
  FloatVector inverse[kPack], weight[kPack];
  load_for_pack<T>(s.inverse, inverse);
  load_for_pack<T>(s.weight, weight);
  Energies energies[kPack];
  DOVETAIL_UNROLL
  for (int v = 0; v < kPack; ++v) energies[v] = {hn::Zero(FloatTag()), hn::Zero(FloatTag())};
  BitsVector underflows = splat(0);
  Sink<T, Out, kTwosComplement> sink(f, p.stream && kPacked == kLine);
  for (int64_t row = 0; row < rows; ++row) {
    BitsVector packed[kPack];
    prefetch_pack(next + row * kPacked);
    if constexpr (kPath == Path::kWords) {
      if (tile_words.encode(x.data + row * x.stride, energies, sink, out.data + row * out.stride))
        continue;
    }
    load_pack(x.data + row * x.stride, packed);
    DOVETAIL_UNROLL
    for (int v = 0; v < kPack; ++v)
      packed[v] = encode_vector<T, Out, kTwosComplement, kVectorPath>(
          constants, packed[v], v, words, row * kWordsStride, inverse[v], energies[v], underflows);
    sink.put(packed, out.data + row * out.stride);
  }
  Energies total = {hn::Zero(FloatTag()), hn::Zero(FloatTag())};
  DOVETAIL_UNROLL
  for (int v = 0; v < kPack; ++v) {
    total.signal = hn::MulAdd(energies[v].signal, weight[v], total.signal);
    total.error = hn::MulAdd(energies[v].error, weight[v], total.error);
  }
  add_energies(total, s.largest, statistics);
  if constexpr (kPath == Path::kRandom) statistics.underflows += sum_counts(underflows);
  if (!s.saturates && (kPath == Path::kRandom || !sink.has_zero())) return;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < kPacked; i += kLanes)
      count_limits<kPath>(p, f, x.data + row * x.stride + i, hn::Load(BitsTag(), s.byte + i),
                          s.saturates, statistics);
  }
}

template <class T, bool kTwosComplement, class Out>
void encode_tile(const QuantizeProblem& p, const VectorEncoder& f, const Scales& s, Tile<const T> x,
                 const uint32_t* words, int64_t rows, const T* next, Tile<Out> out,
                 Statistics& statistics) {
  if (p.stochastic)
    return encode_tile<T, kTwosComplement, Path::kRandom>(p, f, s, x, words, rows, next, out,
                                                          statistics);
  if (s.saturates)
    return encode_tile<T, kTwosComplement, Path::kClamp>(p, f, s, x, words, rows, next, out,
                                                         statistics);
  if constexpr (kHasWords<T, Out>) {
    if (fits_words(p.spec))
      return encode_tile<T, kTwosComplement, Path::kWords>(p, f, s, x, words, rows, next, out,
                                                           statistics);
  }
  if (fits_table(p.spec))
    return encode_tile<T, kTwosComplement, Path::kTable>(p, f, s, x, words, rows, next, out,
                                                         statistics);
  return encode_tile<T, kTwosComplement, Path::kPlain>(p, f, s, x, words, rows, next, out,
                                                       statistics);
}

/// Quantizes blocks down the columns of a tile of at most kPacked columns. `maxima` has their
/// largest magnitudes.
template <class T, class U, bool kTwosComplement, class Out>
void quantize_tile(const QuantizeProblem& p, const VectorEncoder& f, PieceRange tile,
                   const U* maxima, const uint32_t* words, const T* next, Statistics& statistics) {
  Scales s;
  const auto [row, rows, col, width] = tile;
  for (int64_t i = 0; i < kPacked; ++i) s.amax[i] = i < width ? maxima[i] : 0;
  uint8_t* scales = p.column.scales + row / kBlock * p.cols + col;
  if (!choose_scales<T>(p, f, s, width, scales, statistics)) {
    for (int64_t i = 0; i < width; ++i)
      quantize_exactly(p, {row, rows, col + i, 1}, p.column, scales + i, statistics);
    return;
  }
  statistics.elements += rows * width;
  const T* x = at<T>(p, row, col);
  Out* out = memory_of<Out>(p.column) + row * p.cols + col;
  if (width == kPacked)
    return encode_tile<T, kTwosComplement>(p, f, s, {x, p.cols}, words, rows, next,
                                           Tile<Out>{out, p.cols}, statistics);
  for (int64_t i = ceil_div(width, kLanes) * kLanes; i < kPacked; ++i)
    s.byte[i] = s.exponents[i] = 0, s.inverse[i] = s.weight[i] = 0;
  HWY_ALIGN T padded[kBlock * kPacked] = {};
  HWY_ALIGN Out padded_out[kBlock * kPacked];
  for (int64_t i = 0; i < rows; ++i)
    std::memcpy(padded + i * kPacked, x + i * p.cols, static_cast<size_t>(width) * sizeof(T));
  encode_tile<T, kTwosComplement>(p, f, s, {padded, kPacked}, words, rows, padded,
                                  Tile<Out>{padded_out, kPacked}, statistics);
  for (int64_t i = 0; i < rows; ++i)
    std::memcpy(out + i * p.cols, padded_out + i * kPacked,
                static_cast<size_t>(width) * sizeof(Out));
}

/// Quantizes blocks of 32 x 32 of a strip. `maxima` has the largest magnitude of each column.
template <class T, class U, bool kTwosComplement, class Out>
void quantize_squares(const QuantizeProblem& p, const VectorEncoder& f, PieceRange piece,
                      const U* maxima, const uint32_t* words, Statistics& statistics) {
  const auto [row, rows, col, count] = piece;
  const int64_t blocks = ceil_div(count, kBlock), padded_blocks = ceil_div(count, kGroup) * 4;
  Scales s = {};
  for (int64_t i = 0; i < count; ++i)
    s.amax[i / kBlock] = std::max<uint32_t>(s.amax[i / kBlock], maxima[i]);
  uint8_t* scales = p.square.scales + row / kBlock * ceil_div(p.cols, kBlock) + col / kBlock;
  if (!choose_scales<T>(p, f, s, blocks, scales, statistics)) {
    for (int64_t i = 0; i < blocks; ++i)
      quantize_exactly(p, {row, rows, col + i * kBlock, std::min(kBlock + 0L, count - i * kBlock)},
                       p.square, scales + i, statistics);
    return;
  }
  statistics.elements += rows * count;
  HWY_ALIGN T padded[kChunk];
  HWY_ALIGN Out padded_out[kChunk];
  for (int64_t r = row; r < row + rows; ++r) {
    const T* x = at<T>(p, r, col);
    Out* out = memory_of<Out>(p.square) + r * p.cols + col;
    const uint32_t* row_words = words ? words + (r - row) * kWordsStride : words;
    if (count % kGroup == 0) {
      encode_row<T, kTwosComplement>(p, f, s, x, row_words, blocks, x + kBlock * p.cols, out,
                                     statistics);
      continue;
    }
    std::memcpy(padded, x, static_cast<size_t>(count) * sizeof(T));
    std::memset(padded + count, 0, static_cast<size_t>(padded_blocks * kBlock - count) * sizeof(T));
    encode_row<T, kTwosComplement>(p, f, s, padded, row_words, padded_blocks, padded, padded_out,
                                   statistics);
    std::memcpy(out, padded_out, static_cast<size_t>(count) * sizeof(Out));
  }
}

/// Calls f with a null pointer to the type of the target's memory.
template <class T, class F>
HWY_INLINE void with_memory_type(const QuantizeTarget& target, F f) {
  if constexpr (!std::is_same_v<T, Float16>) {
    if (target.values) return f(static_cast<T*>(nullptr));
  }
  f(static_cast<uint8_t*>(nullptr));
}

template <class T, bool kTwosComplement>
void quantize_piece(const QuantizeProblem& p, PieceRange piece, QuantizeCounts& counts) {
  using U = std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>;
  const VectorEncoder f(p.spec);
  const int64_t row = piece.row, rows = piece.rows, col = piece.col, cols = piece.cols;
  const bool down = p.column.wanted() || p.square.wanted();
  HWY_ALIGN U maxima[kChunk];
  if (down) std::memset(maxima, 0, sizeof(maxima));
  // A piece that is read twice needs all its words; otherwise one chunk of words is enough.
  uint32_t* memory = p.stochastic ? words_memory(down ? rows : 1) : nullptr;
  const uint32_t* words = memory ? memory + kWordsMargin : memory;
  with_memory_type<T>(p.row, [&](auto* type) {
    using Out = std::remove_pointer_t<decltype(type)>;
    for (int64_t r = row; r < row + rows; ++r) {
      const int64_t place = down ? (r - row) * kWordsStride : 0;
      for (int64_t i = 0; i < cols; i += kChunk) {
        const int64_t count = std::min(kChunk, cols - i);
        if (memory) fill_words(p, r, col + i, count, memory + place);
        if (p.row.wanted())
          quantize_row<T, kTwosComplement, Out>(p, f, r, col + i, count,
                                                words ? words + place : words, counts.row);
      }
      if (down) raise_maxima(at<T>(p, r, col), cols, maxima);
    }
  });
  if (p.column.wanted()) {
    const T* x = at<T>(p, row, col);
    // The next piece is to the right of this one, or begins the next strip.
    const T* next = col + cols < p.cols ? x + cols : x + kBlock * p.cols - col;
    with_memory_type<T>(p.column, [&](auto* memory) {
      using Out = std::remove_pointer_t<decltype(memory)>;
      for (int64_t i = 0; i < cols; i += kPacked) {
        // Each tile prefetches 1/32 of the next piece: a part of one row.
        const int64_t ahead =
            std::min<int64_t>(i / kPacked * kBlock / ceil_div(kChunk, kPacked), kBlock - 1);
        quantize_tile<T, U, kTwosComplement, Out>(
            p, f, {row, rows, col + i, std::min(kPacked, cols - i)}, maxima + i,
            words ? words + i : words, next + ahead * p.cols, counts.column);
      }
    });
  }
  if (p.square.wanted()) {
    with_memory_type<T>(p.square, [&](auto* memory) {
      using Out = std::remove_pointer_t<decltype(memory)>;
      quantize_squares<T, U, kTwosComplement, Out>(p, f, piece, maxima, words, counts.square);
    });
  }
}

template <class T>
void run(const QuantizeProblem& p, PieceRange piece, QuantizeCounts& counts) {
  return p.spec.twos_complement ? quantize_piece<T, true>(p, piece, counts)
                                : quantize_piece<T, false>(p, piece, counts);
}

void QuantizePiece(const QuantizeProblem& p, PieceRange piece, QuantizeCounts& counts) {
  if (p.by_codec) return quantize_piece_exactly(p, piece, counts);
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

namespace {

/// Division of a matrix into pieces, and of the pieces into parts. A part is the work that a thread
/// fetches at a time: `grain` items. Items are pieces, or whole strips if rows have to be made.
struct Tiling {
  int64_t width, height, across, items, grain, parts;

  Tiling(const QuantizeProblem& p, bool made) {
    constexpr int64_t kPieceElements = kBlock * kPieceColumns;
    const bool down = p.column.wanted() || p.square.wanted();
    width = std::max<int64_t>(1, std::min(p.cols, down ? kPieceColumns : kPieceElements));
    height = down ? kBlock : std::max<int64_t>(1, kPieceElements / width);
    across = (p.cols + width - 1) / width;
    const int64_t strips = (p.rows + height - 1) / height;
    items = p.cols == 0 ? 0 : made ? strips : strips * across;
    const int64_t item_width = std::max<int64_t>(1, made ? p.cols : width);
    grain = std::max<int64_t>(1, kPieceElements / (item_width * height));
    parts = (items + grain - 1) / grain;
  }
};

void quantize_part(const QuantizeCall& call, const Tiling& tiling, int64_t part,
                   QuantizeCounts& counts) {
  const QuantizeProblem& p = call.problem;
  const auto quantize_piece = [&](const QuantizeProblem& problem, int64_t row, int64_t col) {
    HWY_DYNAMIC_DISPATCH(QuantizePiece)
    (problem,
     {row, std::min(tiling.height, p.rows - row), col, std::min(tiling.width, p.cols - col)},
     counts);
  };
  const auto strip_floats = static_cast<size_t>(tiling.height * p.cols) *
                                (p.source == Source::kFloat32 ? 4 : 2) / sizeof(float) +
                            1;
  const int64_t end = std::min(tiling.items, (part + 1) * tiling.grain);
  for (int64_t item = part * tiling.grain; item < end; ++item) {
    if (!call.make) {
      quantize_piece(p, item / tiling.across * tiling.height, item % tiling.across * tiling.width);
      continue;
    }
    QuantizeProblem made = p;
    made.first_row = item * tiling.height;
    void* strip = ops::workspace(ops::Workspace::kMadeRows, strip_floats);
    call.make(made.first_row, std::min(tiling.height, p.rows - made.first_row), strip);
    made.x = strip;
    for (int64_t col = 0; col < p.cols; col += tiling.width)
      quantize_piece(made, made.first_row, col);
  }
}

}  // namespace

std::vector<QuantizeCounts> quantize_blocks(std::span<const QuantizeCall> calls) {
  std::vector<Tiling> tilings;
  std::vector<int64_t> first = {0};  // number of the first part of each call
  for (const QuantizeCall& call : calls) {
    tilings.emplace_back(call.problem, call.make != nullptr);
    first.push_back(first.back() + tilings.back().parts);
  }
  std::vector<QuantizeCounts> of_parts(static_cast<size_t>(first.back()));
  parallel_pieces(first.back(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const auto call =
          static_cast<size_t>(std::ranges::upper_bound(first, part) - first.begin() - 1);
      quantize_part(calls[call], tilings[call], part - first[call],
                    of_parts[static_cast<size_t>(part)]);
    }
  });
  std::vector<QuantizeCounts> sums(calls.size());
  for (size_t call = 0; call < calls.size(); ++call) {
    for (int64_t part = first[call]; part < first[call + 1]; ++part)
      sums[call].add(of_parts[static_cast<size_t>(part)]);
  }
  return sums;
}

QuantizeCounts quantize_blocks(const QuantizeProblem& problem, const RowMaker& make) {
  const QuantizeCall call{.problem = problem, .make = make};
  return quantize_blocks({&call, 1})[0];
}

}  // namespace dovetail::mx
#endif
