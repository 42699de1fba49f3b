// Columns of Parquet files against pyarrow's reading of the same files (parquet_oracle.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "dovetail/base/file.h"
#include "dovetail/data/files/parquet.h"
#include "dovetail/data/rows/block_pool.h"
#include "dovetail/data/rows/row_reader.h"
#include "temporary_folder.h"
#include "tests/folder.h"

namespace dovetail::data::parquet_oracle_test {
namespace {

using nlohmann::json;

/// Bytes as the oracle writes them: each byte as the character of its number.
std::string latin1(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      text += c;
    } else {
      text += static_cast<char>(0xC0 | (byte >> 6));
      text += static_cast<char>(0x80 | (byte & 0x3F));
    }
  }
  return text;
}

json value_of(const ColumnValues& column, size_t i, bool bytes) {
  if (column.value_present[i] == 0) return nullptr;
  if (column.kind == ColumnValues::Kind::kReal) return column.reals[i];
  if (column.kind == ColumnValues::Kind::kInteger)
    return column.booleans ? json(column.integers[i] != 0) : json(column.integers[i]);
  const std::string_view word = column.words[static_cast<size_t>(column.codes[i])];
  return bytes ? latin1(word) : std::string(word);
}

json rows_of(const ColumnValues& column, bool bytes) {
  json rows = json::array();
  if (!column.is_list) {
    for (size_t i = 0; i < column.value_present.size(); ++i)
      rows.push_back(value_of(column, i, bytes));
    return rows;
  }
  for (size_t r = 0; r < column.list_present.size(); ++r) {
    json list = json::array();
    for (int64_t i = column.list_begins[r]; i < column.list_begins[r + 1]; ++i)
      list.push_back(value_of(column, static_cast<size_t>(i), bytes));
    rows.push_back(column.list_present[r] == 0 ? json() : list);
  }
  return rows;
}

class ParquetOracle : public ::testing::Test {
 protected:
  /// Runs the oracle once for all tests.
  static void SetUpTestSuite() {
    const char* python = std::getenv("DOVETAIL_PYTHON");
    if (python == nullptr) return;
    folder_ = new TemporaryFolder();
    const std::string script = (test::tests_folder() / "data/parquet_oracle.py").string();
    ASSERT_EQ(
        std::system(
            (std::string(python) + " " + script + " '" + folder_->path().string() + "'").c_str()),
        0);
  }
  static void TearDownTestSuite() { delete folder_; }
  void SetUp() override {
    if (folder_ == nullptr) GTEST_SKIP() << "DOVETAIL_PYTHON is not set";
  }

  static std::vector<std::filesystem::path> files() {
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder_->path()))
      if (entry.path().extension() == ".parquet") found.push_back(entry.path());
    std::ranges::sort(found);
    return found;
  }

  static inline TemporaryFolder* folder_ = nullptr;
};

TEST_F(ParquetOracle, EveryCodecPageVersionAndEncodingGivesWhatPyarrowReads) {
  ASSERT_EQ(files().size(), 6u * 2 * 4);
  for (const auto& path : files()) {
    SCOPED_TRACE(path.filename().string());
    json theirs = json::parse(read_file(std::filesystem::path(path).replace_extension(".json")));
    const auto reader = open_parquet_columns(path);
    const std::vector<std::string> names = reader->column_names();
    std::vector<size_t> all(names.size());
    for (size_t c = 0; c < all.size(); ++c) all[c] = c;
    reader->select(all);
    ASSERT_EQ(reader->num_row_groups(), 3);
    for (int64_t g = 0; g < 3; ++g) {
      const std::vector<ColumnValues> columns = reader->read(g);
      for (size_t c = 0; c < names.size(); ++c)
        EXPECT_EQ(rows_of(columns[c], names[c] == "bytes"),
                  theirs[static_cast<size_t>(g)][names[c]])
            << names[c] << " in row group " << g;
    }
  }
}

TEST_F(ParquetOracle, ADictionaryIsKeptAsCodesOfItsWords) {
  for (const auto& path : files()) {
    if (path.filename().string().find("-dictionary") == std::string::npos) continue;
    SCOPED_TRACE(path.filename().string());
    const auto reader = open_parquet_columns(path);
    const std::vector<std::string> names = reader->column_names();
    for (const char* name : {"text", "bytes", "codes", "full"}) {
      const auto column = static_cast<size_t>(std::ranges::find(names, name) - names.begin());
      reader->select({column});
      for (int64_t g = 0; g < 2; ++g) {
        const ColumnValues values = reader->read(g).front();
        const std::set<std::string_view> distinct(values.words.begin(), values.words.end());
        EXPECT_EQ(values.words.size(), distinct.size()) << name;
        EXPECT_EQ(values.keys.size(), values.words.size()) << name;
        EXPECT_LT(values.words.size(), values.codes.size()) << name;
      }
    }
  }
}

/// Several files and row groups at a time: the rows are the same as on one thread.
TEST_F(ParquetOracle, ThreadsDecodeSeveralFilesAtOnceToTheSameRows) {
  RowsConfig config;
  for (const auto& path : files()) config.files.push_back(path.string());
  config.label = {"full_int < 5"};
  config.missing_label = "drop";
  config.validation_fraction = 0;
  config.dense = {{.columns = {"double", "int8", "bool"}}};
  config.sparse = {{.columns = {"text"}, .num_rows = 1000},
                   {.columns = {"int64"}, .num_rows = 77},
                   {.columns = {"codes"}, .max_rows = 100},
                   {.columns = {"texts"}, .num_rows = 50, .missing = "bad_row"}};
  config.bad_row = "skip";
  const RowReader reader(config);
  ASSERT_EQ(reader.num_blocks(), 48 * 3);
  std::vector<int64_t> all(static_cast<size_t>(reader.num_blocks()));
  for (size_t b = 0; b < all.size(); ++b) all[b] = static_cast<int64_t>(b);
  BlockPool pool(reader, 4);
  pool.want(all);
  for (const int64_t b : all) {
    const RowBlock one = reader.read(b), &many = *pool.get(b);
    EXPECT_GT(one.num_rows, 0);
    EXPECT_EQ(one.num_rows, many.num_rows);
    EXPECT_EQ(one.ids, many.ids);
    EXPECT_EQ(one.ends, many.ends);
    EXPECT_EQ(one.labels, many.labels);
    ASSERT_EQ(one.dense.size(), many.dense.size());
    EXPECT_EQ(std::memcmp(one.dense.data(), many.dense.data(), one.dense.size() * sizeof(double)),
              0);
  }
}

}  // namespace
}  // namespace dovetail::data::parquet_oracle_test
