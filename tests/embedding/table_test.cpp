#include "dovetail/embedding/pack/table.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dovetail/base/rng.h"
#include "tests/embedding/testing.h"

namespace dovetail::embedding::table_test {
namespace {

using dovetail::testing::expect_same_bits;
using dovetail::testing::user_error;
using ::testing::HasSubstr;
using testing::ids_from;

TEST(PackedTables, InitialValuesFollowFromSeedNameAndRow) {
  const PackedTables alone({.tables = {{"user", 100, 7}}, .seed = 5});
  const PackedTables packed({.tables = {{"item", 30, 16}, {"user", 100, 7}}, .seed = 5});
  expect_same_bits(alone.weight(0), packed.weight(1));
  const uint64_t key = mix_seed(5, name_key("user"));
  for (const int64_t row : {0, 99}) {
    for (const int64_t column : {0, 3, 4, 6}) {
      const auto words = philox(key, static_cast<uint64_t>(row),
                                static_cast<uint64_t>(RandomStream::kInitialize) |
                                    static_cast<uint64_t>(column / 4) << 32);
      const double uniform = (words[static_cast<size_t>(column % 4)] >> 8) * 0x1p-24;
      EXPECT_NEAR(alone.weight(0)[row][column].item<double>(), (2 * uniform - 1) / 10, 1e-8);
    }
  }
}

TEST(PackedTables, InitialValuesAreUniform) {
  const PackedTables tables({.tables = {{"t", 10000, 32}}, .seed = 1});
  const at::Tensor w = tables.weight(0).to(at::kDouble);
  const double bound = 0.01;  // 1 / sqrt(10000)
  EXPECT_LE(w.max().item<double>(), bound);
  EXPECT_GE(w.min().item<double>(), -bound);
  EXPECT_GT(w.max().item<double>(), 0.9999 * bound);
  EXPECT_NEAR(w.mean().item<double>(), 0, 4 * bound / std::sqrt(3.0 * 320000));
  EXPECT_NEAR(w.square().mean().item<double>(), bound * bound / 3, 2e-7);
  const PackedTables other({.tables = {{"t", 10000, 32}}, .seed = 2}),
      named({.tables = {{"u", 10000, 32}}, .seed = 1});
  EXPECT_FALSE(at::equal(tables.weight(0), other.weight(0)));
  EXPECT_FALSE(at::equal(tables.weight(0), named.weight(0)));
}

TEST(PackedTables, WhatCannotBeIsRefused) {
  EXPECT_THAT(user_error([] { PackedTables({.tables = {{"a", 1, 1}, {"a", 1, 1}}}); }),
              HasSubstr("named \"a\""));
  EXPECT_THAT(user_error([] { PackedTables({.tables = {{"a", 0, 1}}}); }),
              HasSubstr("0 rows of 1"));
  EXPECT_THAT(user_error([] { PackedTables({.tables = {{"a", 1, 1}}, .feature_table = {1}}); }),
              HasSubstr("feature 0 looks into table 1"));
  EXPECT_THAT(user_error([] { PackedTables({.optimizer = {.weight_decay = -1}}); }),
              HasSubstr("weight_decay is -1"));
  EXPECT_THAT(user_error([] { parse_optimizer("lion"); }), HasSubstr("lion"));
  EXPECT_THAT(user_error([] { parse_pooling("max"); }), HasSubstr("max"));
}

TEST(CheckJagged, NamesWhatIsWrong) {
  const std::vector<int64_t> rows = {5, 3};
  const auto error = [&](std::vector<int64_t> values, std::vector<int64_t> offsets) {
    return user_error([&] { check_jagged({ids_from(values), ids_from(offsets), {}, 2, 2}, rows); });
  };
  check_jagged({ids_from({4, 0, 2}), ids_from({0, 1, 2, 2, 3}), at::ones({3}), 2, 2}, rows);
  EXPECT_THAT(error({4, 0, 3}, {0, 1, 2, 2, 3}), HasSubstr("id 3 of feature 1, sample 1"));
  EXPECT_THAT(error({4, -1, 2}, {0, 1, 2, 2, 3}), HasSubstr("id -1 of feature 0, sample 1"));
  EXPECT_THAT(error({INT64_MIN, 1, 2}, {0, 1, 2, 2, 3}), HasSubstr("feature 0, sample 0"));
  EXPECT_THAT(error({0, 0, 0}, {0, 2, 1, 2, 3}), HasSubstr("feature 0, sample 1 goes from 2 to 1"));
  EXPECT_THAT(error({0, 0, 0}, {0, 9, 2, 2, 3}), HasSubstr("feature 0, sample 0 goes from 0 to 9"));
  // Feature 0 would read ids of feature 1 that its own table does not have. The error names the
  // offset, not the id.
  EXPECT_THAT(error({4, 4, 9}, {0, 1, 3, 2, 3}), HasSubstr("feature 1, sample 0 goes from 3 to 2"));
  EXPECT_THAT(error({0, 0, 0}, {0, 1, 2, 2, 2}), HasSubstr("from 0 to the number of ids, 3"));
  EXPECT_THAT(error({0, 0, 0}, {1, 1, 2, 2, 3}), HasSubstr("but go from 1"));
  EXPECT_THAT(error({0, 0, 0}, {0, 1, 3}), HasSubstr("offsets must be (5)"));
  EXPECT_THAT(user_error([&] {
                check_jagged({ids_from({0}), ids_from({0, 0, 0, 0, 1}), at::ones({2}), 2, 2}, rows);
              }),
              HasSubstr("weights must be (1)"));
  EXPECT_THAT(user_error([&] { check_jagged({ids_from({}), ids_from({0}), {}, 1, 0}, rows); }),
              HasSubstr("1 features"));
}

}  // namespace
}  // namespace dovetail::embedding::table_test
