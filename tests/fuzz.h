#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "dovetail/base/error.h"

namespace dovetail::test {

/// Number of inputs that a fuzz test tries: DOVETAIL_FUZZ_INPUTS, or `few`, which takes a few
/// seconds.
inline int64_t fuzz_inputs(int64_t few) {
  const char* wanted = std::getenv("DOVETAIL_FUZZ_INPUTS");
  return wanted != nullptr ? std::atoll(wanted) : few;
}

/// Returns a copy of `seed_input` with one to four changes. A change flips a bit, sets a random
/// byte or replaces a number by an extreme one. Others remove, double or move a stretch, or cut off
/// the end.
inline std::string mutated(const std::string& seed_input, std::mt19937_64& random) {
  std::string input = seed_input;
  const auto below = [&](size_t bound) {
    return bound == 0 ? size_t{0} : static_cast<size_t>(random() % bound);
  };
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
        static const char* const kNumbers[] = {
            "-1", "18446744073709551615", "9007199254740993", "1e400", "0.5", "null", "[]"};
        const size_t digit = input.find_first_of("0123456789", at);
        if (digit == std::string::npos) break;
        const size_t end = std::min(input.find_first_not_of("0123456789", digit), input.size());
        input.replace(digit, end - digit, kNumbers[below(std::size(kNumbers))]);
      }
    }
  }
  return input;
}

/// Returns the bytes escaped as the content of a C string literal.
inline std::string escaped(const std::string& bytes) {
  std::string text;
  char code[8];
  for (const char c : bytes) {
    if (c >= ' ' && c <= '~' && c != '"' && c != '\\') {
      text += c;
    } else {
      std::snprintf(code, sizeof code, "\\%03o", static_cast<unsigned char>(c));
      text += code;
    }
  }
  return text;
}

/// Replaces the content of a file.
inline void overwrite(const std::filesystem::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

/// Returns the maximum resident memory of this process so far, in MiB.
inline int64_t peak_resident_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss / 1024;
}

/// Calls `read(input, i)` with mutations of the seeds, which take turns; i is the index of the
/// seed. Unmutated seeds must be accepted. A UserError counts as a refusal; any other exception
/// fails the test and shows the input. Also fails if all mutations are accepted, all are refused,
/// or memory grows by a GiB.
template <class Read>
void fuzz_each(const std::vector<std::string>& seeds, int64_t few, uint64_t seed,
               const Read& read) {
  constexpr int64_t kMaximumMib = 1024;
  for (size_t i = 0; i < seeds.size(); ++i) ASSERT_NO_THROW(read(seeds[i], i)) << escaped(seeds[i]);
  const int64_t resident_mib = peak_resident_mib();
  std::mt19937_64 random(seed);
  int64_t accepted = 0, refused = 0;
  for (int64_t i = 0, inputs = fuzz_inputs(few); i < inputs; ++i) {
    const size_t from = static_cast<size_t>(i) % seeds.size();
    const std::string input = mutated(seeds[from], random);
    try {
      read(input, from);
      ++accepted;
    } catch (const UserError& e) {
      ASSERT_NE(std::string(e.what()), "");
      for (const char* raw : {"json.exception", "Exception: "})
        ASSERT_EQ(std::string(e.what()).find(raw), std::string::npos) << e.what();
      ++refused;
    } catch (const std::exception& e) {
      FAIL() << "input " << i << ": " << e.what() << "\n\"" << escaped(input) << "\"";
    }
    ASSERT_LT(peak_resident_mib() - resident_mib, kMaximumMib)
        << "input " << i << "\n\"" << escaped(input) << "\"";
    if (::testing::Test::HasFailure()) FAIL() << "input " << i << "\n\"" << escaped(input) << "\"";
  }
  EXPECT_GT(accepted, 0);
  EXPECT_GT(refused, 0);
}

/// Same for a reader of one kind of file.
template <class Read>
void fuzz(const std::vector<std::string>& seeds, int64_t few, uint64_t seed, const Read& read) {
  fuzz_each(seeds, few, seed, [&](const std::string& input, size_t) { read(input); });
}

}  // namespace dovetail::test
