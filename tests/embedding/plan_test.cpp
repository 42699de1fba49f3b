#include "dovetail/embedding/ranks/table_placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "dovetail/base/error.h"
#include "dovetail/base/rng.h"

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

/// Returns the bytes of each rank, from the parts that it holds.
std::vector<double> bytes_of_ranks(const PackSpec& spec, const TablePlacement& plan) {
  std::vector<double> bytes;
  for (int64_t rank = 0; rank < plan.ranks; ++rank) {
    bytes.push_back(0);
    for (const PlacedPack& pack : plan.packs)
      bytes.back() += static_cast<double>(bytes_on(spec, plan, pack, rank));
  }
  return bytes;
}

double most_over_mean(const std::vector<double>& loads) {
  const double sum = std::accumulate(loads.begin(), loads.end(), 0.0);
  return *std::ranges::max_element(loads) / sum * static_cast<double>(loads.size());
}

/// Two large and two small tables. A sample reads as much from each.
TEST(Plan, BalancesBytesWhereTablesAreReadAlike) {
  const PackSpec spec{
      .tables = {{"c3", 3000000, 16}, {"c1", 300000, 16}, {"c4", 3000000, 16}, {"c2", 300000, 16}},
      .feature_table = {0, 1, 2, 3},
      .optimizer = {.kind = OptimizerKind::kRowWiseAdagrad}};
  const TablePlacement plan = place_tables(spec, {.ranks = 2});
  EXPECT_THAT(bytes_of_ranks(spec, plan), ::testing::Each(3300000.0 * 17 * 4));
  for (const PlacedTable& table : plan.tables) EXPECT_EQ(table.sharding, Sharding::kTableWise);
}

TEST(Plan, BytesOfRanksAreWithinATenthOfTheirMean) {
  for (const int64_t tables : {3, 26, 200}) {
    for (const int64_t ranks : {2, 3, 8, 16}) {
      for (const auto kind : {OptimizerKind::kRowWiseAdagrad, OptimizerKind::kAdam}) {
        PackSpec spec{.tables = {}, .feature_table = {}, .optimizer = {.kind = kind}};
        std::vector<double> ids;
        for (int64_t t = 0; t < tables; ++t) {
          const auto index = static_cast<uint64_t>(1000 * tables + t);
          const auto draw = [&](uint64_t key) {
            return random_uniform(key, RandomStream::kTest, index);
          };
          spec.feature_table.push_back(t);
          spec.tables.push_back({.name = std::to_string(t),
                                 .rows = static_cast<int64_t>(std::pow(10, 2 + 5 * draw(1))),
                                 .dim = int64_t{4} << static_cast<int>(5 * draw(2)),
                                 .hashed = draw(3) < 0.2});
          ids.push_back(20 * std::pow(draw(4), 4));
        }
        const TablePlacement plan = place_tables(spec, {.ranks = ranks, .ids_per_sample = ids});
        EXPECT_LE(most_over_mean(bytes_of_ranks(spec, plan)), 1.1)
            << tables << " tables, " << ranks << " ranks";
        std::vector<double> volumes(static_cast<size_t>(ranks), 0);
        double cut = 0, all = 0;
        for (const PlacedTable& table : plan.tables) {
          all += table.volume;
          if (table.sharding == Sharding::kTableWise)
            volumes[static_cast<size_t>(table.rank)] += table.volume;
          else
            cut += table.volume;
        }
        const double mean = all / static_cast<double>(ranks);
        if (tables == 200 && ranks < 8) {
          EXPECT_LE(*std::ranges::max_element(volumes) + cut / static_cast<double>(ranks),
                    1.25 * mean)
              << ranks << " ranks";
        }
      }
    }
  }
}

TEST(Plan, CutsTablesToKeepToTheBytesOfARank) {
  PackSpec spec{.tables = {{"a", 1000, 8}, {"b", 1000, 8}, {"c", 1000, 8}},
                .feature_table = {0, 1, 2},
                .optimizer = {.kind = OptimizerKind::kSgd}};
  constexpr int64_t kTable = 1000 * 8 * 4;
  const auto sharding_of = [&](int64_t rank_bytes) {
    std::vector<Sharding> found;
    for (const PlacedTable& table :
         place_tables(spec, {.ranks = 2, .rank_bytes = rank_bytes}).tables)
      found.push_back(table.sharding);
    return found;
  };
  using enum Sharding;
  using ::testing::ElementsAre;
  EXPECT_THAT(sharding_of(2 * kTable), ElementsAre(kTableWise, kTableWise, kTableWise));
  EXPECT_THAT(sharding_of(3 * kTable / 2), ::testing::Contains(kColumnWise).Times(1));
  EXPECT_THAT([&] { sharding_of(3 * kTable / 2 - 1); },
              ThrowsMessage<UserError>(HasSubstr("embedding.rank_bytes is 47999")));
}

TEST(Plan, ATableMayHaveAShardingOfItsOwn) {
  const PackSpec spec{.tables = {{"a", 1000, 8}, {"b", 1000, 8}, {"c", 1000, 8}},
                      .feature_table = {0, 1, 2},
                      .optimizer = {.kind = OptimizerKind::kSgd}};
  using enum Sharding;
  const TablePlacement plan = place_tables(
      spec, {.ranks = 2, .sharding = kTableWise, .table_sharding = {kRowWise, {}, kReplicated}});
  EXPECT_EQ(plan.tables[0].sharding, kRowWise);
  EXPECT_EQ(plan.tables[1].sharding, kTableWise);
  EXPECT_EQ(plan.tables[2].sharding, kReplicated);
  EXPECT_THAT([&] { place_tables(spec, {.ranks = 4, .table_sharding = {{}, kColumnWise}}); },
              ThrowsMessage<UserError>(HasSubstr("table \"b\" has 8 columns, too few")));
}

