#include "dovetail/ops/functions.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include "dovetail/ops/composed.h"
#include "tests/ops/testing.h"

namespace dovetail::ops::functions_test {
namespace {

using testing::at_every_simd_level;
using testing::expect_close;
using testing::expect_gradients_like_differences;
using testing::expect_like_float64;
using testing::expect_same_bits;
using testing::expect_same_for_any_threads;
using ::testing::HasSubstr;
using testing::normal;
using testing::Operation;
using testing::user_error;

constexpr double kBFloat16Tolerance = 3e-2;

at::Tensor call_rms_norm(const std::vector<at::Tensor>& x) {
  return dovetail::ops::rms_norm(x[0], x[1], 1e-5);
}
at::Tensor call_layer_norm(const std::vector<at::Tensor>& x) {
  return dovetail::ops::layer_norm(x[0], x[1], x[2], 1e-5);
}
at::Tensor call_layer_norm_without_bias(const std::vector<at::Tensor>& x) {
  return dovetail::ops::layer_norm(x[0], x[1], {}, 1e-5);
}
at::Tensor call_linear(const std::vector<at::Tensor>& x) {
  return dovetail::ops::linear(x[0], x[1], x.size() > 2 ? x[2] : at::Tensor());
}
at::Tensor call_swiglu(const std::vector<at::Tensor>& x) { return swiglu(x[0]); }
at::Tensor call_gelu(const std::vector<at::Tensor>& x) { return dovetail::ops::gelu(x[0]); }
at::Tensor call_squared_relu(const std::vector<at::Tensor>& x) { return squared_relu(x[0]); }
at::Tensor call_embedding(const std::vector<at::Tensor>& x) { return ops::embedding(x[0], x[1]); }

TEST(Norm, MatchesFloat64OverOddWidths) {
  at_every_simd_level([] {
    for (const int64_t width : {1, 2, 31, 33, 64, 127, 384}) {
      SCOPED_TRACE(width);
      const at::Tensor x = normal({3, 7, width}, 1) + 0.5, weight = normal({width}, 2),
                       bias = normal({width}, 3);
      expect_like_float64(call_rms_norm, {x, weight}, 2e-5);
      // A layer norm of one element is a constant; its gradient is 1 / sqrt(eps) times rounding.
      if (width == 1) continue;
      expect_like_float64(call_layer_norm, {x, weight, bias}, width == 2 ? 1e-3 : 3e-5);
      expect_like_float64(call_layer_norm_without_bias, {x, weight}, width == 2 ? 1e-3 : 3e-5);
    }
  });
}

TEST(Norm, TakesBFloat16RowsWithFloat32Weights) {
  at_every_simd_level([] {
    const at::Tensor x = normal({19, 65}, 1, at::kBFloat16), weight = normal({65}, 2),
                     bias = normal({65}, 3);
    EXPECT_EQ(dovetail::ops::rms_norm(x, weight, 1e-5).scalar_type(), at::kBFloat16);
    expect_like_float64(call_rms_norm, {x, weight}, kBFloat16Tolerance);
    expect_like_float64(call_layer_norm, {x, weight, bias}, kBFloat16Tolerance);
  });
}

TEST(Norm, HasNoRowsOrManyRows) {
  EXPECT_EQ(dovetail::ops::rms_norm(at::zeros({0, 8}), at::ones({8}), 1e-5).sizes(),
            at::IntArrayRef({0, 8}));
  expect_like_float64(call_rms_norm, {normal({2100, 17}, 1), normal({17}, 2)}, 1e-4);
}

TEST(Norm, TakesViewsAndHasTheSameBitsForAnyThreadCount) {
  at_every_simd_level([] {
    expect_like_float64(call_rms_norm, {normal({24, 40}, 1).t(), normal({24}, 2)}, 2e-5);
    expect_same_for_any_threads(call_rms_norm, {normal({999, 33}, 1), normal({33}, 2)});
    expect_same_for_any_threads(call_layer_norm,
                                {normal({999, 33}, 1), normal({33}, 2), normal({33}, 3)});
  });
}

TEST(Norm, IsNotANumberWhenTheRowHasOne) {
  at_every_simd_level([] {
    at::Tensor x = normal({2, 40}, 1);
    x[0][39].fill_(NAN);
    const at::Tensor y = dovetail::ops::rms_norm(x, at::ones({40}), 1e-5);
    EXPECT_TRUE(y[0].isnan().all().item<bool>());
    EXPECT_FALSE(y[1].isnan().any().item<bool>());
  });
}

TEST(Linear, MatchesFloat64WithAndWithoutBias) {
  at_every_simd_level([] {
    const at::Tensor x = normal({3, 11, 31}, 1), weight = normal({47, 31}, 2),
                     bias = normal({47}, 3);
    expect_like_float64(call_linear, {x, weight}, 1e-5);
    expect_like_float64(call_linear, {x, weight, bias}, 1e-5);
    expect_like_float64(call_linear, {normal({31}, 4), weight, bias}, 1e-5);
    expect_like_float64(call_linear, {normal({31, 8}, 4).t(), weight}, 1e-5);
    expect_same_for_any_threads(call_linear, {normal({500, 31}, 1), weight, bias});
  });
  EXPECT_EQ(dovetail::ops::linear(at::zeros({0, 31}), at::zeros({5, 31})).sizes(),
            at::IntArrayRef({0, 5}));
}

TEST(Linear, TakesBFloat16WithAFloat32Bias) {
  expect_like_float64(
      call_linear,
      {normal({9, 32}, 1, at::kBFloat16), normal({16, 32}, 2, at::kBFloat16), normal({16}, 3)},
      kBFloat16Tolerance);
}

TEST(Linear, SkipsGradientsNobodyAskedFor) {
  const at::Tensor x = normal({4, 8}, 1), weight = normal({5, 8}, 2).requires_grad_();
  dovetail::ops::linear(x, weight).sum().backward();
  EXPECT_FALSE(x.grad().defined());
  expect_close(weight.grad(), x.sum(0).expand({5, 8}), 1e-6);
}

TEST(Activation, MatchesFloat64) {
  at_every_simd_level([] {
    for (const int64_t width : {2, 34, 62, 130}) {
      for (const auto& [dtype, tolerance] :
           {std::pair(at::kFloat, 3e-6), std::pair(at::kBFloat16, kBFloat16Tolerance)}) {
        const at::Tensor x = normal({5, 3, width}, 1, dtype) * 3;
        expect_like_float64(call_swiglu, {x}, tolerance);
        expect_like_float64(call_gelu, {x}, tolerance);
        expect_like_float64(call_squared_relu, {x}, tolerance);
      }
    }
  });
}

TEST(Activation, MatchesAtenAtTheExtremes) {
  at_every_simd_level([] {
    const float huge = 1e18f;
    const at::Tensor x =
        at::tensor({0.0f, -0.0f, 20.0f, -20.0f, 90.0f, -90.0f, huge, -huge, 1e-30f, -1e-30f});
    expect_close(dovetail::ops::gelu(x), at::gelu(x.to(at::kDouble), "tanh"), 1e-6);
    expect_close(swiglu(at::cat({x, at::ones_like(x)})), at::silu(x.to(at::kDouble)), 1e-6);
    EXPECT_TRUE(dovetail::ops::gelu(at::full({40}, NAN)).isnan().all().item<bool>());
    EXPECT_TRUE(swiglu(at::full({40}, NAN)).isnan().all().item<bool>());
    EXPECT_TRUE(squared_relu(at::full({40}, NAN)).isnan().all().item<bool>());
  });
}

TEST(Activation, TakesViewsAndEmptyTensors) {
  expect_like_float64(call_swiglu, {normal({12, 9}, 1).t()}, 3e-6);
  expect_like_float64(call_gelu, {normal({12, 9}, 1).slice(1, 0, 9, 2)}, 3e-6);
  EXPECT_EQ(swiglu(at::zeros({0, 6})).sizes(), at::IntArrayRef({0, 3}));
  EXPECT_EQ(dovetail::ops::gelu(at::zeros({3, 0})).sizes(), at::IntArrayRef({3, 0}));
}

TEST(Embedding, SumsTheGradientsOfRepeatedIds) {
  const at::Tensor ids = at::randint(0, 13, {5, 41}, at::kLong);
  for (const int64_t width : {1, 33, 64}) {
    expect_like_float64(call_embedding, {normal({17, width}, 1), ids}, 1e-5);
    expect_like_float64(call_embedding, {normal({17, width}, 1, at::kBFloat16), ids},
                        kBFloat16Tolerance);
  }
  expect_same_for_any_threads(call_embedding,
                              {normal({3000, 33}, 1), at::randint(0, 3000, {4000}, at::kLong)});
  EXPECT_EQ(ops::embedding(at::zeros({4, 3}), at::zeros({0}, at::kLong)).sizes(),
            at::IntArrayRef({0, 3}));
}

TEST(Embedding, RefusesIdsOutsideOfTheVocabulary) {
  const at::Tensor weight = at::zeros({4, 3});
  EXPECT_THAT(user_error([&] { ops::embedding(weight, at::tensor({1, 4}, at::kLong)); }),
              HasSubstr("id 4 is outside of the vocabulary of 4"));
  EXPECT_THAT(user_error([&] { ops::embedding(weight, at::tensor({-1, 2}, at::kLong)); }),
              HasSubstr("id -1"));
  EXPECT_THAT(user_error([&] { ops::embedding(weight, at::zeros({2})); }), HasSubstr("int64"));
}

TEST(Composed, GradientsMatchDifferences) {
  const at::Tensor x = normal({3, 6}, 1, at::kDouble), weight = normal({6}, 2, at::kDouble),
                   bias = normal({6}, 3, at::kDouble);
  expect_gradients_like_differences(call_rms_norm, {x, weight});
  expect_gradients_like_differences(call_layer_norm, {x, weight, bias});
  expect_gradients_like_differences(call_swiglu, {x.clone()});
  expect_gradients_like_differences(call_gelu, {x.clone()});
  expect_gradients_like_differences(call_squared_relu, {x.clone()});
  expect_gradients_like_differences(call_linear, {x.clone(), normal({4, 6}, 4, at::kDouble)});
  expect_gradients_like_differences(call_embedding, {x.clone(), at::tensor({0, 2, 2}, at::kLong)});
}

TEST(Functions, HaveShapesOnTheMetaDevice) {
  const auto meta = at::TensorOptions().device(at::kMeta);
  const at::Tensor x = at::empty({2, 3, 8}, meta), weight = at::empty({8}, meta);
  EXPECT_EQ(dovetail::ops::rms_norm(x, weight, 1e-5).sizes(), x.sizes());
  EXPECT_EQ(dovetail::ops::layer_norm(x, weight, {}, 1e-5).sizes(), x.sizes());
  EXPECT_EQ(swiglu(x).sizes(), at::IntArrayRef({2, 3, 4}));
  EXPECT_EQ(dovetail::ops::gelu(x).sizes(), x.sizes());
  EXPECT_EQ(squared_relu(x).sizes(), x.sizes());
  EXPECT_EQ(dovetail::ops::linear(x, at::empty({5, 8}, meta)).sizes(), at::IntArrayRef({2, 3, 5}));
  EXPECT_EQ(
      ops::embedding(at::empty({9, 8}, meta), at::empty({2, 3}, meta.dtype(at::kLong))).sizes(),
      x.sizes());
}

TEST(Functions, RefuseNamingTheShapes) {
  EXPECT_THAT(user_error([] { dovetail::ops::linear(at::zeros({2, 3}), at::zeros({5, 4})); }),
              HasSubstr("[2, 3]"));
  EXPECT_THAT(user_error([] {
                dovetail::ops::linear(at::zeros({2, 3}), at::zeros({5, 3}), at::zeros({4}));
              }),
              HasSubstr("bias must be [5]"));
  EXPECT_THAT(
      user_error([] { dovetail::ops::linear(at::zeros({2, 3}), at::zeros({5, 3}, at::kDouble)); }),
      HasSubstr("dtype"));
  EXPECT_THAT(user_error([] { dovetail::ops::rms_norm(at::zeros({2, 3}), at::zeros({4}), 1e-5); }),
              HasSubstr("[4]"));
  EXPECT_THAT(user_error([] {
                dovetail::ops::layer_norm(at::zeros({2, 3}), at::zeros({3}), at::zeros({4}), 1e-5);
              }),
              HasSubstr("bias"));
  EXPECT_THAT(user_error([] { swiglu(at::zeros({2, 3})); }), HasSubstr("even"));
  EXPECT_THAT(user_error([] { dovetail::ops::gelu(at::zeros({2}, at::kLong)); }),
              HasSubstr("floating"));
}

TEST(Functions, AreOperatorsOfTheDispatcher) {
  const auto call = [](const char* name, std::vector<c10::IValue> stack) {
    c10::Dispatcher::singleton()
        .findSchemaOrThrow((std::string("dovetail::") + name).c_str(), "")
        .callBoxed(&stack);
    return stack.at(0).toTensor();
  };
  const at::Tensor x = normal({4, 8}, 1), weight = normal({8}, 2), matrix = normal({6, 8}, 3);
  expect_same_bits(call("rms_norm", {x, weight, 1e-5}), dovetail::ops::rms_norm(x, weight, 1e-5));
  expect_same_bits(call("layer_norm", {x, weight, c10::IValue(), 1e-5}),
                   dovetail::ops::layer_norm(x, weight, {}, 1e-5));
  expect_same_bits(call("linear", {x, matrix, c10::IValue()}), dovetail::ops::linear(x, matrix));
  expect_same_bits(call("gemm", {x, matrix, false, true}), dovetail::ops::linear(x, matrix));
  expect_same_bits(call("swiglu", {x}), swiglu(x));
  expect_same_bits(call("gelu", {x}), dovetail::ops::gelu(x));
  expect_same_bits(call("squared_relu", {x}), squared_relu(x));
  expect_same_bits(call("embedding", {matrix, at::tensor({1, 5}, at::kLong)}),
                   ops::embedding(matrix, at::tensor({1, 5}, at::kLong)));
  const at::Tensor targets = at::tensor({0, 1, 2, 5}, at::kLong);
  expect_same_bits(call("linear_cross_entropy", {x, matrix, targets}),
                   linear_cross_entropy(x, matrix, targets));
  const at::Tensor q = normal({1, 5, 2, 8}, 4);
  expect_same_bits(call("attention", {q, q, q, 8, 10000.0}), attention(q, q, q, {.rotary_dim = 8}));
}

TEST(Dispatch, SwitchesKernelsOffByName) {
  set_disabled_kernels("gemm,norm");
  EXPECT_FALSE(kernel_enabled(Kernel::kGemm));
  EXPECT_TRUE(kernel_enabled(Kernel::kAttention));
  const at::Tensor x = normal({4, 8}, 1), weight = normal({8}, 2);
  expect_same_bits(dovetail::ops::rms_norm(x, weight, 1e-5), composed::rms_norm(x, weight, 1e-5));
  set_disabled_kernels("");
  EXPECT_TRUE(kernel_enabled(Kernel::kGemm));
  EXPECT_THAT(user_error([] { set_disabled_kernels("gemm,gem"); }), HasSubstr("\"gem\""));
}

TEST(Dispatch, UsesTheLevelThatWasSet) {
  EXPECT_EQ(available_simd_levels().front(), SimdLevel::kScalar);
  at_every_simd_level(
      [] { EXPECT_TRUE(dovetail::ops::gelu(at::ones({3})).isfinite().all().item<bool>()); });
}

}  // namespace
}  // namespace dovetail::ops::functions_test
