#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dovetail/ops/composed.h"
#include "dovetail/ops/functions.h"
#include "tests/ops/testing.h"

namespace dovetail::ops::cross_entropy_test {
namespace {

using testing::at_every_simd_level;
using testing::expect_close;
using testing::expect_gradients_like_differences;
using testing::expect_same_bits;
using testing::expect_same_for_any_threads;
using ::testing::HasSubstr;
using testing::normal;
using testing::output_and_gradients;
using testing::user_error;

at::Tensor call(const std::vector<at::Tensor>& x) { return linear_cross_entropy(x[0], x[1], x[2]); }
at::Tensor call_composed(const std::vector<at::Tensor>& x) {
  return composed::linear_cross_entropy(x[0], x[1], x[2]);
}

at::Tensor some_targets(int64_t rows, int64_t vocab, bool with_ignored) {
  at::Tensor targets = at::arange(rows, at::kLong).mul(7919).remainder(vocab);
  if (with_ignored && rows > 1) targets.slice(0, 1, rows, 3).fill_(-100);
  return targets;
}

/// Against ATen's linear and cross_entropy in float64.
void expect_like_aten(int64_t rows, int64_t width, int64_t vocab, at::ScalarType dtype,
                      double tolerance) {
  SCOPED_TRACE(::testing::Message() << rows << " tokens, width " << width << ", vocab " << vocab);
  const at::Tensor x = normal({rows, width}, 1, dtype),
                   weight = normal({vocab, width}, 2, dtype) * 0.3;
  const at::Tensor targets = some_targets(rows, vocab, true);
  const auto actual = output_and_gradients(call, {x, weight, targets});
  const auto expected =
      output_and_gradients(call_composed, {x.to(at::kDouble), weight.to(at::kDouble), targets});
  const char* names[] = {"loss", "gradient of x", "gradient of weight"};
  for (size_t i = 0; i < 3; ++i) expect_close(actual[i], expected[i], tolerance, names[i]);
}

TEST(LinearCrossEntropy, MatchesAtenInFloat64) {
  at_every_simd_level([] {
    for (const int64_t rows : {1, 31, 67}) {
      for (const int64_t vocab : {1, 2, 33, 509})
        expect_like_aten(rows, 17, vocab, at::kFloat, 2e-5);
    }
    expect_like_aten(45, 33, 131, at::kBFloat16, 6e-2);
  });
  expect_like_aten(19, 5, 33, at::kDouble, 1e-12);
}

TEST(LinearCrossEntropy, CrossesChunks) {
  // A chunk has at least 512 rows; 8 MiB of 4099 logits are only 511 rows.
  expect_like_aten(1100, 8, 4099, at::kFloat, 2e-5);
}

TEST(LinearCrossEntropy, LossIsTheSameWithoutGradients) {
  const at::Tensor x = normal({40, 9}, 1), weight = normal({21, 9}, 2),
                   targets = some_targets(40, 21, false);
  const at::Tensor with = linear_cross_entropy(x.clone().requires_grad_(), weight, targets);
  expect_same_bits(linear_cross_entropy(x, weight, targets), with.detach());
  EXPECT_TRUE(with.requires_grad());
  EXPECT_EQ(with.dim(), 0);
  EXPECT_EQ(with.scalar_type(), at::kFloat);
}

TEST(LinearCrossEntropy, GivesOneSidedGradients) {
  const at::Tensor x = normal({12, 9}, 1), weight = normal({21, 9}, 2),
                   targets = some_targets(12, 21, true);
  const auto both = output_and_gradients(call, {x, weight, targets});
  const at::Tensor only_x = x.clone().requires_grad_(),
                   only_weight = weight.clone().requires_grad_();
  const at::Tensor scale = normal({}, 77);
  linear_cross_entropy(only_x, weight, targets).backward(scale);
  linear_cross_entropy(x, only_weight, targets).backward(scale);
  expect_same_bits(only_x.grad(), both[1]);
  expect_same_bits(only_weight.grad(), both[2]);
}

TEST(LinearCrossEntropy, HandsItsGradientsOverOnce) {
  const at::Tensor x = normal({5, 9}, 1).requires_grad_(),
                   weight = normal({7, 9}, 2).requires_grad_();
  const at::Tensor loss = linear_cross_entropy(x, weight, some_targets(5, 7, false));
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_THAT(user_error([&] { loss.backward(); }), HasSubstr("first backward"));
}

TEST(LinearCrossEntropy, SameBitsForAnyThreadCount) {
  at_every_simd_level([] {
    expect_same_for_any_threads(
        call, {normal({300, 33}, 1), normal({77, 33}, 2), some_targets(300, 77, true)});
  });
}

TEST(LinearCrossEntropy, NothingOrOnlyIgnoredTokensLoseNothing) {
  const at::Tensor weight = normal({7, 3}, 2);
  for (const int64_t rows : {0, 4}) {
    const auto all = output_and_gradients(
        call, {normal({rows, 3}, 1), weight, at::full({rows}, -100, at::kLong)});
    EXPECT_EQ(all[0].item<float>(), 0.0f);
    for (size_t i = 1; i < 3; ++i) EXPECT_EQ(all[i].abs().sum().item<float>(), 0.0f);
  }
}

TEST(LinearCrossEntropy, IsNotANumberWhenAnInputIs) {
  at_every_simd_level([] {
    for (const float bad : {NAN, INFINITY}) {
      at::Tensor x = normal({3, 4}, 1);
      x[1][2].fill_(bad);
      EXPECT_TRUE(linear_cross_entropy(x, normal({40, 4}, 2), some_targets(3, 40, false))
                      .isnan()
                      .item<bool>());
    }
  });
}

TEST(LinearCrossEntropy, FarLogitsStayFinite) {
  at_every_simd_level([] {
    const at::Tensor x = at::full({2, 1}, 300.0f), weight = at::linspace(-1, 1, 40).unsqueeze(1);
    const auto actual = output_and_gradients(call, {x, weight, at::tensor({0, 39}, at::kLong)});
    const auto expected = output_and_gradients(
        call_composed, {x.to(at::kDouble), weight.to(at::kDouble), at::tensor({0, 39}, at::kLong)});
    for (size_t i = 0; i < 3; ++i) expect_close(actual[i], expected[i], 1e-5);
  });
}

TEST(LinearCrossEntropy, GradientsMatchDifferences) {
  expect_gradients_like_differences(
      call,
      {normal({5, 4}, 1, at::kDouble), normal({6, 4}, 2, at::kDouble), some_targets(5, 6, true)});
}

TEST(LinearCrossEntropy, HasAShapeOnTheMetaDevice) {
  const auto meta = at::TensorOptions().device(at::kMeta);
  const at::Tensor weight = at::empty({50, 8}, meta).requires_grad_();
  EXPECT_EQ(
      linear_cross_entropy(at::empty({6, 8}, meta), weight, at::empty({6}, meta.dtype(at::kLong)))
          .dim(),
      0);
}

TEST(LinearCrossEntropy, RefusesNamingTheMistake) {
  const at::Tensor x = at::zeros({3, 4}), weight = at::zeros({5, 4});
  EXPECT_THAT(
      user_error([&] { linear_cross_entropy(x, weight, at::tensor({0, 5, 1}, at::kLong)); }),
      HasSubstr("target 5 of token 1 is outside of the vocabulary of 5"));
  EXPECT_THAT(user_error([&] { linear_cross_entropy(x, weight, at::tensor({0, 1}, at::kLong)); }),
              HasSubstr("int64 [3]"));
  EXPECT_THAT(user_error([&] {
                linear_cross_entropy(x, at::zeros({5, 3}), at::tensor({0, 1, 2}, at::kLong));
              }),
              HasSubstr("[5, 3]"));
}

}  // namespace
}  // namespace dovetail::ops::cross_entropy_test
