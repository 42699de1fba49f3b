// ctest-labels: cuda
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "dovetail/ops/composed.h"
#include "dovetail/ops/cuda_kernels.h"
#include "dovetail/ops/functions.h"
#include "dovetail/ops/gemm.h"
#include "tests/ops/gpu_test.h"
#include "tests/ops/testing.h"

namespace dovetail::ops::cuda_kernels_test {
namespace {

using Op = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

class Cuda : public dovetail::testing::NeedsGpuKernels {
 protected:
  /// Value and gradients of `op` on the GPU against `reference` in float64 on the CPU, relative to
  /// the largest element.
  static void expect_close(const Op& op, const Op& reference, const std::vector<at::Tensor>& inputs,
                           at::ScalarType dtype, double tolerance) {
    std::vector<at::Tensor> wide, device;
    for (const at::Tensor& input : inputs) {
      // The reference starts from what the GPU sees: values rounded to `dtype`.
      const at::Tensor rounded = input.to(dtype);
      wide.push_back(rounded.to(at::kDouble).requires_grad_());
      device.push_back(rounded.to(at::kCUDA).requires_grad_());
    }
    const at::Tensor expected = reference(wide), actual = op(device);
    EXPECT_EQ(actual.scalar_type(), dtype);
    expect_near(actual, expected, tolerance, "value");
    const at::Tensor upstream = testing::normal(expected.sizes(), 99).to(dtype);
    expected.backward(upstream.to(at::kDouble));
    actual.backward(upstream.to(at::kCUDA));
    for (size_t i = 0; i < wide.size(); ++i)
      expect_near(device[i].grad(), wide[i].grad(), tolerance, "gradient " + std::to_string(i));
  }

