// ctest-labels: fuzz
//
// Mutated Parquet files are accepted or refused, as a matrix, as rows and as texts. The script
// tools/make_parquet_fixtures.py makes the seeds.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/base/file.h"
#include "dovetail/data/files/parquet.h"
#include "dovetail/data/matrix/matrix.h"
#include "dovetail/data/rows/row_reader.h"
#include "strict_table.h"
#include "temporary_folder.h"
#include "tests/fuzz.h"

namespace dovetail::data::parquet_fuzz_test {
namespace {

std::string fixture(const std::string& name) {
  return read_file(std::filesystem::path(std::getenv("DOVETAIL_TEST_DATA")) / "parquet" / name);
}

TEST(ParquetFuzz, MatricesAreReadOrRefused) {
  const TemporaryFolder folder;
  const MatrixOptions whole = {
      .columns = {"flag"}, .target = "city", .target_kind = TargetKind::kClass};
  const MatrixOptions some = {.bad_values = BadValues::kSkip, .columns = {"small", "real", "flag"}};
  test::fuzz_each(
      {fixture("bare.parquet"), fixture("few.parquet")}, 1000, 151,
      [&](const std::string& input, size_t i) {
        test::expect_sound(read_matrix(folder.write("x.parquet", input), i == 0 ? whole : some));
      });
}

TEST(ParquetFuzz, RowsAreReadOrRefused) {
  const TemporaryFolder folder;
  RowsConfig bare;
  bare.files = {(folder.path() / "x.parquet").string()};
  bare.label = {"flag"};
  bare.sparse = {{.columns = {"city"}}};
  bare.validation_fraction = 0.3;
  RowsConfig rows = bare;
  rows.sparse = {{.columns = {"city"}, .num_rows = 7}, {.columns = {"tags"}, .max_length = 1}};
  rows.dense = {{.columns = {"real"}, .transform = "log1p"}, {.columns = {"small"}}};
  test::fuzz_each({fixture("bare.parquet"), fixture("few.parquet")}, 1000, 157,
                  [&](const std::string& input, size_t i) {
                    folder.write("x.parquet", input);
                    const RowReader reader(i == 0 ? bare : rows);
                    int64_t seen = 0;
                    for (int64_t b = 0; b < reader.num_blocks(); ++b) {
                      const RowBlock block = reader.read(b);
                      seen += block.num_rows + block.num_bad + block.num_unlabelled;
                      EXPECT_EQ(
                          block.ends.size(),
                          static_cast<size_t>(block.num_rows * reader.decoder().num_features()));
                    }
                    EXPECT_EQ(seen, reader.num_rows());
                  });
}

TEST(ParquetFuzz, TextsAreReadOrRefused) {
  const TemporaryFolder folder;
  test::fuzz(
      {fixture("string.parquet"), fixture("large_string.parquet"), fixture("dictionary.parquet")},
      1000, 163, [&](const std::string& input) {
        const auto reader = open_parquet(folder.write("x.parquet", input), "text");
        uint64_t bytes = 0;
        for (int64_t group = 0; group < reader->num_row_groups(); ++group)
          reader->read(group, [&](int64_t, std::optional<std::string_view> text) {
            for (const char c : text.value_or("")) bytes += static_cast<unsigned char>(c);
          });
        EXPECT_LT(bytes, uint64_t{1} << 30);
      });
}

}  // namespace
}  // namespace dovetail::data::parquet_fuzz_test
