#include "dovetail/base/rng.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <string>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/philox.h"

namespace dovetail {
namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;

// Finaliser of SplitMix64, which is a bijection (Steele, Lea, Flood, OOPSLA 2014; constants of
// Stafford's variant 13).
uint64_t finalise(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

uint64_t word64(const std::array<uint32_t, 4>& words, int half) {
  const size_t low = 2 * static_cast<size_t>(half);
  return words[low] | uint64_t{words[low + 1]} << 32;
}

// Retries of one draw use the upper half of the counter's high word, which no stream uses.
std::array<uint32_t, 4> draw(uint64_t seed, RandomStream stream, uint64_t index, uint64_t attempt) {
  return philox(seed, index, static_cast<uint64_t>(stream) | attempt << 32);
}

}  // namespace

std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
  const PhiloxWords x = philox_words(key, counter_low, counter_high);
  return {x.word[0], x.word[1], x.word[2], x.word[3]};
}

uint64_t random_below(uint64_t seed, RandomStream stream, uint64_t index, uint64_t bound) {
  DOVETAIL_CHECK(bound > 0, "a random number below 0 was asked for");
  // Method of Lemire, ACM TOMACS 2019. The high word of x * bound is uniform if low words that
  // occur too often are rejected.
  __extension__ using Product = unsigned __int128;
  const uint64_t refused = (0 - bound) % bound;
  for (uint64_t attempt = 0;; ++attempt) {
    const auto words = draw(seed, stream, index, attempt);
    for (int half = 0; half < 2; ++half) {
      const Product product = Product{word64(words, half)} * bound;
      if (static_cast<uint64_t>(product) >= refused) return static_cast<uint64_t>(product >> 64);
    }
  }
}

double random_uniform(uint64_t seed, RandomStream stream, uint64_t index) {
  return static_cast<double>(word64(draw(seed, stream, index, 0), 0) >> 11) * 0x1p-53;
}

std::array<double, 2> random_normal(uint64_t seed, RandomStream stream, uint64_t index) {
  const auto words = draw(seed, stream, index, 0);
  // The radius needs a uniform number in (0, 1], since the logarithm of 0 is not finite.
  const double radius =
      std::sqrt(-2.0 * std::log(static_cast<double>((word64(words, 0) >> 11) + 1) * 0x1p-53));
  const double angle =
      2.0 * std::numbers::pi * static_cast<double>(word64(words, 1) >> 11) * 0x1p-53;
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

uint64_t permuted_index(uint64_t seed, uint64_t index, uint64_t size) {
  DOVETAIL_CHECK(index < size, "index {} of a permutation of {} elements", index, size);
  if (size == 1) return 0;
  // A Feistel network permutes the next power of two. Following its cycle until the value is below
  // `size` permutes [0, size). This takes fewer than two steps on average.
  constexpr int kRounds = 8;
  const int bits = std::max(2, static_cast<int>(std::bit_width(size - 1)));
  const int right_bits = bits / 2, left_bits = bits - right_bits;
  uint64_t at = index;
  do {
    uint64_t left = at >> right_bits, right = at & ((uint64_t{1} << right_bits) - 1);
    for (int round = 0; round < kRounds; ++round) {
      const bool even = round % 2 == 0;
      const uint64_t noise =
          mix_seed(mix_seed(seed, static_cast<uint64_t>(round)), even ? right : left);
      uint64_t& half = even ? left : right;
      half = (half ^ noise) & ((uint64_t{1} << (even ? left_bits : right_bits)) - 1);
    }
    at = left << right_bits | right;
  } while (at >= size);
  return at;
}

uint64_t mix_seed(uint64_t a, uint64_t b) { return finalise(finalise(a + kGolden) + b + kGolden); }

uint64_t name_key(std::string_view name) {
  return std::stoull(sha256_of(name).substr(0, 16), nullptr, 16);
}

}  // namespace dovetail
