#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "dovetail/base/error.h"
#include "dovetail/base/hash.h"
#include "dovetail/base/rng.h"
#include "dovetail/data/rows/delimited.h"
#include "dovetail/data/rows/row_reader.h"
#include "temporary_folder.h"

namespace dovetail::data::row_text_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RowText : public ::testing::Test {
 protected:
  /// A file with the label in column `y` and a feature with 64-bit keys of column `a`.
  RowsConfig config_of(const std::string& name, const std::string& content) {
    RowsConfig config;
    config.files = {folder_.write(name, content).string()};
    config.label = {"y"};
    config.sparse = {{.columns = {"a"}}};
    config.validation_fraction = 0;
    return config;
  }

  static RowBlock read(const RowsConfig& config) {
    const RowReader reader(config);
    EXPECT_EQ(reader.num_blocks(), 1);
    return reader.read(0);
  }

  /// Bad rows as "row/column/reason".
  static std::vector<std::string> bad_rows(const RowsConfig& config) {
    std::vector<std::string> rows;
    for (const BadRow& bad : read(config).bad_rows)
      rows.push_back(fmt::format("{}/{}/{}", bad.row, bad.column, bad.reason));
    return rows;
  }

  static std::string refusal(const RowsConfig& config) {
    try {
      read(config);
    } catch (const UserError& e) {
      return std::string(e.what()) + " / " + e.help() + " / " + e.place();
    }
    return "accepted";
  }

  static int64_t key(const std::string& text) { return static_cast<int64_t>(xxh64(text)); }

  TemporaryFolder folder_;
};

TEST_F(RowText, ReadsTabsWithAndWithoutHeader) {
  const RowBlock with =
      read(config_of("with.tsv", "y\tb\ta\n1\tx\tone\n0\ty\ttwo\r\n1\t\t\"q\"\n"));
  EXPECT_THAT(with.ids, ElementsAre(key("one"), key("two"), key("\"q\"")));
  EXPECT_THAT(with.labels, ElementsAre(1, 0, 1));
  RowsConfig config = config_of("without.tsv", "1|x|one\n0|y|\n1|z|two");
  config.header = false;
  config.columns = {"y", "b", "a"};
  config.delimiter = "|";
  const RowBlock without = read(config);
  EXPECT_THAT(without.ids, ElementsAre(key("one"), key("two")));
  EXPECT_THAT(without.ends, ElementsAre(1u, 1u, 2u));
}

TEST_F(RowText, ReadsQuotedFields) {
  const RowBlock rows = read(config_of("quoted.csv",
                                       "\xef\xbb\xbf\"y\",a,b\r\n"
                                       "1,\"comma, and \"\"quotes\"\"\",x\r\n"
                                       "0,\"two\nlines\",\"\"\r\n"
                                       "1,\"\",\"unused \"\" here\"\n"
                                       "0,plain,\"last\""));
  EXPECT_EQ(rows.num_bad, 0);
  EXPECT_THAT(rows.ids, ElementsAre(key("comma, and \"quotes\""), key("two\nlines"), key("plain")));
  EXPECT_THAT(rows.ends, ElementsAre(1u, 2u, 2u, 3u));
}

/// Random texts, quoted where RFC 4180 demands it, come back whatever ranges the file is read in.
TEST_F(RowText, GivesBackRandomTextInAnyRanges) {
  const std::string alphabet = "ab,\"\n\r \xc3";
  std::string content = "a,b\n";
  std::vector<std::array<std::string, 2>> written;
  for (uint64_t row = 0; row < 400; ++row) {
    std::array<std::string, 2> fields;
    for (uint64_t field = 0; field < 2; ++field) {
      const uint64_t length = random_below(1, RandomStream::kTest, 2 * row + field, 9) + 1;
      for (uint64_t i = 0; i < length; ++i)
        fields[field] += alphabet[random_below(2, RandomStream::kTest, 100 * row + 10 * field + i,
                                               alphabet.size())];
      std::string quoted;
      for (const char c : fields[field]) quoted += c == '"' ? "\"\"" : std::string(1, c);
      const bool plain = fields[field].find_first_of(",\"\n\r") == std::string::npos;
      content += (plain ? quoted : "\"" + quoted + "\"") + (field == 0 ? "," : "\n");
    }
    written.push_back(fields);
  }
  const DelimitedFile file(folder_.write("random.csv", content), {',', true, {}});
  for (const uint64_t bytes : {1, 7, 100, 1000000}) {
    size_t at = 0;
    for (const RecordRange& range : file.ranges(bytes))
      file.read(range, {1, 0}, [&](int64_t row, std::span<const Cell> cells, const BadRow* bad) {
        ASSERT_EQ(bad, nullptr);
        ASSERT_EQ(row, static_cast<int64_t>(++at));
        EXPECT_EQ(*cells[1].text, written[at - 1][0]);
        EXPECT_EQ(*cells[0].text, written[at - 1][1]);
      });
    EXPECT_EQ(at, written.size());
  }
}

