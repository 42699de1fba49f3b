// ctest-labels: fuzz
// Mutated tables of numbers, as text, .npy and .npz, are read or refused.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "dovetail/data/matrix/matrix.h"
#include "npy.h"
#include "strict_table.h"
#include "temporary_folder.h"
#include "tests/fuzz.h"

namespace dovetail::data::matrix_fuzz_test {
namespace {

using namespace std::string_literals;
using namespace std::string_view_literals;

std::string replaced(std::string text, char from, char to) {
  std::replace(text.begin(), text.end(), from, to);
  return text;
}

void fuzz_text(const std::string& name, char delimiter, const std::string& option, uint64_t seed) {
  const TemporaryFolder folder;
  const std::string plain = replaced("a,b,c\n1,2.5,-3\n40,0.25,600\n7,8.5,9\n", ',', delimiter);
  const std::string odd = replaced("\n7,1e3,-inf\n\n1,NA,\"3\"\r\n2,+5,4 \n", ',', delimiter);
  int64_t compared = 0;
  test::fuzz({plain, plain}, 4000, seed, [&](const std::string& input) {
    const auto path = folder.write(name, input);
    const auto table = test::strict_table(input, delimiter);
    compared += table.has_value();
    const Matrix matrix = read_matrix(path, {.delimiter = option});
    table ? test::expect_values(matrix, *table) : test::expect_sound(matrix);
  });
  EXPECT_GT(compared, 2);
  test::fuzz({plain, odd}, 4000, seed + 1, [&](const std::string& input) {
    const auto path = folder.write(name, input);
    test::expect_sound(read_matrix(path, {.bad_values = BadValues::kZero}));
    test::expect_sound(read_matrix(
        path, {.bad_values = BadValues::kSkip, .target = "0", .target_kind = TargetKind::kClass}));
  });
}

TEST(MatrixFuzz, CsvGivesTheTableOfAStrictReader) { fuzz_text("x.csv", ',', ",", 127); }
TEST(MatrixFuzz, TsvGivesTheTableOfAStrictReader) { fuzz_text("x.tsv", '\t', "tab", 131); }
TEST(MatrixFuzz, BlanksGiveTheTableOfAStrictReader) { fuzz_text("x.txt", ' ', "blank", 137); }

using test::little_endian;
using test::npy;

/// Six numbers.
constexpr std::string_view kFloats =
    "\0\0\x80\x3f\0\0\0\x40\0\0\x40\x40\0\0\x80\x40\0\0\xa0\xc0\0\0\xc0\x40"sv;  // 1 2 3 4 -5 6

template <class T>
double decoded(const char* at, bool big) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, at, sizeof(T));
  if (big) std::reverse(bytes, bytes + sizeof(T));
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return static_cast<double>(value);
}

/// The array, if its header is exactly as NumPy writes it and its values are finite in float32.
std::optional<test::Table> strict_array(const std::string& file) {
  if (!file.starts_with("\x93NUMPY\x01\0"sv) || file.size() < 10) return std::nullopt;
  const size_t length =
      static_cast<unsigned char>(file[8]) + (size_t{static_cast<unsigned char>(file[9])} << 8);
  if (file.size() < 10 + length) return std::nullopt;
  const std::string header = file.substr(10, length), data = file.substr(10 + length);
  char order = 0, kind = 0, first[6] = "";
  unsigned size = 0, rows = 0, columns = 0;
  if (std::sscanf(header.c_str(),
                  "{'descr': '%c%c%1u', 'fortran_order': %5[A-Za-z], 'shape': (%4u, %4u)", &order,
                  &kind, &size, first, &rows, &columns) != 6)
    return std::nullopt;
  const bool columns_first = std::string(first) == "True", big = order == '>';
  std::string again =
      fmt::format("{{'descr': '{}{}{}', 'fortran_order': {}, 'shape': ({}, {}), }}", order, kind,
                  size, columns_first ? "True" : "False", rows, columns);
  again.resize(std::max(again.size(), header.size() - std::min<size_t>(header.size(), 1)), ' ');
  const std::string type{kind, static_cast<char>('0' + size)};
  if (again + '\n' != header || (order != '<' && !big) ||
      (type != "f4" && type != "f8" && type != "i2"))
    return std::nullopt;
  if (rows == 0 || columns == 0 || size_t{rows} * columns * size > data.size()) return std::nullopt;
  test::Table table(rows, std::vector<double>(columns));
  for (unsigned r = 0; r < rows; ++r)
    for (unsigned c = 0; c < columns; ++c) {
      const char* at =
          data.data() + size_t{size} * (columns_first ? c * rows + r : r * columns + c);
      const double value = type == "f4"   ? decoded<float>(at, big)
                           : type == "f8" ? decoded<double>(at, big)
                                          : decoded<int16_t>(at, big);
      if (!(std::abs(value) <= std::numeric_limits<float>::max())) return std::nullopt;
      table[r][c] = value;
    }
  return table;
}

