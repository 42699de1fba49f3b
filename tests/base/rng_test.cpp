#include "dovetail/base/rng.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "dovetail/base/error.h"

namespace dovetail::rng_test {
namespace {

using Words = std::array<uint32_t, 4>;
constexpr auto kStream = RandomStream::kTest;

// Checks the sum of (observed - expected)^2 / expected, whose mean is the number of cells minus
// one. A correct generator does not exceed that by six standard deviations. The numbers are fixed,
// so all runs agree.
void expect_uniform(const std::vector<int64_t>& counts) {
  int64_t total = 0;
  for (const int64_t count : counts) total += count;
  const double expected = static_cast<double>(total) / static_cast<double>(counts.size());
  double statistic = 0;
  for (const int64_t count : counts)
    statistic += std::pow(static_cast<double>(count) - expected, 2) / expected;
  const double freedom = static_cast<double>(counts.size()) - 1;
  EXPECT_LT(statistic, freedom + 6 * std::sqrt(2 * freedom) + 6);
}

// kat_vectors of Random123, philox4x32 with ten rounds.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox(0, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(~0ULL, ~0ULL, ~0ULL), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomBelow, IsUniformAlsoWhereManyDrawsAreRefused) {
  for (const uint64_t bound : {2ULL, 3ULL, 7ULL, 100ULL}) {
    std::vector<int64_t> counts(bound);
    for (uint64_t i = 0; i < 20'000; ++i) ++counts[random_below(5, kStream, i, bound)];
    expect_uniform(counts);
  }
  // A quarter of all draws is refused for this bound; without that the first third would come up
  // twice as often.
  const uint64_t bound = 3ULL << 62;
  std::vector<int64_t> thirds(3);
  for (uint64_t i = 0; i < 20'000; ++i) {
    const uint64_t value = random_below(6, kStream, i, bound);
    ASSERT_LT(value, bound);
    ++thirds[value >> 62];
  }
  expect_uniform(thirds);
}

TEST(RandomBelow, ExtremeBounds) {
  EXPECT_EQ(random_below(1, kStream, 1, 1), 0U);
  EXPECT_THROW(random_below(1, kStream, 1, 0), InternalError);
  std::set<uint64_t> high_bits;
  for (uint64_t i = 0; i < 64; ++i) high_bits.insert(random_below(1, kStream, i, ~0ULL) >> 60);
  EXPECT_GT(high_bits.size(), 10U);
}

TEST(RandomUniform, FillsTheUnitInterval) {
  std::vector<int64_t> counts(64);
  double sum = 0;
  constexpr uint64_t kDraws = 64'000;
  for (uint64_t i = 0; i < kDraws; ++i) {
    const double value = random_uniform(9, kStream, i);
    ASSERT_GE(value, 0.0);
    ASSERT_LT(value, 1.0);
    EXPECT_EQ(std::ldexp(value, 53), std::floor(std::ldexp(value, 53)));
    ++counts[static_cast<size_t>(value * 64)];
    sum += value;
  }
  expect_uniform(counts);
  EXPECT_NEAR(sum / kDraws, 0.5, 6 * std::sqrt(1.0 / 12 / kDraws));
}

TEST(RandomNormal, HasTheMomentsAndTheQuantilesOfTheNormalDistribution) {
  constexpr int kDraws = 100'000;
  double first = 0, second = 0, fourth = 0, product = 0;
  // Cells of equal probability through the distribution function.
  std::vector<int64_t> counts(32);
  for (uint64_t i = 0; i < kDraws; ++i) {
    const auto pair = random_normal(11, kStream, i);
    product += pair[0] * pair[1];
    for (const double x : pair) {
      ASSERT_TRUE(std::isfinite(x));
      first += x;
      second += x * x;
      fourth += x * x * x * x;
      ++counts[std::min<size_t>(31,
                                static_cast<size_t>(32 * 0.5 * std::erfc(-x / std::sqrt(2.0))))];
    }
  }
  constexpr double kSamples = 2.0 * kDraws;
  EXPECT_NEAR(first / kSamples, 0, 6 / std::sqrt(kSamples));
  EXPECT_NEAR(second / kSamples, 1, 6 * std::sqrt(2 / kSamples));
  EXPECT_NEAR(fourth / kSamples, 3, 6 * std::sqrt(96 / kSamples));
  EXPECT_NEAR(product / kDraws, 0, 6 / std::sqrt(kDraws));
  expect_uniform(counts);
}

TEST(Randomness, DependsOnSeedStreamAndIndex) {
  std::set<double> seen;
  int draws = 0;
  for (const uint64_t seed : {0ULL, 1ULL, 1ULL << 32, ~0ULL}) {
    for (const auto stream : {RandomStream::kShuffle, RandomStream::kInitialize, kStream}) {
      for (const uint64_t index : {0ULL, 1ULL, 1ULL << 32, 1ULL << 63}) {
        seen.insert(random_uniform(seed, stream, index));
        ++draws;
        EXPECT_EQ(random_uniform(seed, stream, index), random_uniform(seed, stream, index));
      }
    }
  }
  EXPECT_EQ(seen.size(), static_cast<size_t>(draws));
}

TEST(PermutedIndex, IsAPermutationOfEverySize) {
  std::vector<uint64_t> sizes = {255, 256, 257, 1000, 4095, 4096, 4097, 65'537};
  for (uint64_t size = 1; size <= 130; ++size) sizes.push_back(size);
  for (const uint64_t size : sizes) {
    std::vector<bool> taken(size);
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t to = permuted_index(size * 7 + 1, i, size);
      ASSERT_LT(to, size);
      ASSERT_FALSE(taken[to]) << size << " " << i;
      taken[to] = true;
    }
  }
  EXPECT_THROW(permuted_index(1, 5, 5), InternalError);
  EXPECT_THROW(permuted_index(1, 0, 0), InternalError);
}

TEST(PermutedIndex, HugeSizes) {
  for (const uint64_t size : {(1ULL << 40) + 1, 1ULL << 62, ~0ULL}) {
    std::set<uint64_t> images;
    for (uint64_t i = 0; i < 1000; ++i) images.insert(permuted_index(3, size - 1 - i, size));
    EXPECT_EQ(images.size(), 1000U);
    EXPECT_LT(*images.rbegin(), size);
    EXPECT_LT(*images.begin(), size / 50);
    EXPECT_GT(*images.rbegin(), size - size / 50);
  }
}

TEST(PermutedIndex, EveryElementGoesEverywhere) {
  for (const uint64_t size : {2ULL, 3ULL, 5ULL, 16ULL, 33ULL}) {
    for (const uint64_t index : {uint64_t{0}, size / 2, size - 1}) {
      std::vector<int64_t> counts(size);
      for (uint64_t seed = 0; seed < 6000; ++seed) ++counts[permuted_index(seed, index, size)];
      expect_uniform(counts);
    }
  }
}

TEST(PermutedIndex, NeighboursPart) {
  // In a random permutation one pair of neighbours stays adjacent in order, on average.
  constexpr uint64_t kSize = 10'000;
  int adjacent = 0;
  for (uint64_t i = 0; i + 1 < kSize; ++i)
    adjacent += permuted_index(8, i + 1, kSize) == permuted_index(8, i, kSize) + 1;
  EXPECT_LT(adjacent, 10);
}

TEST(MixSeed, IsOneToOneInEachArgumentAndNotSymmetric) {
  std::set<uint64_t> seen;
  for (uint64_t a = 0; a < 100; ++a) {
    for (uint64_t b = 0; b < 100; ++b) seen.insert(mix_seed(a, b));
  }
  EXPECT_EQ(seen.size(), 10'000U);
  EXPECT_NE(mix_seed(1, 2), mix_seed(2, 1));
}

}  // namespace
}  // namespace dovetail::rng_test
