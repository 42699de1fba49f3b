#include "dovetail/ops/simd_config.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dovetail/embedding/pack/pool_simd.cpp"
#include "hwy/foreach_target.h"

#include <algorithm>
#include <cstdint>

#include "dovetail/embedding/pack/columns_inl.h"
#include "dovetail/embedding/pack/pool_simd.h"
#include "dovetail/embedding/pack/row_format_inl.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail::embedding {
namespace HWY_NAMESPACE {

/// Prefetch distances: bags ahead of the bag that is summed, rows ahead of the row that is copied.
constexpr int64_t kAhead = 12, kCopyAhead = 24;
/// Rows of a bag that are prefetched ahead. Later rows are prefetched while these are summed.
constexpr int64_t kRowsAhead = 4;

HWY_INLINE void prefetch_bag(const PoolProblem& p, const PoolFeature& feature, const int64_t* bag) {
  const int64_t end = std::min(bag[1], bag[0] + kRowsAhead);
  for (int64_t i = bag[0]; i < end; ++i)
    prefetch_bytes(feature.rows + p.values[i] * feature.row_bytes, feature.row_bytes);
}

template <class Row>
HWY_INLINE void pool_bag(const PoolProblem& p, const PoolFeature& feature, const int64_t* bag,
                         float* y) {
  const float mean =
      feature.mean && bag[1] > bag[0] ? 1.0f / static_cast<float>(bag[1] - bag[0]) : 1.0f;
  each_block(feature.dim, [&](const auto& block) {
    constexpr int kCount = std::decay_t<decltype(block)>::kCount;
    FloatVector sum[kCount];
    for (int v = 0; v < kCount; ++v) sum[v] = splat(0.0f);
    for (int64_t i = bag[0]; i < bag[1]; ++i) {
      if (bag[1] - i > kRowsAhead)
        prefetch_bytes(feature.rows + p.values[i + kRowsAhead] * feature.row_bytes,
                       feature.row_bytes);
      const Row row(feature.rows + p.values[i] * feature.row_bytes, feature.dim);
      const FloatVector weight = splat(p.weights ? p.weights[i] : 1.0f);
      for (int v = 0; v < kCount; ++v)
        sum[v] = hn::MulAdd(weight, row.get(block.column + v * kLanes, block.left(v)), sum[v]);
    }
    for (int v = 0; v < kCount; ++v) {
      const FloatVector result = hn::Mul(sum[v], splat(mean));
      float* to = y + block.column + v * kLanes;
      if (p.stream) {
        hn::Stream(result, FloatTag(), to);
      } else {
        store(result, to, block.left(v));
      }
    }
  });
}

/// Copies rows into y, one for each sample: bags of one id without weights.
template <class Row, bool kStream>
HWY_INLINE void copy_rows(const PoolFeature& feature, const int64_t* ids, int64_t count, float* y,
                          int64_t columns) {
  const char* rows = feature.rows;
  const int64_t bytes = feature.row_bytes;
  for (int64_t i = 0; i < std::min(kCopyAhead, count); ++i)
    prefetch_bytes(rows + ids[i] * bytes, bytes);
  for (int64_t i = 0; i < count; ++i) {
    if (i + kCopyAhead < count) prefetch_bytes(rows + ids[i + kCopyAhead] * bytes, bytes);
    const Row row(rows + ids[i] * bytes, feature.dim);
    float* to = y + i * columns;
    each_block(feature.dim, [&](const auto& block) {
      for (int v = 0; v < std::decay_t<decltype(block)>::kCount; ++v) {
        const int64_t column = block.column + v * kLanes;
        // Add 0, since every sum begins with 0: this turns -0 into 0.
        const FloatVector value = hn::Add(row.get(column, block.left(v)), splat(0.0f));
        if constexpr (kStream) {
          hn::Stream(value, FloatTag(), to + column);
        } else {
          store(value, to + column, block.left(v));
        }
      }
    });
  }
}

/// Returns true if bags [0, count) hold one id each.
HWY_INLINE bool are_single(const int64_t* bags, int64_t count) {
  uint64_t uneven = 0;
  for (int64_t b = 0; b < count; ++b) uneven |= static_cast<uint64_t>(bags[b + 1] - bags[b]) ^ 1;
  return uneven == 0;
}

template <class Row>
void pool_rows(const PoolProblem& p, int64_t f, int64_t begin, int64_t end) {
  const PoolFeature& feature = p.features[static_cast<size_t>(f)];
  const int64_t* bags = p.offsets + f * p.samples;
  if (!p.weights && are_single(bags + begin, end - begin)) {
    const auto copy = p.stream ? copy_rows<Row, true> : copy_rows<Row, false>;
    copy(feature, p.values + bags[begin], end - begin, p.y + begin * p.columns + feature.column,
         p.columns);
    if (p.stream) hwy::FlushStream();
    return;
  }
  for (int64_t b = begin; b < std::min(begin + kAhead, end); ++b)
    prefetch_bag(p, feature, bags + b);
  for (int64_t b = begin; b < end; ++b) {
    if (b + kAhead < end) prefetch_bag(p, feature, bags + b + kAhead);
    pool_bag<Row>(p, feature, bags + b, p.y + b * p.columns + feature.column);
  }
  if (p.stream) hwy::FlushStream();
}

void PoolSamples(const PoolProblem& p, int64_t f, int64_t begin, int64_t end) {
  with_rows(p.dtype, [&]<class Row>(Row*) { pool_rows<Row>(p, f, begin, end); });
}

}  // namespace HWY_NAMESPACE
}  // namespace dovetail::embedding
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dovetail::embedding {

HWY_EXPORT(PoolSamples);

void pool_samples(const PoolProblem& problem, int64_t feature, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(PoolSamples)(problem, feature, begin, end);
}

}  // namespace dovetail::embedding
#endif