TEST_F(RowText, LocatesEveryBadRow) {
  RowsConfig config = config_of("bad.tsv",
                                "y\ta\tn\tid\n"
                                "1\tx\t2.5\t0\n"
                                "1\tx\t3\n"
                                "1\tx\t3\t0\t0\n"
                                "1\tx\t3,5\t0\n"
                                "1\tx\tinf\t0\n"
                                "1\tx\t1e999\t0\n"
                                "1\tx\t1\t9\n"
                                "1\tx\t1\t-1\n"
                                "0\tx\t1\t2x\n"
                                "2\tx\t1\t3\n"
                                "\tx\t1\t99\n"
                                "0\tx\t1\t8\n");
  config.dense = {{.columns = {"n"}}};
  config.sparse.push_back({.columns = {"id"}, .ids = "integer", .num_rows = 9});
  const RowBlock rows = read(config);
  EXPECT_EQ(rows.num_bad, 9);
  EXPECT_EQ(rows.num_unlabelled, 1);
  EXPECT_THAT(rows.labels, ElementsAre(1, 0));
  EXPECT_THAT(rows.dense, ElementsAre(2.5, 1));
  EXPECT_THAT(rows.ids, ElementsAre(key("x"), 0, key("x"), 8));
  EXPECT_THAT(bad_rows(config),
              ElementsAre("2//3 fields, not 4", "3//5 fields, not 4", "4/n/\"3,5\" is not a number",
                          "5/n/inf is not finite", "6/n/inf is not finite",
                          "7/id/the id 9 is out of range; the table has 9 rows",
                          "8/id/the id -1 is out of range; the table has 9 rows",
                          "9/id/\"2x\" is not an integer"));
}

TEST_F(RowText, NamesInQuotesAreThoseOfAnyOtherField) {
  RowsConfig config = config_of("names.csv", "y,\"a \"\"b\"\", c\"\n1,one\n");
  config.sparse[0].columns = {"a \"b\", c"};
  EXPECT_THAT(read(config).ids, ElementsAre(key("one")));
  EXPECT_THAT(refusal(config_of("names.csv", "y,\"a\"b\"c,d\n1,one\n")),
              HasSubstr("name 2 of the header"));
}

TEST_F(RowText, LocatesBadQuotes) {
  const RowsConfig config = config_of("quotes.csv", "y,a\n1,\"x\"z\n1,5\" pipe\n1,ok\n");
  EXPECT_THAT(bad_rows(config), ElementsAre("1/a/text after the closing quote",
                                            "2/a/a quote inside a field that is not in quotes"));
  EXPECT_THAT(read(config).ids, ElementsAre(key("ok")));
  EXPECT_THAT(refusal(config_of("open.csv", "y,a\n1,x\n1,\"y\n1,z\n")),
              ::testing::AllOf(HasSubstr("never closed"), HasSubstr("open.csv: row 2")));
}

