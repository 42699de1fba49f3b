#include "dovetail/ops/simd_config.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dovetail/ops/norm_simd.cpp"
#include "hwy/foreach_target.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "dovetail/base/threads.h"
#include "dovetail/ops/norm_simd.h"
#include "dovetail/ops/simd_math_inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail::ops {
namespace HWY_NAMESPACE {

/// Returns the sum over the row of f(x[i .. i + lanes)). Two accumulators hide the latency of the
/// addition. f must return zero beyond the end.
template <class T, class F>
HWY_INLINE float sum_row(const T* x, int64_t width, F f) {
  FloatVector even = splat(0.0f), odd = splat(0.0f);
  int64_t i = 0;
  for (; i + 2 * kLanes <= width; i += 2 * kLanes) {
    even = hn::Add(even, f(load(x + i)));
    odd = hn::Add(odd, f(load(x + i + kLanes)));
  }
  for (; i + kLanes <= width; i += kLanes) even = hn::Add(even, f(load(x + i)));
  float rest = 0.0f;
  if (i < width) {
    HWY_ALIGN float values[kLanes];
    store(f(load(x + i, width - i)), values);
    for (int64_t j = 0; j < width - i; ++j) rest += values[j];
  }
  return sum_lanes(hn::Add(even, odd)) + rest;
}

template <class T>
void forward_row(const NormProblem& p, int64_t row, T* y_data) {
  const T* x = static_cast<const T*>(p.x) + row * p.width;
  T* y = y_data + row * p.width;
  const float inverse_width = 1.0f / static_cast<float>(p.width);
  float mean = 0.0f;
  if (p.centered) {
    mean = sum_row(x, p.width, [](FloatVector v) { return v; }) * inverse_width;
    p.mean[row] = mean;
  }
  const FloatVector center = splat(mean);
  const float square = sum_row(x, p.width, [center](FloatVector v) {
    const FloatVector c = hn::Sub(v, center);
    return hn::Mul(c, c);
  });
  const float rstd = 1.0f / std::sqrt(square * inverse_width + p.eps);
  p.rstd[row] = rstd;
  const FloatVector scale = splat(rstd);
  for (int64_t i = 0; i < p.width; i += kLanes) {
    const int64_t left = p.width - i;
    FloatVector value =
        hn::Mul(hn::Mul(hn::Sub(load(x + i, left), center), scale), load(p.weight + i, left));
    if (p.bias) value = hn::Add(value, load(p.bias + i, left));
    store(value, y + i, left);
  }
}

/// Adds the row's part of the weight gradient to dweight (and dbias). Writes dx = rstd * (g -
/// [mean(g)] - xhat * mean(g * xhat)), with g = dy * weight and xhat = (x - mean) * rstd.
template <class T>
void backward_row(const NormProblem& p, int64_t row, const T* dy_data, T* dx_data, float* dweight,
                  float* dbias) {
  const T* x = static_cast<const T*>(p.x) + row * p.width;
  const T* dy = dy_data + row * p.width;
  T* dx = dx_data + row * p.width;
  const FloatVector center = splat(p.centered ? p.mean[row] : 0.0f), scale = splat(p.rstd[row]);
  FloatVector sum_g = splat(0.0f), sum_gx = splat(0.0f);
  for (int64_t i = 0; i < p.width; i += kLanes) {
    // Elements of dy beyond the end read as zero, so they add nothing.
    const int64_t left = p.width - i;
    const FloatVector grad = load(dy + i, left),
                      xhat = hn::Mul(hn::Sub(load(x + i, left), center), scale);
    const FloatVector g = hn::Mul(grad, load(p.weight + i, left));
    sum_g = hn::Add(sum_g, g);
    sum_gx = hn::MulAdd(g, xhat, sum_gx);
    store(hn::MulAdd(grad, xhat, load(dweight + i, left)), dweight + i, left);
    if (dbias) store(hn::Add(grad, load(dbias + i, left)), dbias + i, left);
  }
  const float inverse_width = 1.0f / static_cast<float>(p.width);
  const FloatVector mean_g = splat(p.centered ? sum_lanes(sum_g) * inverse_width : 0.0f);
  const FloatVector mean_gx = splat(sum_lanes(sum_gx) * inverse_width);
  for (int64_t i = 0; i < p.width; i += kLanes) {
    const int64_t left = p.width - i;
    const FloatVector xhat = hn::Mul(hn::Sub(load(x + i, left), center), scale);
    const FloatVector g = hn::Sub(hn::Mul(load(dy + i, left), load(p.weight + i, left)), mean_g);
    store(hn::Mul(scale, hn::NegMulAdd(xhat, mean_gx, g)), dx + i, left);
  }
}

template <class T>
void forward_rows(const NormProblem& p, void* y) {
  const int64_t grain = std::max<int64_t>(1, 8192 / p.width);
  parallel_pieces(p.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) forward_row(p, row, static_cast<T*>(y));
  });
}

/// Computes to[i] = sum over the parts, in order, of from[part * width + i].
void sum_parts(const float* from, int64_t parts, int64_t width, float* to) {
  for (int64_t i = 0; i < width; i += kLanes) {
    FloatVector sum = splat(0.0f);
    for (int64_t part = 0; part < parts; ++part)
      sum = hn::Add(sum, load(from + part * width + i, width - i));
    store(sum, to + i, width - i);
  }
}

template <class T>
void backward_rows(const NormProblem& p, const void* dy, void* dx, float* dweight, float* dbias) {
  const int64_t grain = std::max<int64_t>(16, (p.rows + 63) / 64),
                parts = (p.rows + grain - 1) / grain;
  const size_t size = static_cast<size_t>(parts * p.width);
  std::vector<float> dweight_parts(size), dbias_parts(dbias ? size : 0);
  parallel_pieces(p.rows, grain, [&](int64_t begin, int64_t end) {
    const int64_t offset = begin / grain * p.width;
    for (int64_t row = begin; row < end; ++row)
      backward_row(p, row, static_cast<const T*>(dy), static_cast<T*>(dx),
                   dweight_parts.data() + offset, dbias ? dbias_parts.data() + offset : nullptr);
  });
  sum_parts(dweight_parts.data(), parts, p.width, dweight);
  if (dbias) sum_parts(dbias_parts.data(), parts, p.width, dbias);
}

void NormForward(const NormProblem& p, void* y) {
  return p.storage == Storage::kFloat32 ? forward_rows<float>(p, y) : forward_rows<BFloat16>(p, y);
}

void NormBackward(const NormProblem& p, const void* dy, void* dx, float* dweight, float* dbias) {
  return p.storage == Storage::kFloat32 ? backward_rows<float>(p, dy, dx, dweight, dbias)
                                        : backward_rows<BFloat16>(p, dy, dx, dweight, dbias);
}

}  // namespace HWY_NAMESPACE
}  // namespace dovetail::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dovetail::ops {

HWY_EXPORT(NormForward);
HWY_EXPORT(NormBackward);

void norm_forward(const NormProblem& problem, void* y) {
  HWY_DYNAMIC_DISPATCH(NormForward)(problem, y);
}

void norm_backward(const NormProblem& problem, const void* dy, void* dx, float* dweight,
                   float* dbias) {
  HWY_DYNAMIC_DISPATCH(NormBackward)(problem, dy, dx, dweight, dbias);
}

}  // namespace dovetail::ops
#endif
