// ctest-labels: fuzz
// Mutated tables of numbers in compressed text and in UTF-16 are read or refused.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <string_view>

#include "dovetail/data/matrix/matrix.h"
#include "strict_table.h"
#include "temporary_folder.h"
#include "tests/fuzz.h"

namespace dovetail::data::packed_fuzz_test {
namespace {

using namespace std::string_view_literals;

// words: off
/// `text()`, compressed by Python's gzip and bz2 and by pyarrow at level 19 of zstd.
constexpr std::string_view kGzip =
    "\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\x25\xcd\xbb\x11\x03\x51\x08\x43\xd1\x5c\xb5\x68\x3d\x2b\xe0\xfd\xca\xb1\xdd\x7f\x0f\x16\xeb\x21\xe0\x04\x77\xe0\xcd\x0f\xbf\xb8\xe9\x81\x78\xbf\x62\xf0\x4a\x84\x65\x4c\xa4\xb1\xac\x83\xa2\x78\x29\x30\xa8\x27\xd2\xc0\x34\x5b\x1b\xcb\xea\x2c\x84\xcd\xf0\x2e\x1c\xc6\xd3\xc5\x82\x6e\xbb\xef\xfa\x85\xcc\x2e\x33\xa1\x60\x1a\x13\x4a\xe6\xff\xf1\x81\xca\x36\x2b\xa0\x61\x76\x5b\x03\x9a\x2c\x63\x43\x8b\xf5\xb4\x43\xd0\xb6\x9b\x05\x1d\xb3\xdb\xb1\xf0\x03\x41\x82\x15\x68\xd3\x00\x00\x00"sv;
constexpr std::string_view kBzip2 =
    "\x42\x5a\x68\x39\x31\x41\x59\x26\x53\x59\xe2\x0b\xac\xa0\x00\x00\x68\x59\x00\x00\x10\x00\x07\x7f\xe0\x38\x00\x20\x00\x88\x20\xa1\xfa\xa7\xfa\xa7\xaa\x63\x50\x21\x84\x8c\xa9\xb4\x13\xe5\xaa\x7a\xbc\xee\xf7\x60\x00\x0f\x8e\xa5\x54\x46\x2a\x55\x4c\x38\x49\x24\xcc\x36\xdb\xcc\xcc\xcc\xf7\xef\x26\x62\x3a\xeb\x9c\xe3\x69\x36\xdb\x74\x87\x9a\x33\xde\xcb\x66\x4c\x7a\x24\x09\x02\x2d\xb4\x4c\xb8\xfa\x60\x58\x55\x46\x54\x45\xda\xaa\x33\x53\x6a\xaf\xc3\x04\x92\x49\x20\x6d\xea\x70\x25\xac\x4b\x73\x16\x50\xde\xd2\x19\x1f\xc5\xdc\x91\x4e\x14\x24\x38\x82\xeb\x28\x00"sv;
constexpr std::string_view kZstd =
    "\x28\xb5\x2f\xfd\x20\xd3\xc5\x03\x00\x62\x4a\x17\x0f\xc0\xb7\x01\xfc\xbf\x9a\x88\x44\xf6\x6e\xb4\x06\x87\x03\x03\x15\x89\x26\x2f\x26\x7a\xbc\x4f\xb4\x78\x07\x92\xd1\xe1\x4d\x3c\xe7\x6b\x48\x4e\x70\xc6\x97\x9c\xef\x0d\x47\x3e\xdb\x7b\x67\xfe\x5b\x47\x4e\x60\xae\x57\x98\x99\x14\x8d\x6c\x1e\xbd\xdd\xa2\xe3\xe4\x04\x77\x68\xfe\xce\xda\xc9\x37\x96\x90\x53\x80\xf2\x35\x90\x13\x94\xad\x47\x4e\x03\xe5\xb7\x5c\xae\x1e\x1b\x97\x09\x08\x10\x28\xfb\x20\x06\x18\x60\x7d\xca\x85\x0f\x97\xa6\xc2\xa5\x28\x4a\x2d\x42\x54\x41\x01"sv;
// words: on

std::string text() {
  std::string text = "a,b,c\n";
  for (int i = 0; i < 20; ++i) text += fmt::format("{},{},{}\n", i, i * 0.25, -3 * i);
  return text;
}

/// Mutates a compressed table. A mutant that begins with the `checked` bytes of a format with a
/// checksum gives no other table.
void fuzz_packed(std::string_view packed, uint64_t seed, std::optional<size_t> checked = {}) {
  const TemporaryFolder folder;
  const auto table = test::strict_table(text());
  ASSERT_TRUE(table);
  test::expect_values(read_matrix(folder.write("whole.csv", packed)), *table);
  test::fuzz({std::string(packed)}, 2000, seed, [&](const std::string& input) {
    const Matrix matrix = read_matrix(folder.write("packed.csv", input));
    const bool same = checked && input.starts_with(packed.substr(0, *checked));
    same ? test::expect_values(matrix, *table) : test::expect_sound(matrix);
  });
}

TEST(PackedFuzz, GzipGivesTheTableOrIsRefused) { fuzz_packed(kGzip, 103, 3); }
TEST(PackedFuzz, Bzip2GivesTheTableOrIsRefused) { fuzz_packed(kBzip2, 107, 10); }
TEST(PackedFuzz, ZstdIsReadOrRefused) { fuzz_packed(kZstd, 109); }

std::string wide(std::string_view text, bool big) {
  std::string units = big ? "\xFE\xFF" : "\xFF\xFE";
  for (const char c : text) units += big ? std::string{'\0', c} : std::string{c, '\0'};
  return units;
}

/// The text in ASCII, if it is in UTF-16 with a mark.
std::optional<std::string> narrow(std::string_view units) {
  const bool big = units.starts_with("\xFE\xFF");
  if ((!big && !units.starts_with("\xFF\xFE")) || units.size() % 2 != 0) return std::nullopt;
  std::string text;
  for (size_t i = 2; i < units.size(); i += 2) {
    const char low = units[big ? i + 1 : i], high = units[big ? i : i + 1];
    if (high != '\0' || static_cast<unsigned char>(low) > 0x7F) return std::nullopt;
    text += low;
  }
  return text;
}

TEST(PackedFuzz, Utf16GivesTheTableOfAStrictReader) {
  const TemporaryFolder folder;
  int64_t compared = 0;
  test::fuzz({wide(text(), false), wide(text(), true)}, 2000, 113, [&](const std::string& input) {
    const auto table = test::strict_table(narrow(input).value_or(""));
    compared += table.has_value();
    const auto path = folder.write("wide.csv", input);
    if (table) return test::expect_values(read_matrix(path, {.delimiter = ","}), *table);
    test::expect_sound(read_matrix(path));
  });
  EXPECT_GT(compared, 2);
}

}  // namespace
}  // namespace dovetail::data::packed_fuzz_test
