// ctest-labels: fuzz
// Mutated text files of rows are read or refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/base/hash.h"
#include "dovetail/data/rows/row_reader.h"
#include "strict_table.h"
#include "temporary_folder.h"
#include "tests/fuzz.h"

namespace dovetail::data::rows_fuzz_test {
namespace {

struct Row {
  float label;
  int64_t id;
  double number;
};

/// Rows below the header "y,a,n": a label 0 or 1, a word of small letters and a number.
std::optional<std::vector<Row>> strict_rows(std::string_view text, char delimiter) {
  const std::string header = {'y', delimiter, 'a', delimiter, 'n', '\n'};
  if (!text.starts_with(header) || !text.ends_with('\n') || text.size() == header.size())
    return std::nullopt;
  std::vector<Row> rows;
  for (const std::string_view line :
       test::cut(text.substr(header.size(), text.size() - header.size() - 1), '\n')) {
    const auto fields = test::cut(line, delimiter);
    if (fields.size() != 3 || (fields[0] != "0" && fields[0] != "1") || fields[1].empty())
      return std::nullopt;
    const bool word = std::ranges::all_of(fields[1], [](char c) { return c >= 'a' && c <= 'z'; });
    const auto number = test::strict_number(fields[2]);
    if (!word || !number) return std::nullopt;
    rows.push_back(
        {fields[0] == "1" ? 1.0F : 0.0F, static_cast<int64_t>(xxh64(fields[1])), *number});
  }
  return rows;
}

void fuzz_rows(const std::string& name, char delimiter, uint64_t seed) {
  const TemporaryFolder folder;
  std::string plain = "y,a,n\n1,one,2.5\n0,two,-3\n1,three,40\n";
  std::string odd = "y,a,n\r\n1,\"o \"\"e\",2.5\r\n\r\n,two,\n0.5,\"l\nm\",1e3\n1,x,nan\n";
  for (std::string* text : {&plain, &odd}) std::replace(text->begin(), text->end(), ',', delimiter);
  RowsConfig config;
  config.files = {(folder.path() / name).string()};
  config.label = {"y"};
  config.dense = {{.columns = {"n"}}};
  config.sparse = {{.columns = {"a"}},
                   {.name = "words", .columns = {"a"}, .separator = " ", .max_length = 2}};
  config.validation_fraction = 0.3;
  int64_t compared = 0;
  test::fuzz({plain, plain, odd}, 4000, seed, [&](const std::string& input) {
    folder.write(name, input);
    const RowReader reader(config);
    std::vector<Row> rows;
    int64_t seen = 0;
    for (int64_t b = 0; b < reader.num_blocks(); ++b) {
      const RowBlock block = reader.read(b);
      seen += block.num_rows + block.num_bad + block.num_unlabelled;
      ASSERT_EQ(block.ends.size(), static_cast<size_t>(2 * block.num_rows));
      ASSERT_EQ(block.labels.size(), static_cast<size_t>(block.num_rows));
      for (int64_t r = 0; r < block.num_rows; ++r) {
        const auto at = static_cast<size_t>(block.begin(r, 0, 2));
        rows.push_back({block.labels[static_cast<size_t>(r)],
                        at < block.ids.size() ? block.ids[at] : 0,
                        block.dense[static_cast<size_t>(r)]});
      }
    }
    EXPECT_EQ(seen, reader.num_rows());
    const auto expected = strict_rows(input, delimiter);
    if (!expected) return;
    ++compared;
    ASSERT_EQ(rows.size(), expected->size());
    for (size_t r = 0; r < rows.size(); ++r) {
      EXPECT_EQ(rows[r].label, (*expected)[r].label);
      EXPECT_EQ(rows[r].id, (*expected)[r].id);
      EXPECT_EQ(rows[r].number, (*expected)[r].number);
    }
  });
  EXPECT_GT(compared, 2);
}

TEST(RowsFuzz, CsvGivesTheRowsOfAStrictReader) { fuzz_rows("x.csv", ',', 167); }
TEST(RowsFuzz, TsvGivesTheRowsOfAStrictReader) { fuzz_rows("x.tsv", '\t', 173); }

}  // namespace
}  // namespace dovetail::data::rows_fuzz_test
