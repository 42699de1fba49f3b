// Loops over the elements of a row of any width, in blocks of SIMD vectors that stay in registers.
// A vector has kLanes float32 elements (simd_math_inl.h). Compiled once per instruction set:
// included by *_simd.cpp after simd_config.h, through foreach_target.
#if defined(DOVETAIL_EMBEDDING_COLUMNS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DOVETAIL_EMBEDDING_COLUMNS_INL_H_
#undef DOVETAIL_EMBEDDING_COLUMNS_INL_H_
#else
#define DOVETAIL_EMBEDDING_COLUMNS_INL_H_
#endif

#include <cstdint>

#include "dovetail/ops/simd_math_inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail::embedding {
namespace HWY_NAMESPACE {

using namespace ops::HWY_NAMESPACE;

/// Part of a row: kVectors vectors from element `column` on. The last vector has `last` elements,
/// all others kLanes.
template <int kVectors>
struct Block {
  static constexpr int kCount = kVectors;
  int64_t column, last = kLanes;

  /// Returns the number of elements in vector v.
  int64_t left(int v) const { return v == kVectors - 1 ? last : kLanes; }
};

/// Calls body(Block) for all blocks of a row of `dim` elements. A block has 8, 4, 2 or 1 vectors,
/// the widest first.
template <class Body>
HWY_INLINE void each_block(int64_t dim, const Body& body) {
  int64_t column = 0;
  for (; column + 8 * kLanes <= dim; column += 8 * kLanes) body(Block<8>{column});
  if (column + 4 * kLanes <= dim) {
    body(Block<4>{column});
    column += 4 * kLanes;
  }
  if (column + 2 * kLanes <= dim) {
    body(Block<2>{column});
    column += 2 * kLanes;
  }
  for (; column < dim; column += kLanes)
    body(Block<1>{column, dim - column < kLanes ? dim - column : kLanes});
}

/// Adds the block's elements of the row `from` to `sum`: sum[v] = sum[v] + scale * vector v.
template <class B>
HWY_INLINE void add_scaled(const B& block, float scale, const float* from,
                           FloatVector (&sum)[B::kCount]) {
  const FloatVector factor = splat(scale);
  for (int v = 0; v < B::kCount; ++v)
    sum[v] = hn::MulAdd(factor, load(from + block.column + v * kLanes, block.left(v)), sum[v]);
}

HWY_INLINE void prefetch_row(const float* row, int64_t dim) {
  constexpr int64_t kLine = 16;
  for (int64_t i = 0; i < dim; i += kLine) hwy::Prefetch(row + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace dovetail::embedding
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
