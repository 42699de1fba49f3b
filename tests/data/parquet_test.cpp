#include "dovetail/data/files/parquet.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <string_view>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/data/text/prepare.h"
#include "dovetail/data/text/token_store.h"
#include "temporary_folder.h"

// The files are made by pyarrow: tools/make_parquet_fixtures.py.

namespace dovetail::data::parquet_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::filesystem::path fixture(const std::string& name) {
  return std::filesystem::path(std::getenv("DOVETAIL_TEST_DATA")) / "parquet" / name;
}

std::string expected_text(int row) {
  std::string text;
  for (int i = 0; i < row % 4 + 1; ++i) text += fmt::format("row {} \u00e9\n", row);
  return text;
}

std::string refusal(const std::filesystem::path& file, const std::string& column) {
  try {
    open_parquet(file, column)->read(0, [](int64_t, std::optional<std::string_view>) {});
  } catch (const UserError& e) {
    return std::string(e.what()) + " / " + e.help() + " / " + e.place();
  }
  return "accepted";
}

class Parquet : public ::testing::TestWithParam<const char*> {};

TEST_P(Parquet, GivesTheColumnRowByRow) {
  const auto reader = open_parquet(fixture(GetParam()), "text");
  ASSERT_EQ(reader->num_row_groups(), 3);
  int64_t seen = 0, empty = 0;
  for (int64_t group = 0; group < 3; ++group) {
    EXPECT_GT(reader->group_bytes(group), 0u);
    reader->read(group, [&](int64_t row, std::optional<std::string_view> text) {
      EXPECT_EQ(row / 20, group);
      EXPECT_EQ(text.has_value(), row % 7 != 3);
      if (!text) return;
      if (row % 7 == 5) {
        EXPECT_EQ(text, "");
        ++empty;
      } else {
        EXPECT_EQ(text, expected_text(static_cast<int>(row)));
      }
      ++seen;
    });
  }
  EXPECT_EQ(seen, 50 - 7);
  EXPECT_EQ(empty, 7);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, Parquet, ::testing::Values("string.parquet", "large_string.parquet"),
    [](const auto& info) {
      return std::string(info.param).substr(0, std::string(info.param).find('.'));
    });

TEST(ParquetErrors, NameFileAndColumn) {
  EXPECT_THAT(refusal(fixture("string.parquet"), "body"),
              ::testing::AllOf(HasSubstr("`body`"), HasSubstr("`number` (int64)"),
                               HasSubstr("text_field"), HasSubstr("string.parquet")));
  EXPECT_THAT(refusal(fixture("string.parquet"), "number"), HasSubstr("int64"));
  EXPECT_THAT(refusal(fixture("string.parquet"), "nested"), HasSubstr("struct"));
  EXPECT_THAT(refusal(fixture("absent.parquet"), "text"), HasSubstr("absent.parquet"));
}

TEST(ParquetErrors, DamageIsTheUsersErrorNotACrash) {
  const TemporaryFolder folder;
  const std::string whole = read_file(fixture("string.parquet"));
  std::string metadata = whole, page = whole;
  metadata[whole.size() - 2042] = '\xff';
  page[whole.size() - 3722] = '\xff';
  const std::vector<std::string> damaged = {
      whole.substr(0, whole.size() / 2),       "",  "this is text, not Parquet", metadata,
      "PAR1" + whole.substr(whole.size() / 2), page};
  for (const std::string& content : damaged)
    EXPECT_THAT(refusal(folder.write("damaged.parquet", content), "text"),
                ::testing::AllOf(HasSubstr("the Parquet file is damaged or cut short"),
                                 HasSubstr("download or write"), HasSubstr("damaged.parquet"),
                                 Not(HasSubstr("hrift")), Not(HasSubstr("Exception"))));
}

TEST(ParquetErrors, AnyByteOfTheFooterIsReadOrRefused) {
  const TemporaryFolder folder;
  const std::string whole = read_file(fixture("string.parquet"));
  int refused = 0;
  for (size_t i = whole.size() - 2042; i < whole.size(); ++i)
    for (const int flip : {1, 2}) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ flip);
      std::string said;
      ASSERT_NO_THROW(said = refusal(folder.write("damaged.parquet", damaged), "text"))
          << i << " " << flip;
      refused += said != "accepted";
    }
  EXPECT_GT(refused, 0);
}

TEST(ParquetErrors, ACodeBeyondItsDictionaryIsDamage) {
  const TemporaryFolder folder;
  const std::string whole = read_file(fixture("dictionary.parquet"));
  int named = 0;
  for (size_t i = 4; i < whole.size() / 2; ++i) {
    std::string damaged = whole;
    damaged[i] = '\xff';
    named += refusal(folder.write("damaged.parquet", damaged), "text").find("out of bounds") !=
             std::string::npos;
  }
  EXPECT_GT(named, 0);
}

TEST(ParquetPrepare, TakesEachRowForADocument) {
  const TemporaryFolder folder;
  DataConfig config;
  config.text = {fixture("string.parquet").string()};
  config.validation_fraction = 0.3;
  const PrepareResult result = prepare(config, folder.path() / "out");
  EXPECT_EQ(result.documents, 50 - 14);
  EXPECT_EQ(result.empty_skipped, 14);
  uint64_t bytes = 0;
  for (int row = 0; row < 50; ++row)
    if (row % 7 != 3 && row % 7 != 5) bytes += expected_text(row).size();
  EXPECT_EQ(result.train_bytes + result.validation_bytes, bytes);
  EXPECT_GT(result.validation_bytes, 0u);
  EXPECT_TRUE(prepare(config, folder.path() / "out").reused);
}

}  // namespace
}  // namespace dovetail::data::parquet_test
