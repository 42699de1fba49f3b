// ctest-labels: fuzz
//
// Rows of Parquet files that pyarrow wrote. tools/make_parquet_fixtures.py has the formulas that
// this test repeats.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include "dovetail/base/error.h"
#include "dovetail/base/hash.h"
#include "dovetail/data/rows/row_reader.h"
#include "temporary_folder.h"
#include "tests/fuzz.h"

namespace dovetail::data::row_parquet_test {
namespace {

using ::testing::HasSubstr;

std::string fixture(const std::string& name) {
  return (std::filesystem::path(std::getenv("DOVETAIL_TEST_DATA")) / "parquet" / name).string();
}

RowsConfig config_of(std::vector<SparseConfig> sparse, std::vector<DenseConfig> dense = {}) {
  RowsConfig config;
  config.files = {fixture("rows.parquet")};
  config.label = {"flag"};
  config.sparse = std::move(sparse);
  config.dense = std::move(dense);
  config.validation_fraction = 0;
  return config;
}

std::vector<RowBlock> read_all(const RowReader& reader) {
  std::vector<RowBlock> blocks;
  for (int64_t b = 0; b < reader.num_blocks(); ++b) blocks.push_back(reader.read(b));
  return blocks;
}

/// The ids of feature `f` of every row, over the blocks.
std::vector<std::vector<int64_t>> ids_of(const RowReader& reader, int64_t f) {
  std::vector<std::vector<int64_t>> rows;
  const int64_t features = reader.decoder().num_features();
  for (const RowBlock& block : read_all(reader))
    for (int64_t r = 0; r < block.num_rows; ++r)
      rows.emplace_back(block.ids.begin() + block.begin(r, f, features),
                        block.ids.begin() + block.ends[static_cast<size_t>(r * features + f)]);
  return rows;
}

std::string refusal(const RowsConfig& config) {
  try {
    const RowReader reader(config);
    for (const RowBlock& block : read_all(reader))
      if (block.num_bad > 0)
        return fmt::format("row {} column {}: {}", block.bad_rows[0].row, block.bad_rows[0].column,
                           block.bad_rows[0].reason);
  } catch (const UserError& e) {
    return std::string(e.what()) + " / " + e.help() + " / " + e.place();
  }
  return "accepted";
}

int64_t key(const std::string& text) { return static_cast<int64_t>(xxh64(text)); }

/// Texts in dictionaries, without, and in dictionaries that give way to plain pages.
class RowParquetFile : public ::testing::TestWithParam<const char*> {
 protected:
  static RowsConfig config_of_file(std::vector<SparseConfig> sparse,
                                   std::vector<DenseConfig> dense = {}) {
    RowsConfig config = config_of(std::move(sparse), std::move(dense));
    config.files = {fixture(GetParam())};
    return config;
  }
};

INSTANTIATE_TEST_SUITE_P(
    Encodings, RowParquetFile,
    ::testing::Values("rows.parquet", "rows_plain.parquet", "rows_fallback.parquet"),
    [](const auto& info) {
      return std::string(info.param).substr(0, std::string(info.param).find('.'));
    });

TEST_P(RowParquetFile, GivesEveryTypeAsTheFileHoldsIt) {
  const RowReader reader(config_of_file(
      {{.columns = {"city"}},
       {.columns = {"kind"}, .num_rows = 7},
       {.columns = {"number"}},
       {.columns = {"ids"}, .ids = "integer", .num_rows = 2},
       {.columns = {"pair"}, .max_length = 1},
       {.columns = {"city", "small"}}},
      {{.columns = {"real", "small"}}, {.columns = {"delay"}, .transform = "log1p"}}));
  EXPECT_EQ(reader.num_rows(), 50);
  EXPECT_EQ(reader.num_blocks(), 3);
  const auto city = ids_of(reader, 0), kind = ids_of(reader, 1), number = ids_of(reader, 2),
             ids = ids_of(reader, 3), pair = ids_of(reader, 4), cross = ids_of(reader, 5);
  std::vector<double> dense;
  std::vector<float> labels;
  for (const RowBlock& block : read_all(reader)) {
    EXPECT_EQ(block.num_bad, 0);
    dense.insert(dense.end(), block.dense.begin(), block.dense.end());
    labels.insert(labels.end(), block.labels.begin(), block.labels.end());
  }
  ASSERT_EQ(city.size(), 50u);
  ASSERT_EQ(dense.size(), 150u);
  using Ids = std::vector<int64_t>;
  for (int64_t i = 0; i < 50; ++i) {
    const auto r = static_cast<size_t>(i);
    EXPECT_EQ(city[r], i % 10 == 3 ? Ids{} : Ids{key(fmt::format("city {}", i % 6))}) << i;
    const uint64_t kind_key = xxh64(fmt::format("kind {}", i % 3));
    EXPECT_EQ(kind[r], i % 7 == 2 ? Ids{} : Ids{static_cast<int64_t>(kind_key % 7)}) << i;
    EXPECT_EQ(number[r], Ids{key(std::to_string(i * 1000003 - 7))}) << i;
    EXPECT_EQ(ids[r], i % 3 == 0 ? Ids{} : i % 3 == 1 ? Ids{0} : (Ids{0, 1})) << i;
    EXPECT_EQ(pair[r], Ids{key(std::to_string(i + 1))}) << i;
    EXPECT_EQ(cross[r],
              i % 10 == 3 ? Ids{} : Ids{key(fmt::format("city {}\x1f{}", i % 6, i % 5 - 2))})
        << i;
    if (i % 13 == 4 || i % 13 == 5)
      EXPECT_TRUE(std::isnan(dense[3 * r])) << i;
    else
      EXPECT_EQ(dense[3 * r], static_cast<double>(i) / 4) << i;
    EXPECT_EQ(dense[3 * r + 1], static_cast<double>(i % 5 - 2)) << i;
    if (i % 11 != 6) {
      EXPECT_DOUBLE_EQ(dense[3 * r + 2], std::log(1 + static_cast<double>(i))) << i;
    }
    EXPECT_EQ(labels[r], static_cast<float>(i % 2)) << i;
  }
}

TEST_P(RowParquetFile, WeightsStandBesideTheirIds) {
  const RowReader reader(
      config_of_file({{.columns = {"tags"}, .weights = "tag_weights", .max_length = 2},
                      {.columns = {"city"}, .missing = "value"}}));
  int64_t i = 0;
  for (const RowBlock& block : read_all(reader)) {
    ASSERT_EQ(block.weights.size(), block.ids.size());
    for (int64_t r = 0; r < block.num_rows; ++r, ++i) {
      const int64_t tags = i % 9 == 7 ? 0 : i % 4, first = std::max<int64_t>(0, tags - 2);
      const uint32_t begin = block.begin(r, 0, 2);
      ASSERT_EQ(block.ends[static_cast<size_t>(2 * r)] - begin, tags - first) << i;
      for (int64_t j = first; j < tags; ++j) {
        const auto at = static_cast<size_t>(begin + j - first);
        EXPECT_EQ(block.ids[at], key(fmt::format("t{}", j))) << i;
        EXPECT_EQ(block.weights[at], static_cast<float>(j) + 0.5f) << i;
      }
      const auto last = static_cast<size_t>(block.ends[static_cast<size_t>(2 * r + 1)] - 1);
      EXPECT_EQ(block.ids[last], key(i % 10 == 3 ? "" : fmt::format("city {}", i % 6))) << i;
      EXPECT_EQ(block.weights[last], 1.0f);
    }
  }
  EXPECT_EQ(i, 50);
}

std::string bytes_of(const std::string& name) {
  std::ifstream file(fixture(name), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Bytes of pages: behind the first 4 of the file, before its footer, whose length its last 8 begin
/// with.
size_t page_bytes(const std::string& file) {
  uint32_t footer = 0;
  std::memcpy(&footer, file.data() + file.size() - 8, sizeof(footer));
  return file.size() - 12 - footer;
}

TEST_P(RowParquetFile, DamagedPagesAreReadOrRefused) {
  const std::string whole = bytes_of(GetParam());
  std::mt19937_64 random(7);
  const TemporaryFolder folder;
  int64_t refused = 0;
  for (int64_t i = 0; i < test::fuzz_inputs(100); ++i) {
    std::string damaged = whole;
    for (int changes = 0; changes < 4; ++changes)
      damaged[4 + random() % page_bytes(whole)] = static_cast<char>(random());
    RowsConfig config =
        config_of({{.columns = {"city"}}, {.columns = {"kind"}}, {.columns = {"number"}}},
                  {{.columns = {"real", "small", "delay"}}});
    config.files = {folder.write("damaged.parquet", damaged).string()};
    refused += refusal(config) != "accepted";
  }
  EXPECT_GT(refused, 0);
}

TEST(RowParquet, ACodeThatNamesNoWordIsDamage) {
  const std::string whole = bytes_of("bare.parquet");
  const TemporaryFolder folder;
  int64_t named = 0;
  for (size_t i = 0; i < page_bytes(whole); ++i) {
    std::string damaged = whole;
    damaged[4 + i] = '\xff';
    RowsConfig config = config_of({{.columns = {"city"}}});
    config.files = {folder.write("damaged.parquet", damaged).string()};
    named +=
        refusal(config).find("names a word that its dictionary does not have") != std::string::npos;
  }
  EXPECT_GT(named, 10);
}

/// Damage in one column affects only readers of that column.
TEST(RowParquet, ColumnsThatAreNotNamedAreNotRead) {
  const std::string whole = bytes_of("rows.parquet");
  const TemporaryFolder folder;
  int64_t city_alone = 0, number_alone = 0;
  for (size_t i = 0; i + 16 < page_bytes(whole); i += 16) {
    std::string damaged = whole;
    damaged.replace(4 + i, 16, 16, '\xff');
    const std::string path = folder.write("damaged.parquet", damaged).string();
    const auto is_refused = [&](const char* column) {
      RowsConfig config = config_of({{.columns = {column}}});
      config.files = {path};
      return refusal(config) != "accepted";
    };
    const bool city = is_refused("city"), number = is_refused("number");
    city_alone += city && !number;
    number_alone += number && !city;
  }
  EXPECT_GT(city_alone, 3);
  EXPECT_GT(number_alone, 3);
}

TEST(RowParquet, DropsOrMasksRowsWithoutLabel) {
  RowsConfig config = config_of({{.columns = {"city"}}});
  config.label = {"delay > 15"};
  int64_t kept = 0, unlabelled = 0;
  const RowReader dropping(config);
  for (const RowBlock& block : read_all(dropping)) {
    kept += block.num_rows;
    unlabelled += block.num_unlabelled;
    for (const float label : block.labels) EXPECT_TRUE(label == 0 || label == 1);
  }
  EXPECT_EQ(unlabelled, 4);  // rows 6, 17, 28, 39
  EXPECT_EQ(kept, 46);
  config.label = {"delay > 15", "flag"};
  config.missing_label = "mask";
  const RowReader masking(config);
  int64_t i = 0;
  for (const RowBlock& block : read_all(masking))
    for (int64_t r = 0; r < block.num_rows; ++r, ++i) {
      const float delay = block.labels[static_cast<size_t>(2 * r)];
      EXPECT_EQ(std::isnan(delay), i % 11 == 6) << i;
      if (i % 11 != 6) {
        EXPECT_EQ(delay, i > 15 ? 1 : 0) << i;
      }
      EXPECT_EQ(block.labels[static_cast<size_t>(2 * r + 1)], static_cast<float>(i % 2));
    }
  EXPECT_EQ(i, 50);
  config.missing_label = "bad_row";
  EXPECT_THAT(refusal(config), HasSubstr("row 7 column delay: the label is missing"));
}

TEST(RowParquet, CutsValidationOutOfARowGroup) {
  RowsConfig config = config_of({{.columns = {"number"}}});
  config.validation_fraction = 0.3;  // rows 35 to 49; groups begin at 0, 20, 40
  const RowReader reader(config);
  EXPECT_EQ(reader.num_validation_rows(), 15);
  ASSERT_EQ(reader.num_train_blocks(), 2);
  ASSERT_EQ(reader.num_blocks(), 4);
  EXPECT_EQ(reader.read(1).num_rows, 15);
  const RowBlock first = reader.read(2);
  EXPECT_EQ(first.num_rows, 5);
  EXPECT_EQ(first.ids[0], key(std::to_string(35 * 1000003 - 7)));
}

TEST(RowParquet, RefusesWhatItCannotGive) {
  EXPECT_THAT(refusal(config_of({{.columns = {"citi"}}})),
              ::testing::AllOf(HasSubstr("no column `citi`"), HasSubstr("did you mean `city`"),
                               HasSubstr("rows.parquet")));
  EXPECT_THAT(refusal(config_of({{.columns = {"day"}}})), HasSubstr("date32"));
  EXPECT_THAT(refusal(config_of({{.columns = {"nested"}}})), HasSubstr("struct"));
  EXPECT_THAT(refusal(config_of({{.columns = {"real"}}})),
              HasSubstr("row 2 column real: the float 0.25 is no id"));
  EXPECT_THAT(refusal(config_of({{.columns = {"tags"}, .separator = "|"}})),
              HasSubstr("holds lists"));
  EXPECT_THAT(refusal(config_of({{.columns = {"city"}, .max_length = 3}})),
              HasSubstr("holds one id"));
  EXPECT_THAT(refusal(config_of({{.columns = {"city"}, .missing = "bad_row"}})),
              HasSubstr("row 4 column city"));
  EXPECT_THAT(refusal(config_of({{.columns = {"pair"}, .ids = "integer", .num_rows = 50}})),
              HasSubstr("row 50 column pair: the id 50 is out of range"));
  EXPECT_THAT(refusal(config_of({{.columns = {"tags"}, .weights = "ids"}})),
              HasSubstr("weights for"));
  EXPECT_THAT(refusal(config_of({}, {{.columns = {"city"}}})),
              HasSubstr("row 1 column city: \"city 0\" is not a number"));
  EXPECT_THAT(refusal(config_of({}, {{.columns = {"real"}, .missing = "bad_row"}})),
              HasSubstr("row 5 column real"));
  RowsConfig text_keys = config_of({{.columns = {"city"}}});
  text_keys.delimiter = ";";
  EXPECT_THAT(refusal(text_keys), HasSubstr("rows.delimiter"));
  const TemporaryFolder folder;
  RowsConfig damaged = config_of({{.columns = {"city"}}});
  damaged.files = {folder.write("text.parquet", "this is text").string()};
  EXPECT_THAT(refusal(damaged), HasSubstr("text.parquet"));
}

}  // namespace
}  // namespace dovetail::data::row_parquet_test
