// One table as Parquet and as CSV, which pandas wrote (tools/make_parquet_fixtures.py), gives the
// same rows.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "dovetail/base/error.h"
#include "dovetail/base/hash.h"
#include "dovetail/data/rows/row_statistics.h"
#include "temporary_folder.h"

namespace dovetail::data::row_pairs_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

int64_t key(const std::string& text) { return static_cast<int64_t>(xxh64(text)); }

RowsConfig config_of(const std::string& path) {
  RowsConfig config;
  config.files = {path};
  config.label = {"y"};
  config.validation_fraction = 0;
  return config;
}

RowsConfig fixture(const std::string& name) {
  return config_of(
      (std::filesystem::path(std::getenv("DOVETAIL_TEST_DATA")) / "parquet" / name).string());
}

RowBlock read(const RowsConfig& config) {
  const RowReader reader(config);
  EXPECT_EQ(reader.num_blocks(), 1);
  return reader.read(0);
}

/// Bad rows as "row/column/reason".
std::vector<std::string> bad_rows(const RowBlock& rows) {
  std::vector<std::string> all;
  for (const BadRow& bad : rows.bad_rows)
    all.push_back(fmt::format("{}/{}/{}", bad.row, bad.column, bad.reason));
  return all;
}

std::vector<std::string> warnings(const RowsConfig& config) {
  return row_warnings(scan_rows(config, RowReader(config)).statistics);
}

/// Rows of ids.parquet and of ids.csv.
class RowPairs : public ::testing::TestWithParam<const char*> {
 protected:
  static RowsConfig config_of_ids(std::vector<SparseConfig> sparse) {
    RowsConfig config = fixture(std::string("ids.") + GetParam());
    config.sparse = std::move(sparse);
    return config;
  }
  /// The same of id_lists, whose texts have a separator in CSV.
  static RowBlock read_lists(SparseConfig feature) {
    RowsConfig config = fixture(std::string("id_lists.") + GetParam());
    if (std::string(GetParam()) == "csv") feature.separator = "|";
    config.sparse = {std::move(feature)};
    return read(config);
  }
};