TEST(Plan, ALargeTableWithoutAVocabularyIsSpread) {
  const PackSpec spec{.tables = {{.name = "item", .rows = 200000, .dim = 16, .hashed = true},
                                 {.name = "user", .rows = 20000, .dim = 16, .hashed = true}},
                      .feature_table = {0, 1}};
  const TablePlacement plan = place_tables(spec, {.ranks = 2});
  EXPECT_EQ(plan.tables[0].sharding, Sharding::kRowWise);
  EXPECT_EQ(plan.tables[1].sharding, Sharding::kTableWise);
}

TEST(Plan, GroupsAreBalancedWithinEachRank) {
  PackSpec spec{.tables = {}, .feature_table = {}};
  for (int64_t t = 0; t < 26; ++t) {
    spec.feature_table.push_back(t);
    spec.tables.push_back({.name = std::to_string(t), .rows = 100, .dim = 16});
  }
  for (const bool packing : {true, false}) {
    const TablePlacement plan = place_tables(spec, {.ranks = 2, .packing = packing, .groups = 4});
    std::map<std::pair<int64_t, int64_t>, int64_t> tables;
    for (const PlacedPack& pack : plan.packs)
      for (const int64_t t : pack.tables)
        ++tables[{pack.group, plan.tables[static_cast<size_t>(t)].rank}];
    EXPECT_EQ(tables.size(), 8);
    for (const auto& [place, count] : tables)
      EXPECT_THAT(count, ::testing::AnyOf(3, 4)) << "group " << place.first;
  }
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

TEST(Plan, TablesSendWhatHasFewerBytes) {
  // Twenty places of a long sequence and one popular id; and ids that never repeat, one a sample.
  PackSpec spec{.tables = {{"events", 1000, 16}, {"once", 1000000, 8}},
                .feature_table = {1},
                .optimizer = {.kind = OptimizerKind::kAdagrad}};
  std::vector<double> ids = {1};
  for (int event = 0; event < 20; ++event) {
    spec.feature_table.push_back(0);
    ids.push_back(0.1);
  }
  PlacementOptions options{.ranks = 2,
                           .sharding = Sharding::kTableWise,
                           .ids_per_sample = ids,
                           .transfer = std::nullopt,
                           .measured = MeasuredIds{.samples = 100, .distinct = {50, 100}}};
  const TablePlacement plan = place_tables(spec, options);
  EXPECT_EQ(plan.tables[0].transfer, Transfer::kRows);
  // Half of everything goes to the other rank. Lengths of 20 bags, ids, rows and gradients.
  EXPECT_EQ(plan.tables[0].bags_bytes, (4 * 2000 + 4 * 200 + 2 * 2000 * 64) / 2);
  EXPECT_EQ(plan.tables[0].rows_bytes, (4 * 20 + 50 * (4 + 2 * 64)) / 2);
  EXPECT_EQ(plan.tables[1].bags_bytes, (4 * 100 + 100 * (4 + 2 * 32)) / 2);
  EXPECT_EQ(plan.tables[1].rows_bytes, (4 + 100 * (4 + 2 * 32)) / 2);
  EXPECT_EQ(plan.packs.size(), 1);

  // Bags of 30 distinct ids: pooled rows are fewer.
  options.ids_per_sample.front() = 30;
  options.measured->distinct[1] = 2900;
  const TablePlacement mixed = place_tables(spec, options);
  EXPECT_EQ(mixed.tables[0].transfer, Transfer::kRows);
  EXPECT_EQ(mixed.tables[1].transfer, Transfer::kBags);
  EXPECT_EQ(mixed.packs.size(), 2);

  // A bag is pooled in parts by all ranks. BF16 has half the bytes.
  options.sharding = Sharding::kRowWise;
  options.payloads = {comm::Payload::kBFloat16, comm::Payload::kBFloat16};
  const TablePlacement by_rows = place_tables(spec, options);
  EXPECT_EQ(by_rows.tables[0].bags_bytes, (2 * 4 * 2000 + 4 * 200 + 2 * 2 * 2000 * 32) / 2);
  EXPECT_EQ(by_rows.tables[0].rows_bytes, (2 * 4 * 20 + 50 * (4 + 2 * 32)) / 2);

  // Replicas send no rows, but ids and gradients to all ranks.
  options.sharding = Sharding::kReplicated;
  const TablePlacement replicated = place_tables(spec, options);
  EXPECT_EQ(replicated.tables[0].bags_bytes, 2 * (4 * 2000 + 4 * 200 + 2000 * 32) / 2);
  EXPECT_EQ(replicated.tables[0].rows_bytes, 2 * (4 * 20 + 50 * (4 + 32)) / 2);

  // Hashed ids are two words, and each brings the number of its occurrences.
  for (TableSpec& table : spec.tables) table.hashed = true;
  options.sharding = Sharding::kTableWise;
  const TablePlacement hashed = place_tables(spec, options);
  EXPECT_EQ(hashed.tables[0].rows_bytes, (4 * 20 + 50 * (8 + 4 + 2 * 32)) / 2);
  options.transfer = Transfer::kBags;
  EXPECT_EQ(place_tables(spec, options).tables[0].transfer, Transfer::kBags);
}

}  // namespace
}  // namespace dovetail::embedding::plan_test
