#include "dovetail/embedding/ranks/table_placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dovetail/base/error.h"

namespace dovetail::embedding::plan_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Plan, PlacesTablesWhereTheyBalance) {
  PackSpec spec{
      .tables = {}, .feature_table = {}, .optimizer = {.kind = OptimizerKind::kRowWiseAdagrad}};
  const auto add = [&](const char* name, int64_t rows, int64_t dim) {
    spec.feature_table.push_back(static_cast<int64_t>(spec.tables.size()));
    spec.tables.push_back({.name = name, .rows = rows, .dim = dim});
  };
  add("huge", 100000, 32);
  for (const char* name : {"a", "b", "c", "d"}) add(name, 1000, 16);
  const auto sharding_of = [&](const TablePlacement& plan, size_t t) {
    return plan.tables[t].sharding;
  };
  const TablePlacement by_rows = place_tables(spec, {.ranks = 2});
  EXPECT_EQ(sharding_of(by_rows, 0), Sharding::kRowWise);
  for (size_t t = 1; t < 5; ++t) EXPECT_EQ(sharding_of(by_rows, t), Sharding::kTableWise);
  std::vector<int64_t> ranks;
  for (size_t t = 1; t < 5; ++t) ranks.push_back(by_rows.tables[t].rank);
  EXPECT_THAT(ranks, ::testing::ElementsAre(0, 1, 0, 1));
  spec.optimizer.kind = OptimizerKind::kAdagrad;
  EXPECT_EQ(sharding_of(place_tables(spec, {.ranks = 2}), 0), Sharding::kColumnWise);
  EXPECT_EQ(sharding_of(place_tables(spec, {.ranks = 16}), 0),
            Sharding::kRowWise);  // 32 columns are too few for 16 ranks
}

TEST(Plan, ATableTakesNoMoreThanItsMaxBytes) {
  PackSpec spec{.tables = {{.name = "t", .rows = 1000, .dim = 15, .hashed = true}},
                .feature_table = {0}};
  const auto bytes = [&] {
    const TablePlacement plan = place_tables(spec, {});
    return bytes_on(spec, plan, plan.packs.front(), 0);
  };
  EXPECT_EQ(bytes(), 1000 * (15 + 1) * 4);
  spec.tables[0].max_bytes = 5000;
  EXPECT_EQ(bytes(), 5000);
}

TEST(Plan, PacksSplitsAndGroups) {
  PackSpec spec{.tables = {}, .feature_table = {}};
  for (const int64_t dim : {64, 16, 16, 16, 8, 8}) {
    spec.feature_table.push_back(static_cast<int64_t>(spec.tables.size()));
    spec.tables.push_back({.name = std::to_string(spec.tables.size()), .rows = 100, .dim = dim});
  }
  const auto tables_of = [](const TablePlacement& plan) {
    std::vector<std::vector<int64_t>> tables;
    for (const PlacedPack& pack : plan.packs) tables.push_back(pack.tables);
    return tables;
  };
  using ::testing::ElementsAre;
  EXPECT_THAT(tables_of(place_tables(spec, {})), ElementsAre(ElementsAre(0, 1, 2, 3, 4, 5)));
  EXPECT_EQ(place_tables(spec, {.packing = false}).packs.size(), 6);
  EXPECT_THAT(tables_of(place_tables(spec, {.groups = 2})),
              ElementsAre(ElementsAre(0), ElementsAre(1, 2, 3, 4, 5)));
  const TablePlacement three = place_tables(spec, {.packing = false, .groups = 3});
  std::vector<double> volumes(3, 0);
  for (const PlacedPack& pack : three.packs)
    volumes[static_cast<size_t>(pack.group)] += pack.volume;
  EXPECT_THAT(volumes, ElementsAre(64, 32, 32));
  // Two packs, of 96 and of 32, whose mean is 64: the first is split.
  for (const size_t t : {3, 4, 5})
    spec.tables[t].optimizer = OptimizerSpec{.kind = OptimizerKind::kSgd};
  EXPECT_THAT(tables_of(place_tables(spec, {})),
              ElementsAre(ElementsAre(0), ElementsAre(1, 2), ElementsAre(3, 4, 5)));
  for (TableSpec& table : spec.tables) table.optimizer.reset();
  // On two ranks the first table outweighs half of all others: it is cut. The mean size of the
  // packs is 64.
  const TablePlacement two =
      place_tables(spec, {.ranks = 2, .groups = 2, .ids_per_sample = {1, 1, 1, 1, 1, 30}});
  EXPECT_EQ(two.tables[5].sharding, Sharding::kRowWise);
  EXPECT_EQ(two.tables[0].sharding, Sharding::kTableWise);
  EXPECT_THAT(print(spec, two), HasSubstr("row"));
  EXPECT_THAT([&] { place_tables(spec, {.groups = 7}); },
              ThrowsMessage<UserError>(HasSubstr("6 tables cannot be in 7 groups")));
  EXPECT_THAT(
      [&] { place_tables(spec, {.ranks = 2, .sharding = Sharding::kColumnWise}); },
      ThrowsMessage<UserError>(HasSubstr("row-wise Adagrad has one state for a whole row")));
  spec.optimizer.kind = OptimizerKind::kSgd;
  EXPECT_THAT([&] { place_tables(spec, {.ranks = 4, .sharding = Sharding::kColumnWise}); },
              ThrowsMessage<UserError>(HasSubstr("table \"4\" has 8 columns, too few")));
}

}  // namespace
}  // namespace dovetail::embedding::plan_test
