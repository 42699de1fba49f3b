#include "dovetail/ops/simd_config.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dovetail/embedding/pack/update_simd.cpp"
#include "hwy/foreach_target.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "dovetail/embedding/pack/columns_inl.h"
#include "dovetail/embedding/pack/row_format_inl.h"
#include "dovetail/embedding/pack/update_simd.h"
#include "dovetail/ops/workspace.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail::embedding {
namespace HWY_NAMESPACE {

/// Occurrences whose gradient, row and state are prefetched ahead.
constexpr int64_t kAhead = 12;

template <OptimizerKind kKind>
HWY_INLINE void prefetch_occurrence(const UpdateProblem& p, int64_t i) {
  prefetch_row(p.occurrences[index_of(p.keys[i])].gradient, p.dim);
  const auto row = static_cast<int64_t>(row_of(p.keys[i]));
  if (i > 0 && row == static_cast<int64_t>(row_of(p.keys[i - 1]))) return;
  prefetch_bytes(p.rows + row * p.row_bytes, p.row_bytes);
  if (kKind != OptimizerKind::kSgd) prefetch_row(p.state + row * p.state_width, p.state_width);
}

/// Sets `sum` to G without decay, over occurrences [begin, end).
template <OptimizerKind kKind>
HWY_INLINE void sum_gradients(const UpdateProblem& p, int64_t begin, int64_t end,
                              float* HWY_RESTRICT sum) {
  each_block(p.dim, [&](const auto& block) {
    constexpr int kCount = std::decay_t<decltype(block)>::kCount;
    FloatVector total[kCount];
    for (int v = 0; v < kCount; ++v) total[v] = splat(0.0f);
    for (int64_t i = begin; i < end; ++i) {
      if (block.column == 0 && i + kAhead < p.count) prefetch_occurrence<kKind>(p, i + kAhead);
      const Occurrence& occurrence = p.occurrences[index_of(p.keys[i])];
      add_scaled(block, occurrence.scale, occurrence.gradient, total);
    }
    for (int v = 0; v < kCount; ++v) store(total[v], sum + block.column + v * kLanes);
  });
}

/// Returns one updated vector of a row. `state` points to its part of the row's state.
template <OptimizerKind kKind>
HWY_INLINE FloatVector stepped(FloatVector w, FloatVector g, float* state, int64_t dim,
                               int64_t left, const UpdateScalars& c, FloatVector row_rate) {
  if constexpr (kKind == OptimizerKind::kSgd || kKind == OptimizerKind::kRowWiseAdagrad) {
    return hn::NegMulAdd(row_rate, g, w);
  } else if constexpr (kKind == OptimizerKind::kMomentum) {
    const FloatVector u = hn::MulAdd(splat(c.momentum), load(state, left), g);
    store(u, state, left);
    return hn::NegMulAdd(row_rate, u, w);
  } else if constexpr (kKind == OptimizerKind::kAdagrad) {
    const FloatVector s = hn::MulAdd(g, g, load(state, left));
    store(s, state, left);
    return hn::NegMulAdd(row_rate, hn::Div(g, hn::Add(hn::Sqrt(s), splat(c.eps))), w);
  } else if constexpr (kKind == OptimizerKind::kRowWiseAdam) {
    const FloatVector m0 = load(state, left);
    const FloatVector m = hn::MulAdd(splat(c.rest1), hn::Sub(g, m0), m0);
    store(m, state, left);
    return hn::NegMulAdd(row_rate, m, w);
  } else if constexpr (kKind == OptimizerKind::kFtrl) {
    const FloatVector z0 = load(state, left), n0 = load(state + dim, left);
    const FloatVector square = hn::Mul(g, g), n = hn::Add(n0, square), root = hn::Sqrt(n);
    // sqrt(n) - sqrt(n0) without its cancellation.
    const FloatVector grown =
        hn::Div(square, hn::Max(hn::Add(root, hn::Sqrt(n0)), splat(kLeastRoot)));
    const FloatVector z = hn::NegMulAdd(hn::Div(grown, row_rate), w, hn::Add(z0, g));
    store(z, state, left);
    store(n, state + dim, left);
    const FloatVector beyond = hn::Max(hn::Sub(hn::Abs(z), splat(c.l1)), splat(0.0f));
    const FloatVector divisor =
        hn::Add(hn::Div(hn::Add(splat(c.beta), root), row_rate), splat(c.l2));
    return hn::CopySign(hn::Div(beyond, hn::Max(divisor, splat(kLeastRoot))), hn::Neg(z));
  } else {
    const FloatVector m0 = load(state, left), v0 = load(state + dim, left);
    const FloatVector m = hn::MulAdd(splat(c.rest1), hn::Sub(g, m0), m0);
    const FloatVector v = hn::MulAdd(splat(c.rest2), hn::Sub(hn::Mul(g, g), v0), v0);
    store(m, state, left);
    store(v, state + dim, left);
    return hn::NegMulAdd(row_rate, hn::Div(m, hn::Add(hn::Sqrt(v), splat(c.eps))), w);
  }
}

/// Adds decay, so that `sum` is G. Fills its last vector up with zeros. Returns the squares of G,
/// to be summed over the lanes.
HWY_INLINE FloatVector decay_and_square(float* HWY_RESTRICT sum, const float* HWY_RESTRICT w,
                                        int64_t dim, float decay) {
  FloatVector squares = splat(0.0f);
  for (int64_t i = 0; i < dim; i += kLanes) {
    const FloatVector g = hn::MulAdd(splat(decay), load(w + i, dim - i), load(sum + i));
    store(g, sum + i);
    squares = hn::MulAdd(g, g, squares);
  }
  return squares;
}

/// Returns the rate of a row: lr, or lr / (sqrt(s) + eps) for kRowWiseAdagrad, after updating s.
/// For kRowWiseAdam, v takes the place of s.
template <OptimizerKind kKind>
HWY_INLINE float rate_of_row(FloatVector squares, float* state, int64_t dim,
                             const UpdateScalars& c) {
  if constexpr (kKind == OptimizerKind::kRowWiseAdagrad) {
    *state += sum_lanes(squares) / static_cast<float>(dim);
    return c.lr / (std::sqrt(*state) + c.eps);
  } else if constexpr (kKind == OptimizerKind::kRowWiseAdam) {
    float& v = state[dim];
    v += c.rest2 * (sum_lanes(squares) / static_cast<float>(dim) - v);
    return c.lr / (std::sqrt(v) + c.eps);
  } else {
    return c.lr;
  }
}

/// Returns true if G must be decayed or squared before the step.
template <OptimizerKind kKind>
HWY_INLINE bool needs_squares(const UpdateScalars& c) {
  return kKind == OptimizerKind::kRowWiseAdagrad || kKind == OptimizerKind::kRowWiseAdam ||
         c.weight_decay != 0;
}

/// Updates one row of kVectors vectors, which stay in registers throughout. Combines sum_gradients,
/// decay_and_square and the step, with the same bits.
template <OptimizerKind kKind, class Row, int kVectors>
HWY_INLINE void update_row(const UpdateProblem& p, int64_t begin, int64_t end,
                           const UpdateScalars& c) {
  const auto row = static_cast<int64_t>(row_of(p.keys[begin]));
  FloatVector g[kVectors], w[kVectors];
  for (int v = 0; v < kVectors; ++v) g[v] = splat(0.0f);
  for (int64_t i = begin; i < end; ++i) {
    if (i + kAhead < p.count) prefetch_occurrence<kKind>(p, i + kAhead);
    const Occurrence& occurrence = p.occurrences[index_of(p.keys[i])];
    add_scaled(Block<kVectors>{0}, occurrence.scale, occurrence.gradient, g);
  }
  char* stored = p.rows + row * p.row_bytes;
  const Row old(stored, p.dim);
  HWY_ALIGN float widened[kVectors * kLanes];
  float* to = std::is_same_v<Row, Float32Row> ? reinterpret_cast<float*>(stored) : widened;
  float* state = p.state + row * p.state_width;
  FloatVector squares = splat(0.0f);
  for (int v = 0; v < kVectors; ++v) {
    w[v] = old.get(v * kLanes, kLanes);
    if (needs_squares<kKind>(c)) {
      g[v] = hn::MulAdd(splat(c.weight_decay), w[v], g[v]);
      squares = hn::MulAdd(g[v], g[v], squares);
    }
  }
  const FloatVector rate = splat(rate_of_row<kKind>(squares, state, p.dim, c));
  for (int v = 0; v < kVectors; ++v)
    store(stepped<kKind>(w[v], g[v], state + v * kLanes, p.dim, kLanes, c, rate), to + v * kLanes,
          kLanes);
  if constexpr (!std::is_same_v<Row, Float32Row>)
    encode_elements(p.dtype, widened, p.dim, p.rounding.words(row), stored);
}

template <OptimizerKind kKind, class Row, int kVectors>
void update_in_registers(const UpdateProblem& p, const UpdateScalars& c) {
  for (int64_t begin = 0, end = 0; begin < p.count; begin = end) {
    const uint64_t row = row_of(p.keys[begin]);
    while (end < p.count && row_of(p.keys[end]) == row) ++end;
    update_row<kKind, Row, kVectors>(p, begin, end, c);
  }
}

template <OptimizerKind kKind, class Row>
void update(const UpdateProblem& p, const UpdateScalars& c) {
  constexpr bool kInPlace = std::is_same_v<Row, Float32Row>;
  const int64_t padded = whole_vectors(p.dim);
  float* sum = ops::workspace(ops::Workspace::kRows, static_cast<size_t>(2 * padded));
  float* const widened = sum + padded;
  for (int64_t i = 0; i < std::min(kAhead, p.count); ++i) prefetch_occurrence<kKind>(p, i);
  if (p.dim == kLanes) return update_in_registers<kKind, Row, 1>(p, c);
  if (p.dim == 2 * kLanes) return update_in_registers<kKind, Row, 2>(p, c);
  if (p.dim == 4 * kLanes) return update_in_registers<kKind, Row, 4>(p, c);
  if (p.dim == 8 * kLanes) return update_in_registers<kKind, Row, 8>(p, c);
  for (int64_t begin = 0, end = 0; begin < p.count; begin = end) {
    const uint64_t row = row_of(p.keys[begin]);
    while (end < p.count && row_of(p.keys[end]) == row) ++end;
    sum_gradients<kKind>(p, begin, end, sum);
    char* stored = p.rows + static_cast<int64_t>(row) * p.row_bytes;
    float* w = kInPlace ? reinterpret_cast<float*>(stored) : widened;
    if constexpr (!kInPlace) decode_elements<Row>(stored, p.dim, w);
    float* state = p.state + static_cast<int64_t>(row) * p.state_width;
    const FloatVector squares =
        needs_squares<kKind>(c) ? decay_and_square(sum, w, p.dim, c.weight_decay) : splat(0.0f);
    const FloatVector rate = splat(rate_of_row<kKind>(squares, state, p.dim, c));
    for (int64_t i = 0; i < p.dim; i += kLanes) {
      const int64_t left = p.dim - i;
      store(stepped<kKind>(load(w + i, left), load(sum + i), state + i, p.dim, left, c, rate),
            w + i, left);
    }
    if constexpr (!kInPlace) encode_elements(p.dtype, w, p.dim, p.rounding.words(row), stored);
  }
}

template <class Row>
void update_as(const UpdateProblem& p, const UpdateScalars& c) {
  switch (c.kind) {
    case OptimizerKind::kSgd:
      return update<OptimizerKind::kSgd, Row>(p, c);
    case OptimizerKind::kMomentum:
      return update<OptimizerKind::kMomentum, Row>(p, c);
    case OptimizerKind::kAdagrad:
      return update<OptimizerKind::kAdagrad, Row>(p, c);
    case OptimizerKind::kRowWiseAdagrad:
      return update<OptimizerKind::kRowWiseAdagrad, Row>(p, c);
    case OptimizerKind::kAdam:
      return update<OptimizerKind::kAdam, Row>(p, c);
    case OptimizerKind::kRowWiseAdam:
      return update<OptimizerKind::kRowWiseAdam, Row>(p, c);
    case OptimizerKind::kFtrl:
      return update<OptimizerKind::kFtrl, Row>(p, c);
  }
}

void UpdateRows(const UpdateProblem& p, const UpdateScalars& c) {
  with_rows(p.dtype, [&]<class Row>(Row*) { update_as<Row>(p, c); });
}

}  // namespace HWY_NAMESPACE
}  // namespace dovetail::embedding
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dovetail::embedding {

HWY_EXPORT(UpdateRows);

void update_rows(const UpdateProblem& problem, const UpdateScalars& scalars) {
  HWY_DYNAMIC_DISPATCH(UpdateRows)(problem, scalars);
}

}  // namespace dovetail::embedding
#endif
