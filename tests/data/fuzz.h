#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <random>
#include <string>

namespace dovetail {

/// How many inputs a fuzz test tries: DOVETAIL_FUZZ_INPUTS, or few enough for a few seconds.
inline int64_t fuzz_inputs(int64_t few) {
  const char* wanted = std::getenv("DOVETAIL_FUZZ_INPUTS");
  return wanted != nullptr ? std::atoll(wanted) : few;
}

/// `seed_input` with one to four changes: a bit, a byte, a digit run made huge or negative, a stretch removed, doubled
/// or moved, the end cut off.
inline std::string mutated(const std::string& seed_input, std::mt19937_64& random) {
  std::string input = seed_input;
  const auto below = [&](size_t bound) { return bound == 0 ? size_t{0} : static_cast<size_t>(random() % bound); };
  for (size_t changes = 1 + below(4); changes > 0 && !input.empty(); --changes) {
    const size_t at = below(input.size());
    const size_t length = 1 + below(std::min<size_t>(input.size() - at, 40));
    switch (below(7)) {
      case 0:
        input[at] = static_cast<char>(input[at] ^ (1 << below(8)));
        break;
      case 1:
        input[at] = static_cast<char>(random());
        break;
      case 2:
        input.erase(at, length);
        break;
      case 3:
        input.insert(at, input.substr(at, length));
        break;
      case 4:
        input.insert(below(input.size()), input.substr(at, length));
        break;
      case 5:
        input.resize(at);
        break;
      default: {
        static const char* const kNumbers[] = {"-1", "18446744073709551615", "9007199254740993", "1e400", "0.5", "null",
                                               "[]"};
        const size_t digit = input.find_first_of("0123456789", at);
        if (digit == std::string::npos) break;
        const size_t end = std::min(input.find_first_not_of("0123456789", digit), input.size());
        input.replace(digit, end - digit, kNumbers[below(std::size(kNumbers))]);
      }
    }
  }
  return input;
}

}  // namespace dovetail
