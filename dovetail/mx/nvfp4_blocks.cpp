#include <algorithm>
#include <bit>
#include <vector>

#include "dovetail/base/threads.h"
#include "dovetail/mx/nvfp4_simd.h"

namespace dovetail::mx {

namespace {

void raise(const Nvfp4Problem& p, PieceRange piece, bool finite_only, uint32_t* most) {
  std::fill_n(most, piece.cols + Nvfp4Scales::kPadding, 0);
  return p.by_codec ? raise_nvfp4_maxima(p, piece, finite_only, most)
                    : raise_nvfp4_maxima_vectors(p, piece, finite_only, most);
}

/// Replaces maxima of columns by maxima of blocks of `width` columns. Returns the number of blocks.
int64_t merge_columns(int64_t width, int64_t cols, uint32_t* most) {
  if (width == 1) return cols;
  const int64_t blocks = (cols + width - 1) / width;
  for (int64_t block = 0; block < blocks; ++block) {
    const uint32_t* begin = most + block * width;
    uint32_t largest = 0;
    for (int64_t i = 0; i < width; ++i) largest = std::max(largest, begin[i]);
    most[block] = largest;
  }
  return blocks;
}

/// Repeats entries of blocks for each of their `width` columns.
void spread(int64_t width, int64_t blocks, float* of) {
  if (width == 1) return;
  for (int64_t block = blocks - 1; block >= 0; --block)
    std::fill_n(of + block * width, width, of[block]);
}

/// Quantizes a piece of whole blocks.
void quantize_piece(const Nvfp4Problem& p, PieceRange piece, Nvfp4Scales& s,
                    Statistics& statistics) {
  raise(p, piece, /*finite_only=*/false, s.most);
  int64_t blocks = merge_columns(p.col_block, piece.cols, s.most);
  if (p.saturate_non_finite) {
    statistics.non_finite_blocks += std::count_if(
        s.most, s.most + blocks, [](uint32_t most) { return most >= bits::kInfinity; });
    raise(p, piece, /*finite_only=*/true, s.most);
    blocks = merge_columns(p.col_block, piece.cols, s.most);
  }
  const int64_t scale_cols = (p.cols + p.col_block - 1) / p.col_block;
  uint8_t* bytes = p.scales + piece.row / p.row_block * scale_cols + piece.col / p.col_block;
  statistics.elements += piece.rows * piece.cols;
  p.by_codec ? choose_nvfp4_scales(p, s, blocks, bytes, statistics)
             : choose_nvfp4_scales_vectors(p, s, blocks, bytes, statistics);
  spread(p.col_block, blocks, s.factor);
  spread(p.col_block, blocks, s.scale);
  const int64_t columns = blocks * p.col_block;
  std::fill_n(s.factor + columns, kPieceColumns + Nvfp4Scales::kPadding - columns, 0.0F);
  std::fill_n(s.scale + columns, kPieceColumns + Nvfp4Scales::kPadding - columns, 0.0F);
  p.by_codec ? encode_nvfp4_piece(p, piece, s, statistics)
             : encode_nvfp4_piece_vectors(p, piece, s, statistics);
}

/// Calls visit(part, piece) on all threads, for pieces of whole blocks. `parts` counts parts from
/// 0. Their number does not depend on the number of threads.
template <class Visit>
void for_each_piece(const Nvfp4Problem& p, int64_t strip, int64_t grain, Visit visit) {
  const int64_t chunks = (p.cols + kPieceColumns - 1) / kPieceColumns,
                strips = (p.rows + strip - 1) / strip;
  parallel_pieces(strips * chunks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t row = item / chunks * strip, col = item % chunks * kPieceColumns;
      visit(static_cast<size_t>(begin / grain), PieceRange{row, std::min(strip, p.rows - row), col,
                                                           std::min(kPieceColumns, p.cols - col)});
    }
  });
}

struct Parts {
  int64_t strip, grain;
  size_t count;
};
Parts parts_of(const Nvfp4Problem& p, int64_t strip) {
  constexpr int64_t kGrainElements = 65536;
  const int64_t chunks = (p.cols + kPieceColumns - 1) / kPieceColumns,
                items = (p.rows + strip - 1) / strip * chunks,
                grain = std::max<int64_t>(
                    1, kGrainElements / (strip * std::min(p.cols, kPieceColumns)));
  return {strip, grain, static_cast<size_t>((items + grain - 1) / grain)};
}

}  // namespace

float largest_finite(const Nvfp4Problem& p) {
  if (p.rows == 0 || p.cols == 0) return 0;
  const Parts parts = parts_of(p, kNvfp4Block);
  std::vector<uint32_t> most(parts.count);
  for_each_piece(p, parts.strip, parts.grain, [&](size_t part, PieceRange piece) {
    alignas(64) uint32_t columns[kPieceColumns + Nvfp4Scales::kPadding];
    raise(p, piece, /*finite_only=*/true, columns);
    most[part] = std::max(most[part], *std::max_element(columns, columns + piece.cols));
  });
  return std::bit_cast<float>(*std::max_element(most.begin(), most.end()));
}

Statistics quantize_nvfp4_blocks(const Nvfp4Problem& p) {
  if (p.rows == 0 || p.cols == 0) return {};
  const Parts parts = parts_of(p, p.row_block);
  std::vector<Statistics> counts(parts.count);
  for_each_piece(p, parts.strip, parts.grain, [&](size_t part, PieceRange piece) {
    Nvfp4Scales scales;
    quantize_piece(p, piece, scales, counts[part]);
  });
  Statistics sum;
  for (const Statistics& part : counts) sum.add(part);
  return sum;
}

}  // namespace dovetail::mx
