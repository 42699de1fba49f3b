// RowDecoder::decode_columns against RowDecoder::decode, row by row, on columns of every kind.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "dovetail/base/hash.h"
#include "dovetail/data/rows/row_decoder.h"

namespace dovetail::data::row_columns_test {
namespace {

using Kind = ColumnValues::Kind;

class Columns : public ::testing::TestWithParam<uint64_t> {
 protected:
  int64_t below(int64_t bound) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(bound));
  }
  bool one_in(int64_t n) { return below(n) == 0; }

  void add_value(ColumnValues& out) {
    out.value_present.push_back(!one_in(8));
    if (out.kind == Kind::kText) {
      out.codes.push_back(static_cast<int32_t>(below(std::ssize(out.words))));
    } else if (out.kind == Kind::kInteger) {
      const int64_t numbers[] = {
          0, 1, -3, below(2000), int64_t{1} << 40, std::numeric_limits<int64_t>::min()};
      out.integers.push_back(out.booleans ? below(2) : numbers[below(std::ssize(numbers))]);
    } else {
      const double kInfinity = std::numeric_limits<double>::infinity();
      const double numbers[] = {0.25, 3, -0.0, 1e39, std::nan(""), one_in(20) ? kInfinity : 0.5};
      out.reals.push_back(numbers[below(std::ssize(numbers))]);
    }
  }

  ColumnValues column(Kind kind, bool list, int64_t rows) {
    static const char* const kWords[] = {
        "", "a", "17", "3.5", "x|y||z", "long enough for a lane of thirty-two bytes"};
    ColumnValues out;
    out.kind = kind;
    out.is_list = list;
    out.booleans = kind == Kind::kInteger && one_in(3);
    if (kind == Kind::kText) out.words.assign(std::begin(kWords), std::end(kWords));
    for (const std::string_view word : out.words) out.keys.push_back(xxh64(word));
    if (list) out.list_begins.push_back(0);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t count = list ? below(4) : 1;
      for (int64_t i = 0; i < count; ++i) add_value(out);
      if (!list) continue;
      out.list_present.push_back(!one_in(6));
      out.list_begins.push_back(std::ssize(out.value_present));
    }
    return out;
  }

  std::string name(const std::string& of) { return of + std::to_string(below(3)); }

  /// Texts t0 to t2, integers i, reals r, lists of each tl, il, rl; now and then a group, a day, a
  /// text for a number.
  RowsConfig config() {
    static const char* const kMissingNumber[] = {"zero", "mean", "bad_row"};
    static const char* const kMissingId[] = {"empty", "value", "bad_row"};
    RowsConfig config;
    static const char* const kComparison[] = {" > 0", " >= 1", " < 1", "<=0", " == 1", " != 0"};
    config.label = {one_in(8) ? name("t") + " > 2" : name("i") + kComparison[below(6)]};
    if (one_in(2)) config.label.push_back(name("r"));
    config.missing_label = one_in(2) ? "mask" : one_in(2) ? "bad_row" : "drop";
    for (int64_t d = below(4); d > 0; --d)
      config.dense.push_back({.columns = {one_in(15) ? name("t") : name(one_in(2) ? "i" : "r")},
                              .missing = kMissingNumber[below(3)],
                              .transform = one_in(2) ? "log1p" : "none"});
    const bool plain = one_in(2);
    for (int64_t f = below(5); f > 0; --f) {
      SparseConfig feature{.num_rows = one_in(2) ? 0 : 1 + below(1000),
                           .missing = kMissingId[below(3)]};
      const int64_t what = plain ? below(2) : below(8);
      feature.columns = {name(what == 0   ? "t"
                              : what == 1 ? "i"
                              : what == 2 ? "r"
                              : what < 5  ? "tl"
                                          : "t")};
      if (what == 3) feature.max_length = 2;
      if (what == 5) feature.columns.push_back(name("i"));
      if (what == 6) feature.separator = "|";
      if (what == 7) feature = {.columns = {name("i")}, .ids = "integer", .num_rows = 1500};
      if (what == 4 && one_in(2)) feature.weights = name("rl");
      if (what == 4 && one_in(2)) feature.sequence = true;
      config.sparse.push_back(feature);
    }
    if (one_in(3)) config.group = name("i");
    if (one_in(4)) config.day = name("t");
    return config;
  }

  std::mt19937_64 random_{GetParam()};
};

template <class Number>
void expect_same(const std::vector<Number>& got, const std::vector<Number>& wanted,
                 const char* what) {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_EQ(std::memcmp(&got[i], &wanted[i], sizeof(Number)), 0)
        << what << " " << i << ": " << got[i] << " and not " << wanted[i];
}

void expect_same(const RowBlock& got, const RowBlock& wanted) {
  EXPECT_EQ(got.num_rows, wanted.num_rows);
  EXPECT_EQ(got.num_bad, wanted.num_bad);
  EXPECT_EQ(got.num_unlabelled, wanted.num_unlabelled);
  expect_same(got.dense, wanted.dense, "dense");
  expect_same(got.labels, wanted.labels, "labels");
  expect_same(got.groups, wanted.groups, "groups");
  expect_same(got.ids, wanted.ids, "ids");
  expect_same(got.weights, wanted.weights, "weights");
  expect_same(got.ends, wanted.ends, "ends");
  expect_same(got.id_forms, wanted.id_forms, "id_forms");
  expect_same(got.left_out, wanted.left_out, "left_out");
  ASSERT_EQ(got.bad_rows.size(), wanted.bad_rows.size());
  for (size_t i = 0; i < got.bad_rows.size(); ++i) {
    EXPECT_EQ(got.bad_rows[i].row, wanted.bad_rows[i].row);
    EXPECT_EQ(got.bad_rows[i].column, wanted.bad_rows[i].column);
    EXPECT_EQ(got.bad_rows[i].reason, wanted.bad_rows[i].reason);
  }
  ASSERT_EQ(got.days.size(), wanted.days.size());
  for (size_t i = 0; i < got.days.size(); ++i) {
    EXPECT_EQ(got.days[i].row, wanted.days[i].row);
    EXPECT_EQ(got.days[i].number, wanted.days[i].number);
    EXPECT_EQ(got.days[i].day, wanted.days[i].day);
  }
}

TEST_P(Columns, AreTheirRows) {
  for (int round = 0; round < 40; ++round) {
    const RowDecoder decoder(config());
    const int64_t rows = below(700), first = rows == 0 ? 0 : below(rows), count = rows - first;
    std::vector<ColumnValues> columns;
    for (const std::string& name : decoder.columns()) {
      const Kind kind = name[0] == 't'   ? Kind::kText
                        : name[0] == 'i' ? Kind::kInteger
                                         : Kind::kReal;
      columns.push_back(column(kind, name[1] == 'l', rows));
    }
    RowBlock got, wanted;
    decoder.decode_columns(columns, first, count, first + 1, got);
    std::vector<Cell> cells(columns.size());
    for (int64_t r = first; r < rows; ++r) {
      for (size_t c = 0; c < columns.size(); ++c) set_row_cell(columns[c], r, cells[c]);
      decoder.decode(cells, r + 1, wanted);
    }
    expect_same(got, wanted);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, Columns, ::testing::Range<uint64_t>(0, 8));

}  // namespace
}  // namespace dovetail::data::row_columns_test