INSTANTIATE_TEST_SUITE_P(Formats, RowPairs, ::testing::Values("parquet", "csv"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(RowPairs, ABooleanIsTheIdThatPandasWrites) {
  const int64_t yes = key("True"), no = key("False");
  EXPECT_THAT(read(config_of_ids({{.columns = {"member"}}})).ids,
              ElementsAre(yes, no, no, yes, yes, no));
  const RowBlock maybe = read(config_of_ids({{.columns = {"maybe"}}}));
  EXPECT_THAT(maybe.ids, ElementsAre(yes, no, yes, no));
  EXPECT_THAT(maybe.ends, ElementsAre(1u, 1u, 2u, 3u, 3u, 4u));
  EXPECT_THAT(read(config_of_ids({{.columns = {"y", "member"}}})).ids,
              ElementsAre(key("True\x1fTrue"),
                          key("False\x1f"
                              "False"),
                          key("True\x1f"
                              "False"),
                          key("False\x1fTrue"), key("True\x1fTrue"),
                          key("False\x1f"
                              "False")));
  EXPECT_THAT(read_lists({.columns = {"truths"}}).ids, ElementsAre(yes, no, yes, yes, yes));
  EXPECT_THAT(read(config_of_ids({{.columns = {"member"}, .ids = "integer", .num_rows = 2}})).ids,
              ElementsAre(1, 0, 0, 1, 1, 0));
  RowsConfig grouped = config_of_ids({{.columns = {"member"}}});
  grouped.group = "member";
  EXPECT_THAT(read(grouped).groups, ElementsAre(yes, no, no, yes, yes, no));
}

TEST_P(RowPairs, ABooleanIsALabelAndANumber) {
  RowsConfig config = config_of_ids({});
  config.label = {"member"};
  config.dense = {{.columns = {"y", "maybe"}}};
  const RowBlock rows = read(config);
  EXPECT_THAT(rows.labels, ElementsAre(1, 0, 0, 1, 1, 0));
  ASSERT_EQ(rows.dense.size(), 12u);
  const double maybe[] = {1, std::nan(""), 0, 1, std::nan(""), 0};
  for (size_t r = 0; r < 6; ++r) {
    EXPECT_EQ(rows.dense[2 * r], r % 2 == 0 ? 1 : 0);
    EXPECT_EQ(std::isnan(rows.dense[2 * r + 1]), std::isnan(maybe[r]));
    if (!std::isnan(maybe[r])) {
      EXPECT_EQ(rows.dense[2 * r + 1], maybe[r]);
    }
  }
}

TEST_P(RowPairs, AnIntegerThatANullMadeAFloatIsThatInteger) {
  const RowBlock rows =
      read(config_of_ids({{.columns = {"shop"}, .ids = "integer", .num_rows = 13}}));
  EXPECT_THAT(bad_rows(rows), ElementsAre());
  EXPECT_THAT(rows.ids, ElementsAre(7, 9, 7, 0, 12));
  EXPECT_THAT(rows.ends, ElementsAre(1u, 1u, 2u, 3u, 4u, 5u));
  EXPECT_THAT(read_lists({.columns = {"shops"}, .ids = "integer"}).ids, ElementsAre(7, 9, 0, 12));
  EXPECT_THAT(
      bad_rows(read(config_of_ids({{.columns = {"shop"}, .ids = "integer", .num_rows = 12}}))),
      ElementsAre(HasSubstr("6/shop/the id 12")));
}

TEST_P(RowPairs, AnEmptyTextIsMissing) {
  const RowBlock rows = read(config_of_ids({{.columns = {"city"}}}));
  EXPECT_THAT(rows.ids, ElementsAre(key("a"), key("b"), key("a")));
  EXPECT_THAT(rows.ends, ElementsAre(1u, 1u, 1u, 2u, 2u, 3u));
  EXPECT_THAT(read(config_of_ids({{.columns = {"city", "member"}}})).ends,
              ElementsAre(1u, 1u, 1u, 2u, 2u, 3u));
  EXPECT_THAT(read(config_of_ids({{.columns = {"city"}, .missing = "value"}})).ids,
              ElementsAre(key("a"), key(""), key(""), key("b"), key(""), key("a")));
  EXPECT_THAT(bad_rows(read(config_of_ids({{.columns = {"city"}, .missing = "bad_row"}}))),
              ElementsAre("2/city/the id is missing", "3/city/the id is missing",
                          "5/city/the id is missing"));
  EXPECT_THAT(bad_rows(read_lists({.columns = {"words"}})),
              ElementsAre("2/words/an id of the list is missing"));
  RowsConfig by_day = config_of_ids({{.columns = {"member"}}});
  by_day.validation_fraction = RowsConfig().validation_fraction;
  by_day.day = "city";
  EXPECT_THAT(bad_rows(read(by_day)),
              ElementsAre("2/city/the day is missing", "3/city/the day is missing",
                          "5/city/the day is missing"));
}

TEST_P(RowPairs, ANumberBeyondFloat32IsABadRow) {
  RowsConfig config = config_of_ids({});
  config.dense = {{.columns = {"far"}}};
  const RowBlock rows = read(config);
  EXPECT_THAT(bad_rows(rows),
              ElementsAre("2/far/1e+39 is beyond float32", "3/far/-1e+39 is beyond float32"));
  EXPECT_EQ(rows.num_rows, 4);
  config.dense[0].transform = "log1p";
  EXPECT_EQ(read(config).num_bad, 0);
  config.dense.clear();
  config.sparse = {{.columns = {"member"}, .weights = "far"}};
  EXPECT_THAT(bad_rows(read(config)), Contains("2/far/1e+39 is beyond float32"));
}

TEST_P(RowPairs, ALabelIsComparedInSixWays) {
  RowsConfig config = config_of_ids({{.columns = {"city"}}});
  config.label = {"shop > 7", "shop >= 7", "shop<7", "shop <= 7", "shop == 7", "shop != 7"};
  const RowBlock rows = read(config);
  EXPECT_EQ(rows.num_unlabelled, 1);
  EXPECT_THAT(rows.labels, ElementsAre(0, 1, 0, 1, 1, 0,    // 7
                                       1, 1, 0, 0, 0, 1,    // 9
                                       0, 1, 0, 1, 1, 0,    // 7
                                       0, 0, 1, 1, 0, 1,    // 0
                                       1, 1, 0, 0, 0, 1));  // 12
}

TEST(RowLabels, AnotherComparisonIsRefusedWithTheFormsThereAre) {
  for (const char* label : {"y < ", "y < x", "< 1", "y <> 1", "y => 1", "0 < y < 1"}) {
    RowsConfig config = config_of("rows.csv");
    config.label = {label};
    config.sparse = {{.columns = {"a"}}};
    try {
      config.check();
      ADD_FAILURE() << label;
    } catch (const UserError& e) {
      EXPECT_THAT(e.what(), HasSubstr("rows.label"));
      EXPECT_THAT(e.what(), HasSubstr("<, <=, >, >=, == or !="));
    }
  }
}

TEST(RowIds, HashedFloatsOfParquetAreTheirIntegers) {
  RowsConfig config = fixture("ids.parquet");
  config.sparse = {{.columns = {"shop"}}};
  EXPECT_THAT(read(config).ids, ElementsAre(key("7"), key("9"), key("7"), key("0"), key("12")));
  config.sparse = {{.columns = {"shop", "member"}}};
  EXPECT_THAT(read(config).ids, Contains(key("7\x1fTrue")));
  config.sparse = {{.columns = {"far"}}};
  EXPECT_THAT(bad_rows(read(config)),
              Contains("1/far/the float 1.5 is no id; write the column as integers or strings"));
  EXPECT_THAT(bad_rows(read(config)), Contains(HasSubstr("2/far/the float 1e+39 is no id")));
}

class RowTexts : public ::testing::Test {
 protected:
  RowsConfig config_of_text(const std::string& name, const std::string& content) {
    RowsConfig config = config_of(folder_.write(name, content).string());
    config.sparse = {{.columns = {"a"}}};
    return config;
  }
  TemporaryFolder folder_;
};

TEST_F(RowTexts, IntegersMayHaveAFractionOfZeros) {
  RowsConfig config =
      config_of_text("ids.csv",
                     "y,a\n1,1.0\n0,-3.00\n1,9007199254740991.0\n0,9007199254740993.0\n1,1.5\n"
                     "1,18446744073709551615\n1,x.0\n0,nan\n");
  config.sparse[0].ids = "integer";
  const RowBlock rows = read(config);
  EXPECT_THAT(rows.ids, ElementsAre(1, -3, 9007199254740991, -1));
  EXPECT_THAT(
      bad_rows(rows),
      ElementsAre("4/a/\"9007199254740993.0\" is not an integer", "5/a/\"1.5\" is not an integer",
                  "7/a/\"x.0\" is not an integer", "8/a/\"nan\" is not an integer"));
}

TEST_F(RowTexts, WarnsOfHashedIdsThatAllReadLikeFloats) {
  RowsConfig config = config_of_text("floats.csv", "y,a,b\n1,7.0,x\n0,,x\n1,9.0,y\n0,7.0,y\n");
  EXPECT_THAT(read(config).ids, ElementsAre(key("7.0"), key("9.0"), key("7.0")));
  const auto of_column = AllOf(HasSubstr("floats.csv"), HasSubstr("column `a`"), HasSubstr("7.0"));
  EXPECT_THAT(warnings(config), Contains(of_column).Times(1));
  config.sparse = {{.columns = {"a", "b"}}};
  EXPECT_THAT(warnings(config), Contains(of_column).Times(1));
  config.sparse = {{.columns = {"b"}}, {.columns = {"a"}, .ids = "integer"}};
  EXPECT_THAT(warnings(config), Each(Not(of_column)));
  config = config_of_text("versions.csv", "y,a\n1,7.0\n0,7.1\n1,7.0\n");
  config.files.push_back(folder_.write("floats.csv", "y,a\n1,7.0\n0,8.0\n").string());
  EXPECT_THAT(warnings(config), Contains(of_column).Times(1));
  EXPECT_THAT(warnings(config), Each(Not(HasSubstr("versions.csv"))));
}

TEST_F(RowTexts, WarnsOfALabelThatTheModelSees) {
  const std::string content = "y,a,b\n1,7,x\n0,8,x\n1,9,y\n0,7,y\n";
  RowsConfig config = config_of_text("rows.csv", content);
  const auto own_label = AllOf(HasSubstr("its own label"), HasSubstr("`y`"));
  EXPECT_THAT(warnings(config), Each(Not(own_label)));
  config.label = {"y > 0.5", "y < 0.5"};
  config.dense = {{.columns = {"a", "y"}}};
  EXPECT_THAT(warnings(config), Contains(own_label).Times(1));
  config.dense.clear();
  config.sparse.push_back({.columns = {"b", "y"}});
  EXPECT_THAT(warnings(config), Contains(own_label).Times(1));
}

}  // namespace
}  // namespace dovetail::data::row_pairs_test