TEST_F(RowText, SplitsListsAndTheirWeights) {
  RowsConfig config = config_of("lists.tsv",
                                "y\ta\tw\n"
                                "1\tp|q|r\t1|2|0.5\n"
                                "0\t\t\n"
                                "1\tq\t4\n"
                                "1\tq|r\t4\n"
                                "1\tq||r\t4|4|4\n"
                                "1\tq|r\t4|x\n");
  config.sparse = {{.columns = {"a"}, .separator = "|", .weights = "w"}};
  const RowBlock rows = read(config);
  EXPECT_THAT(rows.ids, ElementsAre(key("p"), key("q"), key("r"), key("q")));
  EXPECT_THAT(rows.weights, ElementsAre(1, 2, 0.5, 4));
  EXPECT_THAT(rows.ends, ElementsAre(3u, 3u, 4u));
  EXPECT_THAT(bad_rows(config),
              ElementsAre("4/w/1 weights for 2 ids", "5/a/an id of the list is missing",
                          "6/w/\"x\" is not a number"));
  config.sparse[0].max_length = 1;
  EXPECT_THAT(read(config).ids, ElementsAre(key("r"), key("q")));
  EXPECT_THAT(read(config).weights, ElementsAre(0.5, 4));
}

TEST_F(RowText, SequencesOfARowTellOfTheSameEvents) {
  RowsConfig config = config_of("sequences.tsv",
                                "y\ta\tb\tc\n"
                                "1\tp|q|r\tx|y|z\tx\n"
                                "0\t\t\tx\n"
                                "1\tp|q|r\tx|y\tx\n"
                                "1\t\tx\tx\n"
                                "0\tp\tx\t\n");
  config.sparse = {
      {.columns = {"a"}, .separator = "|", .max_length = 2, .sequence = true},
      {.columns = {"c"}},
      {.columns = {"b"}, .separator = "|", .max_length = 2, .sequence = true, .table = "c"}};
  const RowBlock rows = read(config);
  EXPECT_THAT(rows.ids, ElementsAre(key("q"), key("r"), key("x"), key("y"), key("z"), key("x"),
                                    key("p"), key("x")));
  EXPECT_THAT(rows.ends, ElementsAre(2u, 3u, 5u, 5u, 6u, 6u, 7u, 7u, 8u));
  EXPECT_THAT(bad_rows(config), ElementsAre("3/b/a sequence of 2 ids beside one of 3",
                                            "4/b/a sequence of 1 ids beside one of 0"));
  for (SparseConfig& feature : config.sparse)
    if (feature.sequence) feature.keep = "first";
  EXPECT_THAT(read(config).ids, ElementsAre(key("p"), key("q"), key("x"), key("x"), key("y"),
                                            key("x"), key("p"), key("x")));
}