TEST(MatrixFuzz, NpyGivesTheArrayOfAStrictReader) {
  const TemporaryFolder folder;
  const std::string doubles = "\0\0\0\0\0\0\xf8\x3f"s;
  const std::vector<std::string> seeds = {npy("<f4", false, "3, 2", kFloats),
                                          npy(">i2", true, "3, 2", kFloats),
                                          npy("<f8", false, "3, 1", doubles + doubles + doubles),
                                          npy("|u1", false, "24,", kFloats),
                                          npy("<u8", false, "3,", kFloats, 2),
                                          npy("<f2", true, "4, 3", kFloats, 3)};
  int64_t compared = 0;
  test::fuzz(seeds, 6000, 139, [&](const std::string& input) {
    const auto path = folder.write("x.npy", input);
    const auto table = strict_array(input);
    compared += table.has_value();
    const Matrix matrix = read_matrix(path);
    table ? test::expect_values(matrix, *table) : test::expect_sound(matrix);
  });
  EXPECT_GT(compared, 3);
}

// words: off
/// numpy.savez_compressed(x = the numbers from 0 to 11 as float32, in 6 rows)
constexpr std::string_view kDeflated =
    "\x50\x4b\x03\x04\x2d\x00\x00\x00\x08\x00\x00\x00\x21\x00\xab\x9e\x0b\x16\xff\xff\xff\xff\xff\xff\xff\xff\x05\x00\x14\x00\x78\x2e\x6e\x70\x79\x01\x00\x10\x00\xb0\x00\x00\x00\x00\x00\x00\x00\x66\x00\x00\x00\x00\x00\x00\x00\x9b\xec\x17\xea\x1b\x10\xc9\xc8\x50\xc6\x50\xad\x9e\x92\x5a\x9c\x5c\xa4\x6e\xa5\xa0\x6e\x93\x66\xa2\xae\xa3\xa0\x9e\x96\x5f\x54\x52\x94\x98\x17\x9f\x5f\x94\x92\x0a\x12\x77\x4b\xcc\x29\x4e\x05\x8a\x17\x67\x24\x16\xa4\x02\xf9\x1a\x66\x3a\x0a\x46\x9a\x3a\x0a\xb5\x0a\x64\x03\x2e\x06\x30\x68\xb0\x07\x12\x0e\x40\x04\xc4\x0d\x40\xbc\x00\x88\x0f\x00\xf1\x03\x20\x66\x70\x64\x60\x10\x00\x62\x05\x20\x36\x70\x04\x00\x50\x4b\x01\x02\x2d\x03\x2d\x00\x00\x00\x08\x00\x00\x00\x21\x00\xab\x9e\x0b\x16\x66\x00\x00\x00\xb0\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80\x01\x00\x00\x00\x00\x78\x2e\x6e\x70\x79\x50\x4b\x05\x06\x00\x00\x00\x00\x01\x00\x01\x00\x33\x00\x00\x00\x9d\x00\x00\x00\x00\x00"sv;
// words: on

/// The array by itself, as numpy.savez stores it.
std::string stored_npz(const std::string& array, uint64_t crc) {
  const std::string name = "x.npy";
  const std::string common = "\x14\0\0\0\0\0\0\0\x21\0"s + little_endian(crc, 4) +
                             little_endian(array.size(), 4) + little_endian(array.size(), 4) +
                             little_endian(name.size(), 2) + little_endian(0, 2);
  const std::string local = "PK\x03\x04"s + common + name + array;
  const std::string central = "PK\x01\x02\x14\x03"s + common + std::string(14, '\0') + name;
  return local + central + "PK\x05\x06"s + std::string(4, '\0') + "\x01\0\x01\0"s +
         little_endian(central.size(), 4) + little_endian(local.size(), 4) + std::string(2, '\0');
}

TEST(MatrixFuzz, NpzGivesTheArrayOrIsRefused) {
  const TemporaryFolder folder;
  test::Table numbers;
  for (int i = 0; i < 6; ++i) numbers.push_back({2.0 * i, 2.0 * i + 1});
  const test::Table floats = {{1, 2}, {3, 4}, {-5, 6}};
  const std::vector<std::string> seeds = {
      std::string(kDeflated), stored_npz(npy("<f4", false, "3, 2", kFloats), 0x328fc913)};
  test::fuzz_each(seeds, 4000, 149, [&](const std::string& input, size_t i) {
    const Matrix matrix = read_matrix(folder.write("x.npz", input));
    input.starts_with("PK") ? test::expect_values(matrix, i == 0 ? numbers : floats)
                            : test::expect_sound(matrix);
  });
}

}  // namespace
}  // namespace dovetail::data::matrix_fuzz_test
