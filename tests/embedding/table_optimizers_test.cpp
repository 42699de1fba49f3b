// ctest-labels: threads
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "dovetail/embedding/ranks/distributed.h"
#include "tests/comm/ranks.h"
#include "tests/embedding/testing.h"

namespace dovetail::embedding::table_optimizers_test {
namespace {

using dovetail::testing::expect_close;
using dovetail::testing::normal;
using dovetail::testing::user_error;
using ::testing::HasSubstr;
using testing::random_batch;

constexpr int64_t kSamples = 12;
constexpr uint64_t kSteps = 4;

/// Tables: two with the general optimizer, one with its own learning rate, one with another kind,
/// one without state.
PackSpec mixed() {
  const OptimizerSpec general{.kind = OptimizerKind::kAdagrad, .lr = 0.05, .eps = 1e-3};
  OptimizerSpec fast = general;
  fast.lr = 0.2;
  return {
      .tables = {{.name = "a", .rows = 90, .dim = 24},
                 {.name = "adam",
                  .rows = 17,
                  .dim = 16,
                  .optimizer =
                      OptimizerSpec{.kind = OptimizerKind::kAdam, .lr = 0.01, .weight_decay = 0.1}},
                 {.name = "b", .rows = 20, .dim = 16},
                 {.name = "fast", .rows = 31, .dim = 16, .optimizer = fast},
                 {.name = "sgd",
                  .rows = 25,
                  .dim = 16,
                  .optimizer = OptimizerSpec{.kind = OptimizerKind::kSgd}}},
      .feature_table = {1, 0, 2, 1, 3, 4},
      .optimizer = general,
      .seed = 3};
}

/// Learning rate that a step passes to `set_lr`.
double rate_of_step(uint64_t step) { return 0.05 / static_cast<double>(step); }

/// The features' columns in the output of the whole collection.
std::vector<int64_t> columns_of(const PackSpec& spec) {
  std::vector<int64_t> columns = {0};
  for (const int64_t t : spec.feature_table)
    columns.push_back(columns.back() + spec.tables[size_t(t)].dim);
  return columns;
}

/// Each table alone, with the features that read it.
struct Alone {
  explicit Alone(const PackSpec& spec) : whole(spec) {
    for (int64_t t = 0; t < std::ssize(spec.tables); ++t) {
      features.emplace_back();
      for (int64_t f = 0; f < std::ssize(spec.feature_table); ++f)
        if (spec.feature_table[size_t(f)] == t) features.back().push_back(f);
      TableSpec table = spec.tables[size_t(t)];
      const OptimizerSpec optimizer = table.optimizer.value_or(spec.optimizer);
      table.optimizer.reset();
      rates.push_back(optimizer.lr);
      tables.emplace_back(PackSpec{.tables = {table},
                                   .feature_table = std::vector<int64_t>(features.back().size(), 0),
                                   .optimizer = optimizer,
                                   .seed = spec.seed,
                                   .row_dtype = spec.row_dtype});
    }
  }

  void step(const Jagged& batch, const at::Tensor& gradient, double lr) {
    const std::vector<int64_t> columns = columns_of(whole);
    for (size_t t = 0; t < tables.size(); ++t) {
      std::vector<at::Tensor> own;
      for (const int64_t f : features[t])
        own.push_back(gradient.slice(1, columns[size_t(f)], columns[size_t(f) + 1]));
      tables[t].set_lr(rates[t] / 0.05 * lr);
      update(tables[t], {{embedding::features_of(batch, features[t]), at::cat(own, 1)}});
    }
  }