  static void expect_near(const at::Tensor& actual, const at::Tensor& expected, double tolerance,
                          const std::string& what) {
    const double scale = expected.abs().max().item<double>();
    const double error =
        (actual.detach().cpu().to(at::kDouble) - expected.detach()).abs().max().item<double>();
    EXPECT_LE(error, tolerance * scale) << what;
  }
};

struct Precision {
  at::ScalarType dtype;
  double tolerance;
};
constexpr Precision kPrecisions[] = {{at::kFloat, 5e-6}, {at::kBFloat16, 1e-2}};
// Widths that 16 bytes divide and others, rows of one part and of several.
const std::vector<std::vector<int64_t>> kShapes = {
    {1, 1}, {3, 33}, {2, 5, 768}, {700, 96}, {5, 8192}};
// Each shape (threads x vectors) of a norm's rows in registers, full and partial. Also rows that
// are too wide for any shape.
const std::vector<std::vector<int64_t>> kNormShapes = {
    {1, 1},     {3, 33},   {6, 8},     {2, 5, 768}, {700, 96}, {130, 384},
    {70, 1000}, {9, 1024}, {20, 2048}, {33, 3000},  {5, 8192}, {3, 20000}};

TEST_F(Cuda, NormsAreThoseOfTheReference) {
  for (const auto& [dtype, tolerance] : kPrecisions) {
    for (const auto& shape : kNormShapes) {
      SCOPED_TRACE(c10::toString(dtype) + std::string(" width ") + std::to_string(shape.back()));
      const at::Tensor x = testing::normal(shape, 1), weight = testing::normal({shape.back()}, 2),
                       bias = testing::normal({shape.back()}, 3);
      // In a row of one nothing varies: its gradient is the difference of two equal terms, and so
      // their rounding.
      if (shape.back() == 1) continue;
      expect_close([](const auto& t) { return dovetail::ops::rms_norm(t[0], t[1], 1e-5); },
                   [](const auto& t) { return composed::rms_norm(t[0], t[1], 1e-5); }, {x, weight},
                   dtype, tolerance);
      expect_close([](const auto& t) { return dovetail::ops::layer_norm(t[0], t[1], t[2], 1e-5); },
                   [](const auto& t) { return composed::layer_norm(t[0], t[1], t[2], 1e-5); },
                   {x, weight, bias}, dtype, tolerance);
    }
  }
}

/// The sum and its norm both reach the loss, so that backward joins two gradients.
at::Tensor sum_and_twice_norm(const NormedSum& made) { return made.sum + 2 * made.normal; }

TEST_F(Cuda, NormsOfSumsAreThoseOfTheReference) {
  for (const auto& [dtype, tolerance] : kPrecisions) {
    for (const auto& shape : kNormShapes) {
      if (shape.back() == 1) continue;  // nothing varies in a row of one
      SCOPED_TRACE(c10::toString(dtype) + std::string(" width ") + std::to_string(shape.back()));
      const at::Tensor x = testing::normal(shape, 1), branch = testing::normal(shape, 7),
                       weight = testing::normal({shape.back()}, 2),
                       bias = testing::normal({shape.back()}, 3);
      expect_close(
          [](const auto& t) { return sum_and_twice_norm(rms_norm_of_sum(t[0], t[1], t[2], 1e-5)); },
          [](const auto& t) {
            const at::Tensor sum = t[0] + t[1];
            return sum + 2 * composed::rms_norm(sum, t[2], 1e-5);
          },
          {x, branch, weight}, dtype, 2 * tolerance);
      expect_close(
          [](const auto& t) {
            return sum_and_twice_norm(layer_norm_of_sum(t[0], t[1], t[2], t[3], 1e-5));
          },
          [](const auto& t) {
            const at::Tensor sum = t[0] + t[1];
            return sum + 2 * composed::layer_norm(sum, t[2], t[3], 1e-5);
          },
          {x, branch, weight, bias}, dtype, 2 * tolerance);
      expect_close(
          [](const auto& t) {
            return sum_and_twice_norm(layer_norm_of_sum(t[0], {}, t[1], t[2], 1e-5));
          },
          [](const auto& t) { return t[0] + 2 * composed::layer_norm(t[0], t[1], t[2], 1e-5); },
          {x, weight, bias}, dtype, 2 * tolerance);
    }
  }
}

TEST_F(Cuda, ActivationsAreThoseOfTheReference) {
  for (const auto& [dtype, tolerance] : kPrecisions) {
    for (auto shape : kShapes) {
      SCOPED_TRACE(c10::toString(dtype) + std::string(" width ") + std::to_string(shape.back()));
      // One element may lie where GELU is nearly zero: the difference of two terms near 1, whose
      // rounding remains.
      const at::Tensor x = shape.back() == 1 ? at::ones(shape) : 3 * testing::normal(shape, 4);
      expect_close([](const auto& t) { return dovetail::ops::gelu(t[0]); },
                   [](const auto& t) { return composed::gelu(t[0]); }, {x}, dtype, tolerance);
      expect_close([](const auto& t) { return dovetail::ops::squared_relu(t[0]); },
                   [](const auto& t) { return composed::squared_relu(t[0]); }, {x}, dtype,
                   tolerance);
      shape.back() *= 2;
      expect_close([](const auto& t) { return dovetail::ops::swiglu(t[0]); },
                   [](const auto& t) { return composed::swiglu(t[0]); },
                   {3 * testing::normal(shape, 5)}, dtype, tolerance);
    }
  }
}

TEST_F(Cuda, LinearsAreThoseOfTheReference) {
  for (const auto& [dtype, tolerance] : kPrecisions) {
    // Rows of one part and of several, columns in vectors of 16 bytes and not.
    for (const auto& [rows, in, out] :
         std::vector<std::array<int64_t, 3>>{{1, 3, 1}, {37, 8, 33}, {1000, 16, 520}}) {
      SCOPED_TRACE(c10::toString(dtype) + std::string(" rows ") + std::to_string(rows));
      const auto linear_of = [](const auto& t) { return dovetail::ops::linear(t[0], t[1], t[2]); };
      expect_close(
          linear_of, [](const auto& t) { return at::linear(t[0], t[1], t[2]); },
          {testing::normal({rows, in}, 1), testing::normal({out, in}, 2),
           testing::normal({out}, 3)},
          dtype, tolerance);
    }
  }
}

TEST_F(Cuda, ColumnSumsAreThoseInFloat64) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t rows : {1, 127, 129, 5000, 70000}) {
      for (const int64_t columns : {1, 31, 256, 264, 1000}) {
        const at::Tensor x = testing::normal({rows, columns}, 4).to(dtype);
        const at::Tensor sums = column_sums(x.to(at::kCUDA)), exact = x.to(at::kDouble).sum(0);
        // A sum of n normal numbers is about the root of n, and so is its float32 rounding error in
        // units of eps.
        const double unit = std::sqrt(static_cast<double>(rows));
        const double error = (sums.cpu().to(at::kDouble) - exact.to(dtype).to(at::kDouble))
                                 .abs()
                                 .max()
                                 .item<double>();
        EXPECT_LE(error, unit * (dtype == at::kFloat ? 4e-6 : 0.04)) << rows << " x " << columns;
        EXPECT_TRUE(sums.equal(column_sums(x.to(at::kCUDA))));
      }
    }
  }
}

TEST_F(Cuda, WeightGradientsHaveTheSameBitsTwice) {
  const at::Tensor x = testing::normal({3000, 200}, 6).to(at::kFloat).to(at::kCUDA);
  const auto gradient = [&] {
    const at::Tensor weight = at::ones({200}, x.options()).requires_grad_();
    dovetail::ops::rms_norm(x, weight, 1e-5).square().sum().backward();
    return weight.grad();
  };
  EXPECT_TRUE(gradient().equal(gradient()));
}

}  // namespace
}  // namespace dovetail::ops::cuda_kernels_test
