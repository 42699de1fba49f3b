#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dovetail/ops/composed.h"
#include "dovetail/ops/functions.h"
#include "tests/ops/testing.h"

namespace dovetail::ops::attention_test {
namespace {

using testing::at_every_simd_level;
using testing::expect_close;
using testing::expect_gradients_like_differences;
using testing::expect_like_float64;
using testing::expect_same_for_any_threads;
using ::testing::HasSubstr;
using testing::normal;
using testing::Operation;
using testing::user_error;

struct Case {
  int64_t batch, queries, keys, heads, kv_heads, head_dim, rotary_dim;
};

std::vector<at::Tensor> inputs(const Case& c, at::ScalarType dtype = at::kFloat) {
  return {normal({c.batch, c.queries, c.heads, c.head_dim}, 1, dtype),
          normal({c.batch, c.keys, c.kv_heads, c.head_dim}, 2, dtype),
          normal({c.batch, c.keys, c.kv_heads, c.head_dim}, 3, dtype)};
}

Operation operation(const Case& c) {
  return [c](const std::vector<at::Tensor>& x) {
    return attention(x[0], x[1], x[2], {.rotary_dim = c.rotary_dim});
  };
}

const std::vector<Case> kCases = {
    {1, 1, 1, 1, 1, 8, 0},       {2, 5, 5, 2, 1, 16, 16},    {1, 33, 33, 4, 2, 10, 4},
    {1, 131, 131, 2, 2, 64, 64}, {2, 7, 40, 3, 3, 24, 8},    {1, 64, 200, 4, 1, 33, 32},
    {1, 1, 129, 2, 1, 128, 64},  {1, 300, 300, 1, 1, 16, 2},
};

/// Softmax attention written out in float64, one query at a time: independent of ATen's attention
/// and of ours.
at::Tensor serial_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            AttentionOptions options) {
  const int64_t offset = k.size(1) - q.size(1), group = q.size(2) / k.size(2);
  const auto turned = [&](const at::Tensor& head, int64_t position) {
    at::Tensor row = head.to(at::kDouble).clone();
    double* x = row.data_ptr<double>();
    const int64_t half = options.rotary_dim / 2;
    for (int64_t i = 0; i < half; ++i) {
      const double angle =
          static_cast<double>(position) * std::pow(options.theta, -2.0 * i / options.rotary_dim);
      const double a = x[i], b = x[i + half];
      x[i] = a * std::cos(angle) - b * std::sin(angle);
      x[i + half] = b * std::cos(angle) + a * std::sin(angle);
    }
    return row;
  };
  at::Tensor out = at::zeros(q.sizes(), at::kDouble);
  for (int64_t b = 0; b < q.size(0); ++b) {
    for (int64_t h = 0; h < q.size(2); ++h) {
      for (int64_t t = 0; t < q.size(1); ++t) {
        const at::Tensor query = turned(q[b][t][h], t + offset);
        std::vector<at::Tensor> scores, values;
        for (int64_t s = 0; s <= t + offset; ++s) {
          const at::Tensor key =
              s < offset ? k[b][s][h / group].to(at::kDouble) : turned(k[b][s][h / group], s);
          scores.push_back(at::dot(query, key) / std::sqrt(static_cast<double>(q.size(3))));
          values.push_back(v[b][s][h / group].to(at::kDouble));
        }
        out[b][t][h].copy_(at::mv(at::stack(values).t(), at::softmax(at::stack(scores), 0)));
      }
    }
  }
  return out;
}

TEST(Attention, MatchesASerialReference) {
  for (const Case& c : {Case{1, 5, 5, 2, 1, 8, 8}, Case{2, 3, 9, 2, 2, 6, 4}}) {
    const auto x = inputs(c);
    const at::Tensor expected = serial_attention(x[0], x[1], x[2], {.rotary_dim = c.rotary_dim});
    at_every_simd_level([&] { expect_close(operation(c)(x), expected, 2e-6); });
    const auto wide = inputs(c, at::kDouble);
    expect_close(operation(c)(wide),
                 serial_attention(wide[0], wide[1], wide[2], {.rotary_dim = c.rotary_dim}), 1e-12);
  }
}

TEST(Attention, Float32MatchesFloat64ForwardAndBackward) {
  at_every_simd_level([] {
    for (const Case& c : kCases) {
      SCOPED_TRACE(::testing::Message()
                   << "T " << c.queries << " S " << c.keys << " D " << c.head_dim);
      expect_like_float64(operation(c), inputs(c), 1e-5);
    }
  });
}

TEST(Attention, BFloat16MatchesFloat64OfTheSameValues) {
  at_every_simd_level([] {
    for (const Case& c : kCases) expect_like_float64(operation(c), inputs(c, at::kBFloat16), 4e-2);
  });
}

TEST(Attention, TakesOneProjectionWholeOrInViews) {
  const at::Tensor qkv = normal({2, 37, (4 + 2 + 2) * 16}, 5);
  const Operation views = [](const std::vector<at::Tensor>& x) {
    const auto parts = x[0].split_with_sizes({64, 32, 32}, -1);
    return attention(parts[0].unflatten(-1, {4, 16}), parts[1].unflatten(-1, {2, 16}),
                     parts[2].unflatten(-1, {2, 16}), {.rotary_dim = 16});
  };
  const Operation whole = [](const std::vector<at::Tensor>& x) {
    return attention(x[0], 4, 2, {.rotary_dim = 16});
  };
  const auto gradient_of = [&](const Operation& op, const at::Tensor& x_in) {
    const at::Tensor x = x_in.detach().clone().requires_grad_();
    op({x}).square().sum().backward();
    return x.grad();
  };
  at_every_simd_level([&] {
    expect_like_float64(views, {qkv}, 1e-5);
    expect_like_float64(whole, {qkv}, 1e-5);
    EXPECT_TRUE(gradient_of(whole, qkv).equal(gradient_of(views, qkv)));
    const at::Tensor strided = qkv.transpose(0, 1).contiguous().transpose(0, 1);
    EXPECT_TRUE(gradient_of(whole, strided).equal(gradient_of(views, qkv)));
  });
}

TEST(Attention, SameBitsForAnyThreadCount) {
  const Case c{3, 70, 70, 4, 2, 16, 16};
  at_every_simd_level([&] { expect_same_for_any_threads(operation(c), inputs(c)); });
}

TEST(Attention, NoQuerySeesTheFuture) {
  const Case c{1, 150, 150, 1, 1, 16, 0};
  at_every_simd_level([&] {
    auto x = inputs(c);
    const at::Tensor before = operation(c)(x);
    // Even NaN in later keys and values must not reach earlier queries.
    x[1].narrow(1, 100, 50).fill_(NAN);
    const at::Tensor after = operation(c)(x);
    testing::expect_same_bits(after.narrow(1, 0, 100), before.narrow(1, 0, 100));
    EXPECT_TRUE(after.narrow(1, 100, 50).isnan().all().item<bool>());
  });
}

TEST(Attention, LargeScoresNeitherOverflowNorVanish) {
  const Case c{1, 40, 40, 1, 1, 8, 0};
  at_every_simd_level([&] {
    auto x = inputs(c);
    x[0].mul_(100);
    expect_like_float64(operation(c), x, 1e-3);
  });
}

TEST(Attention, DecodingWithACacheContinuesTheWholeSequence) {
  const int64_t total = 23, cached = 17;
  const AttentionOptions options{.rotary_dim = 8, .theta = 500.0};
  const at::Tensor q = normal({1, total, 4, 16}, 1), k = normal({1, total, 2, 16}, 2),
                   v = normal({1, total, 2, 16}, 3);
  const at::Tensor whole = attention(q, k, v, options);
  const at::Tensor cache =
      at::cat({rotate(k.narrow(1, 0, cached), 0, options), k.narrow(1, cached, total - cached)}, 1);
  expect_close(attention(q.narrow(1, cached, total - cached), cache, v, options),
               whole.narrow(1, cached, total - cached), 1e-6);
}

TEST(Attention, GradientsOfTheComposedPathMatchDifferences) {
  const Case c{1, 4, 6, 2, 1, 4, 4};
  expect_gradients_like_differences(operation(c), inputs(c, at::kDouble));
}

TEST(Attention, WorksOnTheMetaDevice) {
  const auto meta = at::TensorOptions().device(at::kMeta);
  const at::Tensor q = at::empty({2, 8, 4, 16}, meta), k = at::empty({2, 8, 2, 16}, meta);
  EXPECT_EQ(attention(q, k, k, {.rotary_dim = 16}).sizes(), q.sizes());
}

TEST(Attention, RefusesNamingTheShapes) {
  EXPECT_THAT(user_error([] { attention(normal({1, 2, 30}, 1), 4, 2); }),
              HasSubstr("4 heads and 2 kv_heads"));
  const at::Tensor q = at::zeros({1, 4, 4, 8}), k = at::zeros({1, 4, 3, 8});
  EXPECT_THAT(user_error([&] { attention(q, k, k); }), HasSubstr("multiple"));
  EXPECT_THAT(user_error([&] { attention(q, q.narrow(1, 0, 2), q.narrow(1, 0, 2)); }),
              HasSubstr("keys"));
  EXPECT_THAT(user_error([&] { attention(q, q, q, {.rotary_dim = 3}); }),
              HasSubstr("rotary_dim is 3"));
  EXPECT_THAT(user_error([&] { attention(q, q, q.to(at::kDouble)); }), HasSubstr("dtype"));
  EXPECT_THAT(user_error([&] { attention(q[0], q, q); }), HasSubstr("[4, 4, 8]"));
}

}  // namespace
}  // namespace dovetail::ops::attention_test
