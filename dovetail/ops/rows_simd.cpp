#include "dovetail/ops/simd_config.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dovetail/ops/rows_simd.cpp"
#include "hwy/foreach_target.h"

#include <algorithm>
#include <cstdint>

#include "dovetail/base/threads.h"
#include "dovetail/ops/rows_simd.h"
#include "dovetail/ops/simd_math_inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail::ops {
namespace HWY_NAMESPACE {

/// Calls body(row) for all rows, in pieces of some tens of kilobytes.
template <class Body>
void each_row(int64_t rows, int64_t width, const Body& body) {
  constexpr int64_t kPiece = 16384;
  parallel_pieces(rows, std::max<int64_t>(1, kPiece / std::max<int64_t>(1, width)),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t row = begin; row < end; ++row) body(row);
                  });
}

template <class T>
void add(const AddRowsProblem& p) {
  each_row(p.rows, p.width, [&p](int64_t row) {
    const T* x = static_cast<const T*>(p.x) + row * p.width;
    float* c = p.c + p.row[row] * p.ldc;
    const FloatVector weight = splat(p.weight ? p.weight[row] : 1.0f);
    for (int64_t i = 0; i < p.width; i += kLanes) {
      const int64_t left = p.width - i;
      store(hn::MulAdd(weight, load(x + i, left), load(c + i, left)), c + i, left);
    }
  });
}

template <class T>
void gather(const GatherRowsProblem& p) {
  each_row(p.rows, p.width, [&p](int64_t row) {
    const T* x = static_cast<const T*>(p.x) + p.row[row] * p.width;
    const T* other = p.other ? static_cast<const T*>(p.other) + row * p.width : nullptr;
    T* y = static_cast<T*>(p.y) + row * p.width;
    const FloatVector weight = splat(p.weight ? p.weight[row] : 1.0f);
    FloatVector sum = splat(0.0f);
    for (int64_t i = 0; i < p.width; i += kLanes) {
      const int64_t left = p.width - i;
      const FloatVector value = load(x + i, left);
      if (other) sum = hn::MulAdd(value, load(other + i, left), sum);
      store(hn::Mul(weight, value), y + i, left);
    }
    if (other) p.dots[row] = sum_lanes(sum);
  });
}

template <class T>
void weigh(const WeighRowsProblem& p) {
  each_row(p.rows, p.width, [&p](int64_t row) {
    T *y = static_cast<T*>(p.y) + row * p.width, *dy = static_cast<T*>(p.dy) + row * p.width;
    const FloatVector weight = splat(p.weight[row]);
    FloatVector sum = splat(0.0f);
    for (int64_t i = 0; i < p.width; i += kLanes) {
      const int64_t left = p.width - i;
      const FloatVector value = load(y + i, left), grad = load(dy + i, left);
      sum = hn::MulAdd(value, grad, sum);
      store(hn::Mul(weight, value), y + i, left);
      store(hn::Mul(weight, grad), dy + i, left);
    }
    p.dweight[row] = sum_lanes(sum);
  });
}

void AddRows(const AddRowsProblem& p) {
  return p.storage == Storage::kFloat32 ? add<float>(p) : add<BFloat16>(p);
}
void GatherRows(const GatherRowsProblem& p) {
  return p.storage == Storage::kFloat32 ? gather<float>(p) : gather<BFloat16>(p);
}
void WeighRows(const WeighRowsProblem& p) {
  return p.storage == Storage::kFloat32 ? weigh<float>(p) : weigh<BFloat16>(p);
}

}  // namespace HWY_NAMESPACE
}  // namespace dovetail::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dovetail::ops {

HWY_EXPORT(AddRows);
HWY_EXPORT(GatherRows);
HWY_EXPORT(WeighRows);

void add_rows(const AddRowsProblem& problem) { HWY_DYNAMIC_DISPATCH(AddRows)(problem); }
void gather_rows(const GatherRowsProblem& problem) { HWY_DYNAMIC_DISPATCH(GatherRows)(problem); }
void weigh_rows(const WeighRowsProblem& problem) { HWY_DYNAMIC_DISPATCH(WeighRows)(problem); }

}  // namespace dovetail::ops
#endif
