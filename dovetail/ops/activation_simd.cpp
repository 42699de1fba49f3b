#include "dovetail/ops/simd_config.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dovetail/ops/activation_simd.cpp"
#include "hwy/foreach_target.h"

#include <algorithm>
#include <cstdint>

#include "dovetail/base/threads.h"
#include "dovetail/ops/activation_simd.h"
#include "dovetail/ops/simd_math_inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dovetail::ops {
namespace HWY_NAMESPACE {

// tanh(u) = 2 sigmoid(2 u) - 1, so GELU's tanh form is x * sigmoid(kGeluScale * (x + kGeluCube
// x^3)). This form has no cancellation for x << 0.
constexpr float kGeluScale = 1.5957691216057308f;  // 2 sqrt(2 / pi)
constexpr float kGeluCube = 0.044715f;

struct Gelu {
  static FloatVector gate(FloatVector x) {
    const FloatVector cube = hn::MulAdd(hn::Mul(splat(kGeluCube), hn::Mul(x, x)), x, x);
    return sigmoid(hn::Mul(splat(kGeluScale), cube));
  }
  static FloatVector forward(FloatVector x) { return hn::Mul(x, gate(x)); }
  static FloatVector backward(FloatVector x, FloatVector dy) {
    const FloatVector s = gate(x);
    const FloatVector inner =
        hn::MulAdd(splat(3 * kGeluCube * kGeluScale), hn::Mul(x, x), splat(kGeluScale));
    const FloatVector slope = hn::Mul(hn::Mul(x, s), hn::Sub(splat(1.0f), s));
    return hn::Mul(dy, hn::MulAdd(slope, inner, s));
  }
};

struct SquaredRelu {
  static FloatVector forward(FloatVector x) {
    const FloatVector positive = at_least(0.0f, x);
    return hn::Mul(positive, positive);
  }
  static FloatVector backward(FloatVector x, FloatVector dy) {
    const FloatVector positive = at_least(0.0f, x);
    return hn::Mul(dy, hn::Add(positive, positive));
  }
};

template <class T>
void swiglu_forward_row(const T* x, int64_t width, T* y) {
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t left = width - i;
    const FloatVector gate = load(x + i, left), up = load(x + width + i, left);
    store(hn::Mul(hn::Mul(gate, sigmoid(gate)), up), y + i, left);
  }
}

template <class T>
void swiglu_backward_row(const T* x, const T* dy, int64_t width, T* dx) {
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t left = width - i;
    const FloatVector gate = load(x + i, left), up = load(x + width + i, left),
                      grad = load(dy + i, left);
    const FloatVector s = sigmoid(gate), silu = hn::Mul(gate, s);
    // d silu / d gate = s * (1 + gate * (1 - s)) = s + silu * (1 - s)
    const FloatVector slope = hn::MulAdd(silu, hn::Sub(splat(1.0f), s), s);
    store(hn::Mul(hn::Mul(grad, up), slope), dx + i, left);
    store(hn::Mul(grad, silu), dx + width + i, left);
  }
}

// Elements per piece: some tens of kilobytes, which stay in cache from the first to the second
// operand.
constexpr int64_t kPiece = 16384;

template <class T>
void swiglu(const ActivationProblem& p, const T* dy, T* out) {
  const T* x = static_cast<const T*>(p.x);
  const int64_t grain = std::max<int64_t>(1, kPiece / std::max<int64_t>(1, p.width));
  parallel_pieces(p.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (dy) {
        swiglu_backward_row(x + row * 2 * p.width, dy + row * p.width, p.width,
                            out + row * 2 * p.width);
      } else {
        swiglu_forward_row(x + row * 2 * p.width, p.width, out + row * p.width);
      }
    }
  });
}

template <class F, class T>
void pointwise(const ActivationProblem& p, const T* dy, T* out) {
  const T* x = static_cast<const T*>(p.x);
  parallel_pieces(p.rows * p.width, kPiece, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += kLanes) {
      const int64_t left = end - i;
      const FloatVector value = load(x + i, left);
      store(dy ? F::backward(value, load(dy + i, left)) : F::forward(value), out + i, left);
    }
  });
}

template <class T>
void run(const ActivationProblem& p, const void* dy_data, void* out_data) {
  const T* dy = static_cast<const T*>(dy_data);
  T* out = static_cast<T*>(out_data);
  switch (p.activation) {
    case Activation::kSwiGlu:
      return swiglu<T>(p, dy, out);
    case Activation::kGelu:
      return pointwise<Gelu, T>(p, dy, out);
    case Activation::kSquaredRelu:
      return pointwise<SquaredRelu, T>(p, dy, out);
  }
}

/// Runs forward if dy is null, else backward.
void RunActivation(const ActivationProblem& p, const void* dy, void* out) {
  return p.storage == Storage::kFloat32 ? run<float>(p, dy, out) : run<BFloat16>(p, dy, out);
}

}  // namespace HWY_NAMESPACE
}  // namespace dovetail::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dovetail::ops {

HWY_EXPORT(RunActivation);

void activation_forward(const ActivationProblem& problem, void* y) {
  HWY_DYNAMIC_DISPATCH(RunActivation)(problem, nullptr, y);
}

void activation_backward(const ActivationProblem& problem, const void* dy, void* dx) {
  HWY_DYNAMIC_DISPATCH(RunActivation)(problem, dy, dx);
}

}  // namespace dovetail::ops
#endif