TEST_F(RowText, RefusesSequencesAndSharedTablesThatDoNotFit) {
  const auto refused = [](auto&& change) {
    RowsConfig config;
    config.files = {"rows.tsv"};
    config.label = {"y"};
    config.sparse = {
        {.columns = {"item"}, .num_rows = 9},
        {.columns = {"items"}, .num_rows = 9, .max_length = 4, .sequence = true, .table = "item"},
        {.columns = {"places"}, .num_rows = 5, .max_length = 4, .sequence = true}};
    change(config.sparse);
    try {
      config.check();
    } catch (const UserError& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  using Features = std::vector<SparseConfig>;
  EXPECT_EQ(refused([](Features&) {}), "accepted");
  EXPECT_THAT(refused([](Features& f) { f[0].keep = "first"; }),
              HasSubstr("rows.sparse.item: keep"));
  EXPECT_THAT(refused([](Features& f) { f[1].max_length = 0; }), HasSubstr("give max_length"));
  EXPECT_THAT(refused([](Features& f) { f[2].max_length = 3; }),
              HasSubstr("keeps the last 3 and items the last 4"));
  EXPECT_THAT(refused([](Features& f) { f[2].keep = "first"; }),
              HasSubstr("keeps the first 4 and items the last 4"));
  EXPECT_THAT(refused([](Features& f) { f[1].missing = "value"; }),
              HasSubstr("an event of a sequence"));
  EXPECT_THAT(refused([](Features& f) { f[1].table = "itms"; }),
              HasSubstr("\"itms\" is no feature"));
  EXPECT_THAT(refused([](Features& f) { f[2].table = "items"; }),
              HasSubstr("has no table of its own"));
  EXPECT_THAT(refused([](Features& f) { f[2].table = "places"; }),
              HasSubstr("has no table of its own"));
  EXPECT_THAT(refused([](Features& f) { f[1].num_rows = 8; }), HasSubstr("hash for 8 rows"));
  EXPECT_THAT(refused([](Features& f) { f[1].ids = "integer"; }), HasSubstr("integer for 9 rows"));
  EXPECT_THAT(refused([](Features& f) {
                f[2].columns = {"a", "b"};
                f[2].max_length = 0;
              }),
              HasSubstr("a cross of columns is one id"));
}

TEST_F(RowText, HashesAreBelowNumRowsWhateverTheirSign) {
  std::string content = "y\ta\n";
  for (int i = 0; i < 300; ++i) content += fmt::format("1\tid{}\n", i);
  RowsConfig config = config_of("many.tsv", content);
  config.sparse[0].num_rows = 7;
  const RowBlock rows = read(config);
  int64_t high = 0;
  for (int i = 0; i < 300; ++i) {
    const uint64_t hash = xxh64(fmt::format("id{}", i));
    high += static_cast<int64_t>(hash) < 0;
    EXPECT_EQ(rows.ids[static_cast<size_t>(i)], static_cast<int64_t>(hash % 7));
  }
  EXPECT_GT(high, 100);
}

TEST_F(RowText, RefusesConfigsThatContradictThemselves) {
  const RowsConfig good = config_of("good.tsv", "y\ta\tb\n1\tx\ty\n");
  EXPECT_EQ(refusal(good), "accepted");
  const auto refused = [&](auto&& change) {
    RowsConfig config = good;
    change(config);
    return refusal(config);
  };
  EXPECT_THAT(refused([](RowsConfig& c) { c.files.clear(); }), HasSubstr("rows.files"));
  EXPECT_THAT(refused([](RowsConfig& c) { c.files = {"/absent/*.tsv"}; }),
              HasSubstr("names no file"));
  EXPECT_THAT(refused([](RowsConfig& c) { c.label.clear(); }), HasSubstr("rows.label"));
  EXPECT_THAT(refused([](RowsConfig& c) { c.label = {"y > ten"}; }), HasSubstr("column > number"));
  EXPECT_THAT(refused([](RowsConfig& c) { c.sparse.clear(); }), HasSubstr("nothing to learn"));
  EXPECT_THAT(refused([](RowsConfig& c) { c.columns = {"y", "a", "b"}; }),
              HasSubstr("rows.header"));
  EXPECT_THAT(refused([](RowsConfig& c) { c.header = false; }), HasSubstr("rows.columns"));
  EXPECT_THAT(refused([](RowsConfig& c) { c.missing_label = "mask"; }), HasSubstr("mask"));
  EXPECT_THAT(refused([](RowsConfig& c) { c.delimiter = "ab"; }), HasSubstr("rows.delimiter"));
  EXPECT_THAT(refused([](RowsConfig& c) { c.max_bad_rows = 5; }), HasSubstr("max_bad_rows"));
  EXPECT_THAT(refused([](RowsConfig& c) { c.sparse.push_back(c.sparse[0]); }),
              HasSubstr("named \"a\""));
  EXPECT_THAT(refused([](RowsConfig& c) { c.sparse[0].max_length = 2; }), HasSubstr("max_length"));
  EXPECT_THAT(refused([](RowsConfig& c) {
                c.sparse[0].columns = {"a", "b"};
                c.sparse[0].ids = "integer";
              }),
              HasSubstr("hash"));
  EXPECT_THAT(refused([](RowsConfig& c) {
                c.sparse[0].columns = {"a", "b"};
                c.sparse[0].separator = "|";
              }),
              HasSubstr("cross"));
  EXPECT_THAT(refused([](RowsConfig& c) {
                c.sparse[0].ids = "integer";
                c.sparse[0].missing = "value";
              }),
              HasSubstr("missing"));
  EXPECT_THAT(refusal(config_of("twice.tsv", "y\ta\ta\n")), HasSubstr("two columns `a`"));
  EXPECT_THAT(refusal(config_of("empty.tsv", "")), HasSubstr("no header"));
  EXPECT_THAT(refusal(config_of("bare.tsv", "y\ta\n")), HasSubstr("hold no row"));
  EXPECT_EQ(refusal(config_of("data.txt", "y\ta\n1\tx\n")), "accepted");
  EXPECT_THAT(refusal(config_of("one.txt", "y\n1\n")), HasSubstr("no delimiter"));
}

}  // namespace
}  // namespace dovetail::data::row_text_test
