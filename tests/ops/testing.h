#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/ops/simd_level.h"

/// Common code of the tests of ops. It runs a law on every instruction set of this machine and
/// compares with a float64 reference.
namespace dovetail::testing {

/// Sets the number of threads while it lives.
class Threads {
 public:
  explicit Threads(int count) : before_(at::get_num_threads()) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before_); }
  Threads(const Threads&) = delete;

 private:
  int before_;
};

/// Calls `law` once for each instruction set, then restores the one in use. Runs on one thread
/// unless the law is about threads: on a busy machine thousands of small parallel regions take
/// minutes.
inline void at_every_simd_level(const std::function<void()>& law) {
  const Threads one(1);
  const ops::SimdLevel before = ops::simd_level();
  for (const ops::SimdLevel level : ops::available_simd_levels()) {
    SCOPED_TRACE(ops::simd_level_name(level));
    ops::set_simd_level(level);
    law();
  }
  ops::set_simd_level(before);
}

/// Standard normal values, reproducible from `seed`.
inline at::Tensor normal(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype = at::kFloat) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed),
                   at::TensorOptions().dtype(at::kDouble))
      .to(dtype);
}

/// Expects |actual - expected| <= tolerance * (1 + |expected|) for all elements, and equal shapes.
inline void expect_close(const at::Tensor& actual, const at::Tensor& expected, double tolerance,
                         const std::string& what = "") {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  if (actual.numel() == 0) return;
  const at::Tensor a = actual.detach().to(at::kDouble), e = expected.detach().to(at::kDouble);
  const double worst = ((a - e).abs() / (e.abs() + 1)).max().item<double>();
  EXPECT_LE(worst, tolerance) << what;  // also fails for NaN
}

inline void expect_same_bits(const at::Tensor& a, const at::Tensor& b,
                             const std::string& what = "") {
  EXPECT_TRUE(at::equal(a, b)) << what << " differ by " << (a - b).abs().max().item<double>();
  EXPECT_TRUE(at::equal(a.signbit(), b.signbit())) << what << " differ in the sign of a zero";
}

using Operation = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

/// Returns the output and the gradients of all floating inputs. The output gradient has fixed
/// random values of `dtype`, or of the output's dtype.
inline std::vector<at::Tensor> output_and_gradients(const Operation& operation,
                                                    const std::vector<at::Tensor>& inputs,
                                                    std::optional<at::ScalarType> dtype = {}) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& x : inputs) {
    const bool floating = at::isFloatingType(x.scalar_type());
    leaves.push_back(floating ? x.detach().requires_grad_() : x);
  }
  const at::Tensor y = operation(leaves);
  y.backward(normal(y.sizes(), 77, dtype.value_or(y.scalar_type())).to(y.scalar_type()));
  std::vector<at::Tensor> all = {y.detach()};
  for (const at::Tensor& x : leaves) {
    if (x.requires_grad()) all.push_back(x.grad().defined() ? x.grad() : at::zeros_like(x));
  }
  return all;
}

/// Compares output and gradients of `operation` in the inputs' dtype with float64, which runs in
/// ATen only. Both take the same rounded output gradient.
inline void expect_like_float64(const Operation& operation, const std::vector<at::Tensor>& inputs,
                                double tolerance) {
  std::vector<at::Tensor> wide;
  for (const at::Tensor& x : inputs)
    wide.push_back(at::isFloatingType(x.scalar_type()) ? x.detach().to(at::kDouble) : x);
  const auto actual = output_and_gradients(operation, inputs);
  const auto expected = output_and_gradients(operation, wide, actual[0].scalar_type());
  ASSERT_EQ(expected.size(), actual.size());
  for (size_t i = 0; i < actual.size(); ++i)
    expect_close(actual[i], expected[i], tolerance,
                 i == 0 ? "output" : "gradient " + std::to_string(i - 1));
}

/// Expects bitwise equal output and gradients with one, two and three threads.
inline void expect_same_for_any_threads(const Operation& operation,
                                        const std::vector<at::Tensor>& inputs) {
  const auto run = [&](int threads) {
    const Threads count(threads);
    return output_and_gradients(operation, inputs);
  };
  const auto serial = run(1);
  for (const int threads : {2, 3}) {
    const auto parallel = run(threads);
    for (size_t i = 0; i < serial.size(); ++i)
      expect_same_bits(
          parallel[i], serial[i],
          "result " + std::to_string(i) + " with " + std::to_string(threads) + " threads");
  }
}

/// Compares gradients of the sum of squares of a float64 operation with central differences.
inline void expect_gradients_like_differences(const Operation& operation,
                                              std::vector<at::Tensor> inputs) {
  const auto loss = [&](const std::vector<at::Tensor>& x) { return operation(x).square().sum(); };
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& x : inputs)
    leaves.push_back(at::isFloatingType(x.scalar_type()) ? x.detach().requires_grad_() : x);
  loss(leaves).backward();
  constexpr double kStep = 1e-5;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!leaves[i].requires_grad()) continue;
    const at::Tensor flat = inputs[i].view({-1}), gradient = leaves[i].grad().reshape({-1});
    for (int64_t j = 0; j < flat.numel(); j += std::max<int64_t>(1, flat.numel() / 7)) {
      const double at = flat[j].item<double>();
      flat[j].fill_(at + kStep);
      const double above = loss(inputs).item<double>();
      flat[j].fill_(at - kStep);
      const double below = loss(inputs).item<double>();
      flat[j].fill_(at);
      const double expected = (above - below) / (2 * kStep);
      EXPECT_NEAR(gradient[j].item<double>(), expected, 1e-5 * (1 + std::abs(expected)))
          << "input " << i << " element " << j;
    }
  }
}

/// Returns the text of the UserError that `call` throws.
inline std::string user_error(const std::function<void()>& call) {
  try {
    call();
  } catch (const UserError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no UserError was thrown";
  return "";
}

}  // namespace dovetail::testing
