// ctest-labels: cuda
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dovetail/base/error.h"
#include "dovetail/mx/cuda_kernels.h"
#include "dovetail/mx/native.h"
#include "dovetail/mx/quantize.h"
#include "dovetail/mx/quantized_linear.h"
#include "tests/mx/blocks.h"
#include "tests/ops/gpu_test.h"

namespace dovetail::mx::cuda_native_test {
namespace {

class CudaNative : public dovetail::testing::NeedsGpuKernels {
 protected:
  void SetUp() override {
    NeedsGpuKernels::SetUp();
    if (!IsSkipped()) obstacle_ = native_obstacle(native_device({at::kCUDA, 0}));
  }
  std::string obstacle_;
};

MXTensor copy_of(const at::Tensor& x, Format format, bool row) {
  const Quantized made =
      quantize(x.to(at::kCUDA), {.format = format, .copies = row ? Copies::kRow : Copies::kColumn});
  return row ? made.row : made.column;
}

/// The matrix with its blocks along the second dimension, in float64.
at::Tensor along_blocks(const MXTensor& x) {
  const at::Tensor values = dequantize(x).cpu().to(at::kDouble);
  return x.orientation() == Orientation::kRow ? values : values.t();
}

/// Up to sums in another order, as a share of the norm: FP32's, and one rounding to bfloat16.
void expect_close(const at::Tensor& found, const at::Tensor& expected) {
  const double tolerance = found.scalar_type() == at::kFloat ? 1e-5 : 4e-3;
  const at::Tensor wide = expected.cpu().to(at::kDouble);
  ASSERT_EQ(found.sizes(), wide.sizes());
  EXPECT_LE((found.cpu().to(at::kDouble) - wide).norm().item<double>(),
            tolerance * wide.norm().item<double>());
}

TEST_F(CudaNative, IsRefusedByNameOnAnOlderGpu) {
  if (obstacle_.empty()) GTEST_SKIP() << "this GPU has native products";
  EXPECT_THAT(obstacle_, ::testing::HasSubstr(native_device({at::kCUDA, 0}).name));
  const MXTensor x = copy_of(at::ones({32, 32}), Format::kE4M3, true);
  EXPECT_THROW(native_product(x, x, at::kBFloat16), UserError);
}

TEST_F(CudaNative, ProductIsThatOfTheNumbersThatTheCodesStandFor) {
  if (!obstacle_.empty()) GTEST_SKIP() << obstacle_;
  using F = Format;
  for (const auto& [rows, depth, cols] :
       {std::tuple(128, 128, 128), {1, 32, 16}, {65, 96, 112}, {257, 272, 48}}) {
    for (const auto& [a_format, b_format] :
         {std::pair(F::kE4M3, F::kE4M3), {F::kE5M2, F::kE4M3}, {F::kE4M3, F::kE5M2}}) {
      for (const bool a_row : {true, false}) {
        for (const bool b_row : {true, false}) {
          for (const auto dtype : {at::kFloat, at::kBFloat16}) {
            SCOPED_TRACE(fmt::format("{} x {} by {} x {}", rows, depth, cols, depth));
            const auto shape = [](bool row, int64_t size, int64_t along) {
              return row ? std::vector<int64_t>{size, along} : std::vector<int64_t>{along, size};
            };
            const MXTensor a =
                copy_of(ordinary_values(shape(a_row, rows, depth), 1, at::kFloat), a_format, a_row);
            const MXTensor b =
                copy_of(ordinary_values(shape(b_row, cols, depth), 2, at::kFloat), b_format, b_row);
            const at::Tensor bias = ordinary_values({cols}, 3, dtype),
                             product = along_blocks(a).mm(along_blocks(b).t());
            expect_close(native_product(a, b, dtype), product);
            expect_close(native_product(a, b, dtype, bias.to(at::kCUDA)),
                         product + bias.to(at::kDouble));
          }
        }
      }
    }
  }
}

TEST_F(CudaNative, ReducesOverAnyNumberOfTokens) {
  if (!obstacle_.empty()) GTEST_SKIP() << obstacle_;
  for (const int64_t tokens : {0, 1, 31, 33, 1021}) {
    const MXTensor dy = copy_of(ordinary_values({tokens, 64}, 1, at::kFloat), Format::kE5M2, false);
    const MXTensor x = copy_of(ordinary_values({tokens, 96}, 2, at::kFloat), Format::kE4M3, false);
    SCOPED_TRACE(tokens);
    expect_close(native_product(dy, x, at::kFloat), along_blocks(dy).mm(along_blocks(x).t()));
  }
}

TEST_F(CudaNative, ALinearIsTheEmulatedOne) {
  if (!obstacle_.empty()) GTEST_SKIP() << obstacle_;
  for (const char* recipe : {"mxfp8", "mxfp8_e5m2_grad", "mxfp8_floor"}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(fmt::format("{} {}", recipe, c10::toString(dtype)));
      const auto run = [&](Gemm gemm) {
        const auto linear = std::make_shared<QuantizedLinear>(
            find_recipe(built_in_recipes(), recipe).linear, "x", gemm);
        const auto leaf = [&](std::vector<int64_t> sizes, uint64_t seed) {
          return ordinary_values(sizes, seed, dtype).to(at::kCUDA).requires_grad_();
        };
        const at::Tensor x = leaf({3, 23, 96}, 1), weight = leaf({64, 96}, 2), bias = leaf({64}, 3);
        const at::Tensor y = linear->forward(x, weight, bias);
        y.backward(leaf({3, 23, 64}, 4).detach());
        return std::vector<at::Tensor>{y.detach(), x.grad(), weight.grad(), bias.grad()};
      };
      const auto native = run(Gemm::kNative), emulated = run(Gemm::kEmulated);
      for (size_t i = 0; i < emulated.size(); ++i) expect_close(native[i], emulated[i]);
    }
  }
}

}  // namespace
}  // namespace dovetail::mx::cuda_native_test
