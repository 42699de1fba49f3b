// ctest-labels: threads
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>

#include "dovetail/base/error.h"
#include "dovetail/base/rng.h"
#include "dovetail/embedding/ranks/distributed.h"
#include "tests/comm/ranks.h"
#include "tests/embedding/testing.h"

namespace dovetail::embedding::distributed_keys_test {
namespace {

using dovetail::testing::expect_close;
using dovetail::testing::expect_same_bits;
using dovetail::testing::normal;
using dovetail::testing::user_error;
using testing::apart_memory;
using ::testing::HasSubstr;
using testing::ids_from;

constexpr int64_t kSamples = 12, kSteps = 9;

struct Layout {
  Sharding sharding;
  int ranks;
  HashedOptions options = {};
  int64_t micro_batches = 1;
  Pooling pooling = Pooling::kSum;
  bool weighted = false;
  RowDtype row_dtype = RowDtype::kFloat32;
  int64_t memory_bytes = 0;  ///< 0: all rows are in memory
  Transfer transfer = Transfer::kBags;
  int64_t items = 120;  ///< maximum rows of the second table
  SlotMemory memory = {};
};

PackSpec spec_of(const Layout& layout) {
  return {.tables =
              {{.name = "users", .rows = 200, .dim = 8, .pooling = layout.pooling, .hashed = true},
               {.name = "items",
                .rows = layout.items,
                .dim = 5,
                .pooling = layout.pooling,
                .hashed = true}},
          .feature_table = {1, 0, 1},
          .optimizer = {.kind = OptimizerKind::kAdagrad, .lr = 0.05, .eps = 1e-3},
          .seed = 3,
          .row_dtype = layout.row_dtype};
}

/// Returns bags of 0 to 3 keys with all 64 bits. There are 40 keys for each feature and step; some
/// of them occur in other steps, too.
Jagged batch_of(int64_t step, bool weighted) {
  std::vector<int64_t> values, offsets = {0};
  for (uint64_t f = 0; f < 3; ++f) {
    for (uint64_t b = 0; b < kSamples; ++b) {
      const uint64_t place = (static_cast<uint64_t>(step) * 3 + f) * kSamples + b;
      for (uint64_t i = 0; i < random_below(1, RandomStream::kTest, place, 4); ++i) {
        const uint64_t key = random_below(2, RandomStream::kTest, 4 * place + i, 40) +
                             static_cast<uint64_t>(step) / 3;
        values.push_back(static_cast<int64_t>(mix_seed(key, f == 1 ? 1 : 0)));
      }
      offsets.push_back(std::ssize(values));
    }
  }
  return {.values = ids_from(values),
          .offsets = ids_from(offsets),
          .weights =
              weighted ? normal({std::ssize(values)}, static_cast<uint64_t>(step)) : at::Tensor(),
          .features = 3,
          .samples = kSamples};
}

struct Trained {
  std::vector<at::Tensor> pooled;
  std::vector<KeyedRows> tables;
  HashedCounters counters;
};

/// Trains the whole batch in one HashedTables.
Trained train_at_once(const Layout& layout) {
  HashedTables tables(spec_of(layout), layout.options);
  Trained trained;
  for (int64_t step = 1; step <= kSteps; ++step) {
    const Jagged slots = tables.begin(batch_of(step, layout.weighted));
    trained.pooled.push_back(pool(tables.packed(), slots));
    update(tables.packed(), {{slots, normal({kSamples, 18}, 10 + static_cast<uint64_t>(step))}});
    tables.end();
  }
  for (int64_t t = 0; t < 2; ++t) trained.tables.push_back(tables.contents(t));
  trained.counters = tables.counters();
  return trained;
}

at::Tensor step_on_rank(DistributedTables& tables, const comm::Group& group, const Layout& layout,
                        int64_t number) {
  const int64_t first = kSamples * group.rank() / layout.ranks,
                count = kSamples * (group.rank() + 1) / layout.ranks - first,
                most = (kSamples + layout.ranks - 1) / layout.ranks,
                size = (most + layout.micro_batches - 1) / layout.micro_batches;
  const at::Tensor gradient =
      normal({kSamples, 18}, 10 + static_cast<uint64_t>(number)).narrow(0, first, count);
  std::vector<at::Tensor> pooled;
  TableStep step = tables.start(samples_of(batch_of(number, layout.weighted), first, count), size,
                                layout.micro_batches);
  tables.begin(step);
  tables.gather(step, 0);
  for (int64_t m = 0; m < layout.micro_batches; ++m) {
    pooled.push_back(tables.wait(step, m));
    if (m + 1 < layout.micro_batches) tables.gather(step, m + 1);
    const int64_t begin = std::min(m * size, count);
    tables.add_gradient(step, m, gradient.narrow(0, begin, std::min(size, count - begin)));
  }
  tables.update(step);
  return at::cat(pooled);
}

/// Trains on the ranks of a layout. At step `moved` the tables are saved and loaded into new ones
/// with layout `then`.
Trained train_distributed(const Layout& layout, int64_t moved = kSteps,
                          const Layout* then = nullptr) {
  const PackSpec spec = spec_of(layout);
  Trained trained;
  trained.pooled.resize(static_cast<size_t>(kSteps));
  std::vector<KeyedRows> saved(2);
  const auto train = [&](const Layout& now, int64_t from, int64_t to) {
    std::vector<std::vector<at::Tensor>> pooled(
        static_cast<size_t>(to - from), std::vector<at::Tensor>(static_cast<size_t>(now.ranks)));
    std::atomic<int64_t> rows_read = 0;
    expect_all_succeed(now.ranks, [&](const std::shared_ptr<comm::Group>& group) {
      std::optional<TierOptions> tiers;
      if (now.memory_bytes > 0)
        tiers = {.policy = TierPolicy::kLfu, .memory_bytes = now.memory_bytes, .step_rows = 30};
      DistributedTables tables(
          spec,
          place_tables(spec,
                       {.ranks = now.ranks, .sharding = now.sharding, .transfer = now.transfer}),
          group, {}, tiers, now.options, Changes::kUntracked, now.memory);
      for (int64_t t = 0; t < 2 && from > 0; ++t)
        tables.write_keys(t, group->rank() == 0 ? saved[static_cast<size_t>(t)] : KeyedRows());
      tables.set_steps(from, from);
      for (int64_t step = from + 1; step <= to; ++step) {
        // A lookup between steps admits no key and counts nothing.
        tables.lookup(batch_of(100 + step, false));
        pooled[static_cast<size_t>(step - from - 1)][static_cast<size_t>(group->rank())] =
            step_on_rank(tables, *group, now, step);
      }
      for (int64_t t = 0; t < 2; ++t) {
        const KeyedRows rows = tables.read_keys(t);
        EXPECT_EQ(rows.weight.defined(), group->rank() == 0);
        if (group->rank() == 0) saved[static_cast<size_t>(t)] = rows;
      }
      if (now.ranks == 1) trained.counters = *tables.hashed_counters();
      if (const auto tier_counters = tables.tier_counters()) rows_read += tier_counters->rows_read;
    });
    EXPECT_EQ(rows_read > 0, now.memory_bytes > 0);
    for (int64_t step = from; step < to; ++step)
      trained.pooled[static_cast<size_t>(step)] = at::cat(pooled[static_cast<size_t>(step - from)]);
  };
  train(layout, 0, moved);
  if (then != nullptr) train(*then, moved, kSteps);
  trained.tables = saved;
  return trained;
}

void expect_same(const Trained& found, const Trained& expected, bool same_bits) {
  const auto compare = [&](const at::Tensor& a, const at::Tensor& b, const char* what) {
    if (a.scalar_type() != at::kFloat) {
      EXPECT_TRUE(at::equal(a, b)) << what;
    } else if (same_bits) {
      expect_same_bits(a, b, what);
    } else {
      expect_close(a, b.to(at::kDouble), 1e-6, what);
    }
  };
  for (size_t i = 0; i < found.pooled.size(); ++i)
    compare(found.pooled[i], expected.pooled[i], "pooled");
  for (size_t t = 0; t < 2; ++t) {
    const KeyedRows &a = found.tables[t], &b = expected.tables[t];
    EXPECT_GT(b.known.keys.numel(), 10);
    const std::pair<const KeyCounts*, const KeyCounts*> counts[] = {{&a.known, &b.known},
                                                                    {&a.candidates, &b.candidates}};
    for (const auto& [x, y] : counts) {
      EXPECT_TRUE(at::equal(x->keys, y->keys)) << "keys of table " << t;
      EXPECT_TRUE(at::equal(x->occurrences, y->occurrences));
      EXPECT_TRUE(at::equal(x->last_step, y->last_step));
    }
    compare(a.weight, b.weight, "weight");
    compare(a.state, b.state, "state");
  }
}

const HashedOptions kCounted = {.admission = Admission::kCount,
                                .min_count = 3,
                                .max_candidates = 1000,
                                .eviction = Eviction::kAge,
                                .evict_steps = 2,
                                .max_age = 3};
const HashedOptions kAged = {.eviction = Eviction::kAge, .evict_steps = 2, .max_age = 3};
const HashedOptions kRarest = {.admission = Admission::kProbability,
                               .probability = 0.6,
                               .eviction = Eviction::kFrequency,
                               .evict_steps = 4,
                               .keep_rows = 25};

TEST(DistributedKeys, AreOneTableOfAllKeys) {
  for (const Layout& layout :
       {Layout{
            .sharding = Sharding::kTableWise, .ranks = 1, .options = kRarest, .micro_batches = 3},
        Layout{.sharding = Sharding::kTableWise, .ranks = 2, .options = kRarest, .weighted = true},
        Layout{
            .sharding = Sharding::kTableWise, .ranks = 3, .options = kCounted, .micro_batches = 2},
        Layout{.sharding = Sharding::kReplicated,
               .ranks = 3,
               .options = kRarest,
               .pooling = Pooling::kMean},
        Layout{.sharding = Sharding::kRowWise, .ranks = 2, .options = kCounted, .micro_batches = 2},
        Layout{.sharding = Sharding::kRowWise,
               .ranks = 4,
               .pooling = Pooling::kMean,
               .weighted = true},
        Layout{.sharding = Sharding::kTableWise,
               .ranks = 2,
               .options = kCounted,
               .row_dtype = RowDtype::kBFloat16},
        Layout{.sharding = Sharding::kRowWise,
               .ranks = 3,
               .micro_batches = 2,
               .row_dtype = RowDtype::kMXFP8},
        Layout{.sharding = Sharding::kTableWise,
               .ranks = 1,
               .options = kRarest,
               .micro_batches = 3,
               .memory_bytes = 34000},
        Layout{.sharding = Sharding::kTableWise,
               .ranks = 2,
               .options = kRarest,
               .weighted = true,
               .row_dtype = RowDtype::kBFloat16,
               .memory_bytes = 17000},
        Layout{.sharding = Sharding::kRowWise,
               .ranks = 2,
               .options = kAged,
               .pooling = Pooling::kMean,
               .memory_bytes = 17800},
        Layout{.sharding = Sharding::kTableWise,
               .ranks = 1,
               .options = kRarest,
               .micro_batches = 3,
               .memory = apart_memory()},
        Layout{.sharding = Sharding::kTableWise,
               .ranks = 2,
               .options = kRarest,
               .weighted = true,
               .row_dtype = RowDtype::kBFloat16,
               .memory_bytes = 3000,
               .memory = apart_memory()},
        Layout{.sharding = Sharding::kRowWise,
               .ranks = 2,
               .options = kAged,
               .pooling = Pooling::kMean,
               .memory_bytes = 5200,
               .memory = apart_memory()}}) {
    SCOPED_TRACE(fmt::format("{} on {} ranks", name(layout.sharding), layout.ranks));
    const Trained expected = train_at_once(layout), found = train_distributed(layout);
    expect_same(found, expected, layout.sharding != Sharding::kRowWise);
    if (layout.ranks > 1) continue;
    EXPECT_EQ(found.counters.admitted, expected.counters.admitted);
    EXPECT_EQ(found.counters.not_admitted, expected.counters.not_admitted);
    EXPECT_EQ(found.counters.evicted, expected.counters.evicted);
    EXPECT_GT(found.counters.evicted, 0);
  }
}

TEST(DistributedKeys, OfSingleRowsAreAdmittedAndEvictedAsOnOneRank) {
  constexpr Transfer kRows = Transfer::kRows;
  for (const Layout& layout : {Layout{.sharding = Sharding::kTableWise,
                                      .ranks = 2,
                                      .options = kRarest,
                                      .weighted = true,
                                      .transfer = kRows},
                               Layout{.sharding = Sharding::kTableWise,
                                      .ranks = 3,
                                      .options = kCounted,
                                      .micro_batches = 2,
                                      .transfer = kRows},
                               Layout{.sharding = Sharding::kReplicated,
                                      .ranks = 3,
                                      .options = kRarest,
                                      .pooling = Pooling::kMean,
                                      .transfer = kRows},
                               Layout{.sharding = Sharding::kRowWise,
                                      .ranks = 2,
                                      .options = kCounted,
                                      .pooling = Pooling::kMean,
                                      .transfer = kRows},
                               Layout{.sharding = Sharding::kTableWise,
                                      .ranks = 2,
                                      .options = kRarest,
                                      .memory_bytes = 17000,
                                      .transfer = kRows},
                               // The keys that occur first get the last rows.
                               Layout{.sharding = Sharding::kTableWise,
                                      .ranks = 3,
                                      .micro_batches = 4,
                                      .transfer = kRows,
                                      .items = 17}}) {
    SCOPED_TRACE(
        fmt::format("{} on {} ranks, {} items", name(layout.sharding), layout.ranks, layout.items));
    expect_same(train_distributed(layout), train_at_once(layout), false);
  }
}

TEST(DistributedKeys, OfSingleRowsAreLookedUpWithoutATrace) {
  for (const int64_t memory_bytes : {0, 17000}) {
    SCOPED_TRACE(memory_bytes);
    std::vector<at::Tensor> found[2];
    for (const Transfer transfer : {Transfer::kBags, Transfer::kRows}) {
      const Layout layout = {.sharding = Sharding::kTableWise,
                             .ranks = 2,
                             .options = kRarest,
                             .memory_bytes = memory_bytes,
                             .transfer = transfer};
      std::vector<at::Tensor>& pooled = found[transfer == Transfer::kRows ? 1 : 0];
      pooled.resize(4);
      const PackSpec spec = spec_of(layout);
      expect_all_succeed(2, [&](const std::shared_ptr<comm::Group>& group) {
        std::optional<TierOptions> tiers;
        if (memory_bytes > 0)
          tiers = {.policy = TierPolicy::kLfu, .memory_bytes = memory_bytes, .step_rows = 30};
        DistributedTables tables(
            spec,
            place_tables(spec, {.ranks = 2, .sharding = layout.sharding, .transfer = transfer}),
            group, {}, tiers, layout.options);
        for (int64_t step = 0; step < 3; ++step) step_on_rank(tables, *group, layout, step);
        const HashedCounters before = *tables.hashed_counters();
        // Most keys of step 7 have no row.
        for (const int64_t step : {2, 7})
          pooled[static_cast<size_t>(2 * group->rank() + step / 7)] =
              tables.lookup(batch_of(step, layout.weighted));
        EXPECT_EQ(tables.hashed_counters()->found, before.found);
        EXPECT_EQ(tables.hashed_counters()->admitted, before.admitted);
      });
    }
    for (size_t i = 0; i < 4; ++i)
      expect_close(found[1][i], found[0][i].to(at::kDouble), 1e-6, "looked up");
  }
}

TEST(DistributedKeys, GoOnAtAnotherNumberOfRanks) {
  const Layout rows = {.sharding = Sharding::kRowWise, .ranks = 3, .options = kCounted},
               table = {.sharding = Sharding::kTableWise, .ranks = 2, .options = kCounted},
               alone = {.sharding = Sharding::kTableWise, .ranks = 1, .options = kCounted};
  expect_same(train_distributed(table, 5, &alone), train_at_once(alone), true);
  expect_same(train_distributed(alone, 4, &table), train_at_once(alone), true);
  expect_same(train_distributed(rows, 5, &table), train_at_once(alone), false);
  expect_same(train_distributed(alone, 4, &rows), train_at_once(alone), false);
}

TEST(DistributedKeys, MemoryIsForKeysFirst) {
  PackSpec spec = spec_of({.sharding = Sharding::kTableWise, .ranks = 1});
  spec.tables.push_back({.name = "fixed", .rows = 2000, .dim = 8});
  spec.feature_table.push_back(2);
  expect_all_succeed(1, [&](const std::shared_ptr<comm::Group>& group) {
    const auto tables_of = [&](int64_t memory_bytes) {
      return DistributedTables(spec, place_tables(spec, {.ranks = 1}), group, {},
                               TierOptions{.memory_bytes = memory_bytes, .step_rows = 20});
    };
    EXPECT_LE(tables_of(60000).hashed_counters()->bytes, 60000);
    EXPECT_THAT(user_error([&] { tables_of(15000); }),
                ::testing::AllOf(HasSubstr("memory_bytes is 15000"),
                                 HasSubstr("table \"users\" 12"), HasSubstr("table \"items\" 7")));
    EXPECT_THAT(user_error([&] { tables_of(22000); }), HasSubstr("table \"fixed\""));
  });
}

TEST(DistributedKeys, ARankMayHaveItsShareOfTheRows) {
  const Layout layout = {.sharding = Sharding::kRowWise, .ranks = 2};
  PackSpec spec = spec_of(layout);
  spec.tables[0].rows = 7;
  expect_all_succeed(2, [&](const std::shared_ptr<comm::Group>& group) {
    DistributedTables tables(spec, place_tables(spec, {.ranks = 2, .sharding = Sharding::kRowWise}),
                             group);
    for (int64_t step = 1; step <= 3; ++step) step_on_rank(tables, *group, layout, step);
    EXPECT_GT(tables.hashed_counters()->refused_full, 0);
    const KeyedRows rows = tables.read_keys(0);
    if (group->rank() != 0) return;
    EXPECT_EQ(rows.known.keys.numel(), 8);  // 4 each
  });
  EXPECT_THAT(
      user_error([&] { place_tables(spec, {.ranks = 2, .sharding = Sharding::kColumnWise}); }),
      HasSubstr("\"users\", which has no fixed vocabulary"));
}

TEST(DistributedKeys, ARankMayHaveItsShareOfTheBytes) {
  PackSpec spec = spec_of({.sharding = Sharding::kRowWise, .ranks = 2});
  for (TableSpec& table : spec.tables) {
    table.rows = 100000;
    table.max_bytes = 6000;
  }
  const Jagged keys = {at::arange(3000), at::arange(0, 3001, 250), {}, 3, 4};
  std::vector<int64_t> rows;
  for (const int ranks : {1, 2}) {
    int64_t found = 0;
    expect_all_succeed(ranks, [&](const std::shared_ptr<comm::Group>& group) {
      DistributedTables tables(
          spec, place_tables(spec, {.ranks = ranks, .sharding = Sharding::kRowWise}), group);
      TableStep step = tables.start(keys, 4, 1);
      tables.begin(step);
      tables.gather(step, 0);
      tables.wait(step, 0);
      tables.add_gradient(step, 0, at::zeros({4, 18}));
      tables.update(step);
      const HashedCounters counters = *tables.hashed_counters();
      EXPECT_LE(counters.bytes, 2 * 6000 / ranks);
      EXPECT_GT(counters.refused_memory, 0);
      if (group->rank() == 0) found = counters.rows;
    });
    rows.push_back(found);
  }
  EXPECT_LE(rows[1], rows[0] / 2);
  EXPECT_GT(rows[1], rows[0] / 3);  // each part has a map and a row of zeros of its own
}

TEST(DistributedKeys, ShareNoPackWithRowsOfAVocabulary) {
  PackSpec spec = spec_of({.sharding = Sharding::kTableWise, .ranks = 2});
  spec.tables[1].hashed = false;
  const TablePlacement plan = place_tables(spec, {.ranks = 2, .sharding = Sharding::kTableWise});
  ASSERT_EQ(plan.packs.size(), 2);
  EXPECT_TRUE(plan.packs[0].hashed);
  EXPECT_FALSE(plan.packs[1].hashed);
}

}  // namespace
}  // namespace dovetail::embedding::distributed_keys_test
