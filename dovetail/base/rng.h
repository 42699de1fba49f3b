#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace dovetail {

/// Random number generator Philox4x32-10 (Salmon et al., SC 2011). Returns four random words as a
/// pure function of key and counter. All random numbers in Dovetail are functions of (seed, stream,
/// index), never of the order of execution. The stream names their purpose, and the index counts
/// the numbers within it.
std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter_low, uint64_t counter_high);

/// Stream: purpose of a random number. It is the high half of Philox's counter, so that two uses of
/// one seed never share random numbers.
enum class RandomStream : uint64_t {
  kShuffle = 1,
  kInitialize = 2,
  kSample = 3,
  kDropout = 4,
  kMixture = 5,
  kQuantize = 6,
  kRoutingDraw = 7,
  kRoutingNoise = 8,
  kAdmission = 9,
  kNegatives = 10,
  kCrop = 11,
  kMirror = 12,
  kTest = 99
};

/// Returns a uniform integer in [0, bound) for (seed, stream, index), with bound > 0. Rejection
/// sampling avoids modulo bias.
uint64_t random_below(uint64_t seed, RandomStream stream, uint64_t index, uint64_t bound);

/// Returns a uniform double in [0, 1) with 53 random bits for (seed, stream, index).
double random_uniform(uint64_t seed, RandomStream stream, uint64_t index);

/// Returns two independent standard normal doubles (Box-Muller) for (seed, stream, index).
std::array<double, 2> random_normal(uint64_t seed, RandomStream stream, uint64_t index);

/// Returns element `index` of a pseudo-random permutation of [0, size) that `seed` determines.
/// Needs O(1) memory (Feistel network with cycle walking).
uint64_t permuted_index(uint64_t seed, uint64_t index, uint64_t size);

/// Mixes two words into one 64-bit key (SplitMix64 finaliser).
uint64_t mix_seed(uint64_t a, uint64_t b);

/// Returns a 64-bit key for an object with this name, such as a table: the first eight bytes of the
/// name's SHA-256. Mixed with the seed, it gives each object random numbers of its own.
uint64_t name_key(std::string_view name);

}  // namespace dovetail