  PackSpec whole;
  std::vector<PackedTables> tables;
  std::vector<std::vector<int64_t>> features;
  std::vector<double> rates;
};

struct Layout {
  std::optional<Sharding> sharding;
  int ranks;
  bool packing = true;
  bool tiers = false;
};

void step_of_rank(DistributedTables& tables, const Jagged& batch, const at::Tensor& gradient) {
  TableStep step = tables.start(batch, batch.samples, 1);
  tables.begin(step);
  tables.gather(step, 0);
  tables.wait(step, 0);
  tables.add_gradient(step, 0, gradient);
  tables.update(step);
}

void expect_as_alone(const Layout& layout) {
  const PackSpec spec = mixed();
  Alone alone(spec);
  PackSpec shapes = spec;
  for (TableSpec& table : shapes.tables) table.optimizer.reset();
  const PackedTables like(shapes);
  std::vector<Jagged> batches;
  std::vector<at::Tensor> gradients;
  for (uint64_t step = 1; step <= kSteps; ++step) {
    batches.push_back(random_batch(like, kSamples, step, true));
    gradients.push_back(normal({kSamples, like.columns()}, 10 + step));
    alone.step(batches.back(), gradients.back(), rate_of_step(step));
  }
  std::optional<TierOptions> tiers;
  if (layout.tiers) tiers = {.policy = TierPolicy::kLru, .memory_bytes = 70000, .step_rows = 60};
  expect_all_succeed(layout.ranks, [&](const std::shared_ptr<comm::Group>& group) {
    DistributedTables tables(
        spec,
        place_tables(
            spec, {.ranks = layout.ranks, .sharding = layout.sharding, .packing = layout.packing}),
        group, {}, tiers);
    const int64_t first = kSamples * group->rank() / layout.ranks,
                  count = kSamples * (group->rank() + 1) / layout.ranks - first;
    for (uint64_t step = 1; step <= kSteps; ++step) {
      tables.set_lr(rate_of_step(step));
      step_of_rank(tables, samples_of(batches[step - 1], first, count),
                   gradients[step - 1].narrow(0, first, count));
    }
    for (int64_t t = 0; t < 5; ++t) {
      const TableContents found = tables.read(t);
      if (group->rank() != 0) continue;
      const std::string& name = spec.tables[size_t(t)].name;
      expect_close(found.weight, alone.tables[size_t(t)].weight(0).to(at::kDouble), 1e-6, name);
      const at::Tensor state = alone.tables[size_t(t)].packed_state(0);
      EXPECT_EQ(found.state.defined() && found.state.numel() > 0, state.numel() > 0) << name;
      if (state.numel() > 0)
        expect_close(found.state, state.to(at::kDouble), 1e-6, name + " state");
    }
  });
}

TEST(TableOptimizers, AreThoseOfEachTableAlone) {
  expect_as_alone({.sharding = {}, .ranks = 1});
  expect_as_alone({.sharding = {}, .ranks = 1, .packing = false});
  expect_as_alone({.sharding = {}, .ranks = 1, .tiers = true});
  expect_as_alone({.sharding = Sharding::kRowWise, .ranks = 2});
  expect_as_alone({.sharding = Sharding::kTableWise, .ranks = 3});
  expect_as_alone({.sharding = Sharding::kColumnWise, .ranks = 2});
  expect_as_alone({.sharding = Sharding::kReplicated, .ranks = 2});
  expect_as_alone({.sharding = {}, .ranks = 2, .tiers = true});
}

TEST(TableOptimizers, PacksHaveOne) {
  const PackSpec spec = mixed();
  for (const int64_t ranks : {1, 2}) {
    for (const int64_t groups : {1, 3}) {
      const TablePlacement plan = place_tables(spec, {.ranks = ranks, .groups = groups});
      std::set<int64_t> seen;
      for (const PlacedPack& pack : plan.packs) {
        for (const int64_t t : pack.tables) {
          EXPECT_EQ(optimizer_of(spec, t), optimizer_of(spec, pack.tables.front()));
          EXPECT_TRUE(seen.insert(t).second);
        }
      }
      EXPECT_EQ(seen.size(), 5);
    }
  }
  const TablePlacement plan =
      place_tables(spec, {.ids_per_sample = {1, 1, 1, 1, 3, 3}});  // no pack is split
  ASSERT_EQ(plan.packs.size(), 4);
  EXPECT_EQ(plan.packs[0].tables, (std::vector<int64_t>{0, 2}));
  EXPECT_THAT(print(spec, plan), HasSubstr("adagrad 0.05"));
  EXPECT_THAT(print(spec, plan), HasSubstr("adagrad 0.2"));
  const nlohmann::json packs = to_json(spec, plan)["packs"];
  EXPECT_EQ(packs[1]["optimizer"]["kind"], "adam");
  EXPECT_EQ(packs[1]["optimizer"]["weight_decay"], 0.1);
  EXPECT_EQ(packs[3]["optimizer"].count("eps"), 0);
}

TEST(TableOptimizers, StateIsOfEachTable) {
  const PackSpec spec = mixed();
  std::vector<int64_t> state;
  for (int64_t t = 0; t < 5; ++t) state.push_back(state_per_row(spec, t));
  EXPECT_EQ(state, (std::vector<int64_t>{24, 2 * 16, 16, 16, 0}));
}

TEST(TableOptimizers, OnlyThoseWithAStateOfWholeRowsCannotBeCutByColumns) {
  PackSpec spec = mixed();
  const PlacementOptions columns{.ranks = 2, .sharding = Sharding::kColumnWise};
  EXPECT_EQ(place_tables(spec, columns).tables[0].sharding, Sharding::kColumnWise);
  spec.tables[2].optimizer = OptimizerSpec{.kind = OptimizerKind::kRowWiseAdagrad};
  EXPECT_THAT(user_error([&] { place_tables(spec, columns); }),
              HasSubstr("table \"b\": row-wise Adagrad"));
}

TEST(TableOptimizers, WhatCannotBeIsRefused) {
  EXPECT_THAT(user_error([] { PackedTables tables(mixed()); }),
              HasSubstr("table \"adam\" has an optimizer of its own"));
  PackSpec spec = mixed();
  spec.tables[1].optimizer->lr = -1;
  EXPECT_THAT(user_error([&] { check_spec(spec); }), HasSubstr("lr is -1"));
  spec = mixed();
  spec.optimizer.lr = 0;
  EXPECT_THAT(user_error([&] { rate_of(spec, 1, 0.5); }), HasSubstr("a general one of 0"));
  EXPECT_EQ(rate_of(spec, 0, 0.5), 0.5);
}

}  // namespace
}  // namespace dovetail::embedding::table_optimizers_test
