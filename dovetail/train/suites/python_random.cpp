#include "dovetail/train/suites/python_random.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "dovetail/base/error.h"

namespace dovetail::train {
namespace {

/// Seed sequence that gives std::mt19937 the state of mt19937ar's init_by_array({key}).
class SeedByArray {
 public:
  using result_type = uint32_t;
  explicit SeedByArray(uint32_t key) : key_(key) {}

  template <class Iterator>
  void generate(Iterator begin, Iterator end) {
    const auto words = static_cast<uint32_t>(end - begin);
    const auto mixed = [](uint32_t previous) { return previous ^ (previous >> 30U); };
    begin[0] = 19650218;
    for (uint32_t i = 1; i < words; ++i) begin[i] = 1812433253U * mixed(begin[i - 1]) + i;
    uint32_t i = 1;
    const auto advance = [&] {
      if (++i < words) return;
      begin[0] = begin[words - 1];
      i = 1;
    };
    for (uint32_t k = 0; k < words; ++k, advance())
      begin[i] = (begin[i] ^ (mixed(begin[i - 1]) * 1664525U)) + key_;
    for (uint32_t k = 0; k + 1 < words; ++k, advance())
      begin[i] = (begin[i] ^ (mixed(begin[i - 1]) * 1566083941U)) - i;
    begin[0] = 0x80000000U;
  }

 private:
  uint32_t key_;
};

std::mt19937 seeded(uint32_t seed) {
  SeedByArray sequence(seed);
  return std::mt19937(sequence);
}

}  // namespace

PythonRandom::PythonRandom(uint32_t seed) : twister_(seeded(seed)) {}

size_t PythonRandom::below(size_t limit) {
  const auto bits = static_cast<uint32_t>(std::bit_width(limit));
  DOVETAIL_CHECK(bits > 0 && bits <= 32, "a limit of {} is not 1 to 2^32 - 1", limit);
  size_t drawn = 0;
  do {
    drawn = static_cast<size_t>(twister_() >> (32U - bits));
  } while (drawn >= limit);
  return drawn;
}

std::vector<size_t> PythonRandom::sample(size_t size, size_t count) {
  DOVETAIL_CHECK(count <= size, "a sample of {} from {}", count, size);
  // Python estimates which needs less memory: a list of the indices left, or a set of those drawn.
  double set_size = 21;
  if (count > 5)
    set_size += std::pow(4, std::ceil(std::log(static_cast<double>(count) * 3) / std::log(4)));
  std::vector<size_t> drawn;
  if (static_cast<double>(size) <= set_size) {
    std::vector<size_t> left(size);
    std::iota(left.begin(), left.end(), size_t{0});
    for (size_t i = 0; i < count; ++i) {
      const size_t j = below(size - i);
      drawn.push_back(left[j]);
      left[j] = left[size - i - 1];
    }
    return drawn;
  }
  while (drawn.size() < count) {
    const size_t index = below(size);
    if (std::ranges::find(drawn, index) == drawn.end()) drawn.push_back(index);
  }
  return drawn;
}

}  // namespace dovetail::train
