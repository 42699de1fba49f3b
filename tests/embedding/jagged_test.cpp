#include "dovetail/embedding/pack/jagged.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

namespace dovetail::embedding::jagged_test {
namespace {

/// Bag (f, b) has (f + b) % 3 ids, numbered through.
Jagged numbered(int64_t features, int64_t samples, bool weighted) {
  std::vector<int64_t> offsets = {0};
  for (int64_t f = 0; f < features; ++f)
    for (int64_t b = 0; b < samples; ++b) offsets.push_back(offsets.back() + (f + b) % 3);
  Jagged batch{.values = at::arange(offsets.back(), at::kLong),
               .offsets = at::tensor(offsets, at::kLong),
               .weights = {},
               .features = features,
               .samples = samples};
  if (weighted) batch.weights = at::arange(offsets.back(), at::kFloat) / 2;
  return batch;
}

std::vector<int64_t> bag(const Jagged& batch, int64_t f, int64_t b) {
  const int64_t* offsets = batch.offsets.const_data_ptr<int64_t>() + f * batch.samples + b;
  const int64_t* values = batch.values.const_data_ptr<int64_t>();
  return {values + offsets[0], values + offsets[1]};
}

TEST(Jagged, ItsSamplesAreABatchOfTheSameBags) {
  for (const bool weighted : {false, true}) {
    const Jagged batch = numbered(4, 7, weighted);
    for (const auto& [first, count] : {std::pair{0, 7}, {0, 3}, {2, 4}, {6, 1}, {3, 0}}) {
      const Jagged part = samples_of(batch, first, count);
      EXPECT_EQ(part.features, 4);
      EXPECT_EQ(part.samples, count);
      ASSERT_EQ(part.offsets.numel(), 4 * count + 1);
      EXPECT_EQ(part.offsets[4 * count].item<int64_t>(), part.values.numel());
      for (int64_t f = 0; f < 4; ++f)
        for (int64_t b = 0; b < count; ++b) EXPECT_EQ(bag(part, f, b), bag(batch, f, first + b));
      ASSERT_EQ(part.weights.defined(), weighted);
      if (weighted) {
        EXPECT_TRUE(at::equal(part.weights, part.values.to(at::kFloat) / 2));
      }
    }
  }
}

}  // namespace
}  // namespace dovetail::embedding::jagged_test
