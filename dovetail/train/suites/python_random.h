#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace dovetail::train {

/// Python's `random.Random(seed)`: the Mersenne Twister MT19937, seeded by init_by_array.
/// Source: CPython, Lib/random.py and Modules/_randommodule.c; Matsumoto and Nishimura's mt19937ar.
class PythonRandom {
 public:
  explicit PythonRandom(uint32_t seed);

  /// Returns `count` different indices below `size`, as `random.sample(range(size), count)` of
  /// CPython 3.11 and later does. Needs 0 <= count <= size.
  std::vector<size_t> sample(size_t size, size_t count);

 private:
  /// Returns a random integer in [0, limit), for limit > 0.
  size_t below(size_t limit);

  std::mt19937 twister_;
};

}  // namespace dovetail::train
