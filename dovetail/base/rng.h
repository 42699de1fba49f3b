#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace dovetail {

/// Philox4x32-10 (Salmon et al., SC 2011): four random words as a pure function of key and counter.
/// Randomness in Dovetail is keyed by what it is for (seed, stream, index), never by order of
/// execution.
std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter_low, uint64_t counter_high);

/// Streams: the high half of the counter, so that two uses of one seed never meet.
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
  kTest = 99
};

/// A uniform integer in [0, bound) for (seed, stream, index); exact (rejection, no modulo bias).
/// bound > 0.
uint64_t random_below(uint64_t seed, RandomStream stream, uint64_t index, uint64_t bound);

/// A uniform double in [0, 1) with 53 bits.
double random_uniform(uint64_t seed, RandomStream stream, uint64_t index);

/// Two independent standard normal doubles (Box-Muller).
std::array<double, 2> random_normal(uint64_t seed, RandomStream stream, uint64_t index);

/// A fixed pseudo-random permutation of [0, size): element `index` in O(1) memory (Feistel network
/// with cycle walking).
uint64_t permuted_index(uint64_t seed, uint64_t index, uint64_t size);

/// Mixes words into one 64-bit key (SplitMix64 finaliser).
uint64_t mix_seed(uint64_t a, uint64_t b);

/// The key of what has a name: the first eight bytes of its SHA-256.
uint64_t name_key(std::string_view name);

}  // namespace dovetail
