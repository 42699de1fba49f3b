// ctest-labels: threads
#include "dovetail/embedding/tiers/tiered.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>

#include "tests/embedding/testing.h"

namespace dovetail::embedding::tiered_test {
namespace {

using dovetail::testing::expect_same_bits;
using dovetail::testing::normal;
using dovetail::testing::Threads;
using dovetail::testing::user_error;
using testing::apart_memory;
using ::testing::HasSubstr;
using testing::random_batch;

constexpr OptimizerKind kKinds[] = {OptimizerKind::kSgd,     OptimizerKind::kMomentum,
                                    OptimizerKind::kAdagrad, OptimizerKind::kRowWiseAdagrad,
                                    OptimizerKind::kAdam,    OptimizerKind::kRowWiseAdam,
                                    OptimizerKind::kFtrl};

PackSpec spec_of(OptimizerKind kind, RowDtype row_dtype = RowDtype::kFloat32) {
  return {.tables = {{"large", 3000, 16}, {"middle", 700, 5, Pooling::kMean}, {"small", 20, 33}},
          .feature_table = {0, 1, 0, 2},
          .optimizer = {.kind = kind, .lr = 0.05, .eps = 1e-3, .weight_decay = 0.01},
          .seed = 3,
          .row_dtype = row_dtype};
}

/// Returns the memory for a share of all rows, in addition to the minimum.
int64_t memory_for(const PackSpec& spec, TierOptions options, double share,
                   SlotMemory memory = {}) {
  options.memory_bytes = INT64_MAX / 2;
  const TieredTables all(spec, options, {}, memory);
  return static_cast<int64_t>(share * static_cast<double>(all.memory_bytes()));
}

/// Returns a batch in which a part of the ids is new in each step and a part comes from few rows.
Jagged batch_of(const PackedTables& tables, uint64_t step) {
  Jagged batch = random_batch(tables, 24, step, step % 2 == 0);
  const at::Tensor few =
      at::rand({batch.values.numel()}, at::detail::createCPUGenerator(step)) < 0.7;
  batch.values = at::where(few, batch.values % 20, batch.values);
  return batch;
}

at::Tensor train(PackedTables& tables, const Jagged& ids, const at::Tensor& gradient,
                 int64_t parts) {
  std::vector<PooledGradient> list;
  std::vector<at::Tensor> all;
  for (int64_t m = 0; m < parts; ++m) {
    const int64_t begin = ids.samples * m / parts, end = ids.samples * (m + 1) / parts;
    list.push_back({samples_of(ids, begin, end - begin), gradient.slice(0, begin, end)});
    all.push_back(pool(tables, list.back().batch));
  }
  update(tables, list);
  return at::cat(all);
}

/// Runs 100 steps on tables that are completely in memory. A lookup without an update follows each
/// step.
struct PlainRun {
  explicit PlainRun(OptimizerKind kind, RowDtype row_dtype = RowDtype::kFloat32)
      : tables(spec_of(kind, row_dtype)) {
    for (uint64_t step = 1; step <= 100; ++step) {
      ids.push_back(batch_of(tables, step));
      gradients.push_back(normal({24, tables.columns()}, step));
      pooled.push_back(train(tables, ids.back(), gradients.back(), 1));
      other_ids.push_back(batch_of(tables, 1000 + step));
      other_pooled.push_back(pool(tables, other_ids.back()));
    }
  }

  PackedTables tables;
  std::vector<Jagged> ids, other_ids;
  std::vector<at::Tensor> gradients, pooled, other_pooled;
};

void expect_same_rows(const TieredTables& tiers, const PackedTables& plain) {
  for (int64_t t = 0; t < static_cast<int64_t>(plain.spec().tables.size()); ++t) {
    const int64_t all = plain.spec().tables[static_cast<size_t>(t)].rows;
    const auto [weight, state] = tiers.rows(t, 0, all);
    expect_same_bits(weight, plain.stored(t));
    expect_same_bits(state, plain.packed_state(t));
    const auto [some, some_state] = tiers.rows(t, all / 2, 3);
    expect_same_bits(some, plain.stored(t).narrow(0, all / 2, 3));
  }
}

void expect_like_plain(const PlainRun& plain, const TierOptions& options, int64_t parts,
                       SlotMemory memory = {}) {
  TieredTables tiers(plain.tables.spec(), options, {}, memory);
  EXPECT_LE(tiers.memory_bytes(), options.memory_bytes);
  for (size_t i = 0; i < plain.ids.size(); ++i) {
    const Jagged slots = tiers.begin(plain.ids[i]);
    if (i % 2 == 0) tiers.prefetch(plain.other_ids[i]);
    expect_same_bits(train(tiers.fast(), slots, plain.gradients[i], parts), plain.pooled[i]);
    tiers.end();
    if (i % 3 == 0) {
      expect_same_bits(pool(tiers.fast(), tiers.begin(plain.other_ids[i])), plain.other_pooled[i]);
      tiers.end();
    }
  }
  expect_same_rows(tiers, plain.tables);
}

class TieredTablesTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / fmt::format("dovetail_tiers_{}", getpid());
};

TEST_F(TieredTablesTest, ChangeNoBit) {
  for (const OptimizerKind kind : kKinds) {
    const PlainRun plain(kind);
    for (const TierPolicy policy : {TierPolicy::kHot, TierPolicy::kLru, TierPolicy::kLfu}) {
      for (const double share : {0.3, 0.7, 1.0}) {
        const bool in_file = share < 0.5;
        if (kind != OptimizerKind::kRowWiseAdagrad && !in_file) continue;
        SCOPED_TRACE(fmt::format("optimizer {}, policy {}, share {}", static_cast<int>(kind),
                                 static_cast<int>(policy), share));
        const Threads threads(kind == OptimizerKind::kRowWiseAdagrad && in_file ? 2 : 1);
        TierOptions options = {.policy = policy,
                               .step_rows = 120,
                               .warmup_steps = 10,
                               .refresh_steps = 20,
                               .folder = in_file ? folder_ : ""};
        options.memory_bytes = memory_for(plain.tables.spec(), options, share);
        expect_like_plain(plain, options, in_file ? 3 : 1);
        if (kind != OptimizerKind::kRowWiseAdagrad && kind != OptimizerKind::kAdam) continue;
        options.memory_bytes = memory_for(plain.tables.spec(), options, share, apart_memory());
        expect_like_plain(plain, options, in_file ? 3 : 1, apart_memory());
      }
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_)) << "files of the slow tier have no name";
}

TEST_F(TieredTablesTest, ChangeNoBitOfRowsOfLowPrecision) {
  for (const RowDtype row_dtype : {RowDtype::kBFloat16, RowDtype::kMXFP8}) {
    const PlainRun plain(OptimizerKind::kRowWiseAdagrad, row_dtype);
    for (const TierPolicy policy : {TierPolicy::kHot, TierPolicy::kLru}) {
      SCOPED_TRACE(fmt::format("{}, policy {}", name(row_dtype), static_cast<int>(policy)));
      TierOptions options = {.policy = policy,
                             .step_rows = 120,
                             .warmup_steps = 10,
                             .refresh_steps = 20,
                             .folder = folder_};
      options.memory_bytes = memory_for(plain.tables.spec(), options, 0.4);
      expect_like_plain(plain, options, 3);
      options.memory_bytes = memory_for(plain.tables.spec(), options, 0.4, apart_memory());
      expect_like_plain(plain, options, 3, apart_memory());
    }
  }
}

/// Returns memory for slots that are apart, with as many fast rows as `like` has in each table.
int64_t memory_of_same_rows(const TieredTables& like) {
  TierOptions options = like.options();
  int64_t low = 0, high = 2 * like.memory_bytes();
  const auto fast_rows = [&](int64_t bytes) {
    options.memory_bytes = bytes;
    for (const TableMemory& table : TieredTables::least_memory(like.spec(), options, true))
      bytes -= table.rows;
    return bytes < 0 ? 0 : TieredTables(like.spec(), options, {}, apart_memory()).fast_rows(0);
  };
  while (low + 1 < high) {
    const int64_t middle = low + (high - low) / 2;
    (fast_rows(middle) < like.fast_rows(0) ? low : high) = middle;
  }
  return high;
}

/// Slots, hits and moves of rows are as in RAM. A step has few transfers, whatever the
/// number of tables and rows.
TEST_F(TieredTablesTest, SlotsOnADeviceHaveTheHitsOfSlotsInRam) {
  const PlainRun plain(OptimizerKind::kRowWiseAdagrad);
  for (const TierPolicy policy : {TierPolicy::kHot, TierPolicy::kLru, TierPolicy::kLfu}) {
    SCOPED_TRACE(fmt::format("policy {}", static_cast<int>(policy)));
    TierOptions options = {
        .policy = policy, .step_rows = 120, .warmup_steps = 10, .refresh_steps = 20};
    options.memory_bytes = memory_for(plain.tables.spec(), options, 0.4);
    TieredTables here(plain.tables.spec(), options);
    options.memory_bytes = memory_of_same_rows(here);
    EXPECT_LT(options.memory_bytes, here.memory_bytes()) << "maps and counts are not included";
    TieredTables apart(plain.tables.spec(), options, {}, apart_memory());
    ASSERT_EQ(apart.fast_rows(0), here.fast_rows(0));
    for (size_t i = 0; i < plain.ids.size(); ++i) {
      const SlotTransfers before = apart.transfers();
      const Jagged expected = here.begin(plain.ids[i]), slots = apart.begin(plain.ids[i]);
      ASSERT_TRUE(at::equal(slots.values, expected.values)) << "step " << i;
      train(here.fast(), expected, plain.gradients[i], 1);
      train(apart.fast(), slots, plain.gradients[i], 1);
      here.end();
      apart.end();
      const SlotTransfers after = apart.transfers();
      EXPECT_LE(after.to_slots - before.to_slots, 2);
      EXPECT_LE(after.from_slots - before.from_slots, 2);
      EXPECT_LE(after.waits - before.waits, 2);
    }
    apart.settle();
    const TierCounters a = here.counters(), b = apart.counters();
    EXPECT_EQ(b.hits, a.hits);
    EXPECT_EQ(b.misses, a.misses);
    EXPECT_EQ(b.rows_read, a.rows_read);
    EXPECT_EQ(b.rows_written, a.rows_written);
    EXPECT_EQ(b.counted_hot, a.counted_hot);
    EXPECT_GT(b.rows_read, 300);
    // Records of 16 floats with their state, padded to 16 bytes each. The two other tables fit.
    EXPECT_GT(apart.transfers().bytes_from, b.rows_written * (64 + 16) / 2);
    EXPECT_EQ(here.transfers().to_slots, 0);
  }
}

TEST_F(TieredTablesTest, RecordsOfLowPrecisionAreSmaller) {
  const auto record_bytes = [](RowDtype dtype) {
    return SlowRows({.table = "t", .rows = 8, .dim = 64, .state_width = 1, .dtype = dtype},
                    {1, "t", 0.1f, 64})
        .record_bytes();
  };
  EXPECT_EQ(record_bytes(RowDtype::kFloat32), 4 * 64 + 4);
  EXPECT_EQ(record_bytes(RowDtype::kBFloat16), 2 * 64 + 4);
  EXPECT_EQ(record_bytes(RowDtype::kMXFP8), 64 + 2 + 4);
}

TEST_F(TieredTablesTest, SmallTablesAreFastAsAWholeAndTheOthersShare) {
  TierOptions options = {.memory_bytes = 250000, .step_rows = 50, .folder = folder_};
  const TieredTables tiers(spec_of(OptimizerKind::kRowWiseAdagrad), options);
  EXPECT_EQ(tiers.fast_rows(2), 20);
  EXPECT_EQ(tiers.fast_rows(1), 700);
  EXPECT_GT(tiers.fast_rows(0), 700);
  EXPECT_LT(tiers.fast_rows(0), 3000);
  EXPECT_LE(tiers.memory_bytes(), 250000);
  EXPECT_GT(tiers.memory_bytes(), 249800);
}

TEST_F(TieredTablesTest, CountsSayWhatMoved) {
  const PackSpec spec = {.tables = {{"t", 1000, 4}}, .feature_table = {0}};
  TierOptions options = {
      .policy = TierPolicy::kLru, .memory_bytes = 2500, .step_rows = 32, .folder = folder_};
  TieredTables tiers(spec, options);
  ASSERT_EQ(tiers.fast_rows(0), 16);
  const auto step = [&](int64_t first) {
    const Jagged ids = {at::arange(first, first + 16), at::tensor({0, 16}, at::kLong), {}, 1, 1};
    const Jagged slots = tiers.begin(ids);
    update(tiers.fast(), {{slots, at::ones({1, 4})}});
    tiers.end();
  };
  for (const int64_t first : {0, 0, 100, 0}) step(first);
  // The cache has one set. The second step finds its rows there, the third replaces all rows. The
  // last step has to read the rows that this wrote back.
  const TierCounters counters = tiers.counters();
  EXPECT_EQ(counters.hits, 16);
  EXPECT_EQ(counters.misses, 48);
  EXPECT_EQ(counters.hit_rate(), 0.25);
  EXPECT_EQ(counters.rows_initialized, 32);
  EXPECT_EQ(counters.rows_read, 16);
  EXPECT_EQ(counters.rows_written, 32);
  EXPECT_EQ(counters.bytes_read, 16 * 20);
  EXPECT_EQ(counters.bytes_written, 32 * 20);
}

/// Compares training alone with training and evaluations: places, counts and moves of rows are
/// equal.
TEST_F(TieredTablesTest, AnEvaluationLeavesNoTrace) {
  const PlainRun plain(OptimizerKind::kRowWiseAdagrad);
  for (const TierPolicy policy : {TierPolicy::kHot, TierPolicy::kLru, TierPolicy::kLfu}) {
    for (const double share : {0.3, 0.7, 1.0}) {
      SCOPED_TRACE(fmt::format("policy {}, share {}", static_cast<int>(policy), share));
      const SlotMemory memory = share == 0.3 ? apart_memory() : SlotMemory();
      TierOptions options = {
          .policy = policy, .step_rows = 120, .warmup_steps = 10, .refresh_steps = 20};
      options.memory_bytes = memory_for(plain.tables.spec(), options, share, memory);
      TieredTables alone(plain.tables.spec(), options, {}, memory),
          evaluated(plain.tables.spec(), options, {}, memory);
      const auto look_up = [&](size_t i) {
        const at::Tensor y = at::empty_like(plain.other_pooled[i]);
        evaluated.pool_into(plain.other_ids[i], y);
        expect_same_bits(y, plain.other_pooled[i]);
      };
      for (size_t i = 0; i < plain.ids.size(); ++i) {
        const Jagged expected = alone.begin(plain.ids[i]), slots = evaluated.begin(plain.ids[i]);
        ASSERT_TRUE(at::equal(slots.values, expected.values)) << "step " << i;
        train(alone.fast(), expected, plain.gradients[i], 1);
        train(evaluated.fast(), slots, plain.gradients[i], 1);
        alone.end();
        evaluated.end();
        look_up(i);
        alone.settle();
        const TierCounters a = alone.counters(), b = evaluated.counters();
        ASSERT_EQ(a.hits, b.hits) << "step " << i;
        ASSERT_EQ(a.misses, b.misses);
        ASSERT_EQ(a.rows_written, b.rows_written);
        ASSERT_EQ(a.counted, b.counted);
      }
      expect_same_rows(evaluated, plain.tables);
    }
  }
}

TEST_F(TieredTablesTest, AnEvaluationNeedsNoMorePlacesThanASample) {
  const PackSpec spec = {.tables = {{"t", 1000, 4}}, .feature_table = {0}};
  TieredTables tiers(spec, {.policy = TierPolicy::kLru, .memory_bytes = 2500, .step_rows = 32});
  const PackedTables plain(spec);
  const Jagged ids = {at::arange(200), at::arange(0, 201, 20), {}, 1, 10};
  const at::Tensor y = at::empty({10, 4});
  tiers.pool_into(ids, y);
  expect_same_bits(y, pool(plain, ids));
  const Jagged one = {at::arange(33), at::tensor({0, 33}, at::kLong), {}, 1, 1};
  EXPECT_THAT(user_error([&] { tiers.pool_into(one, at::empty({1, 4})); }),
              HasSubstr("one sample reads more than 32 rows of table \"t\""));
}

TEST_F(TieredTablesTest, RowsCanBeSet) {
  for (const SlotMemory memory : {SlotMemory(), apart_memory()}) {
    PackedTables plain(spec_of(OptimizerKind::kAdam));
    TierOptions options = {.memory_bytes = 300000, .step_rows = 120, .folder = folder_};
    TieredTables first(plain.spec(), options, {}, memory),
        second(plain.spec(), options, {}, memory);
    const auto step = [&](TieredTables& tiers, uint64_t number) {
      const Jagged ids = batch_of(plain, number);
      train(tiers.fast(), tiers.begin(ids), normal({24, plain.columns()}, number), 1);
      tiers.end();
    };
    for (uint64_t number = 1; number <= 5; ++number) step(first, number);
    step(second, 77);  // rows that are already in memory are overwritten
    for (int64_t t = 0; t < 3; ++t) {
      const auto [weight, state] =
          first.rows(t, 0, plain.spec().tables[static_cast<size_t>(t)].rows);
      second.set_rows(t, 0, weight, state);
    }
    second.fast().set_steps(first.fast().steps());
    for (uint64_t number = 6; number <= 9; ++number) {
      step(first, number);
      step(second, number);
    }
    for (int64_t t = 0; t < 3; ++t) {
      const int64_t all = plain.spec().tables[static_cast<size_t>(t)].rows;
      expect_same_bits(first.rows(t, 0, all).first, second.rows(t, 0, all).first);
      expect_same_bits(first.rows(t, 0, all).second, second.rows(t, 0, all).second);
    }
  }
}

TEST_F(TieredTablesTest, TooLittleMemoryIsExplainedByTheLargestTables) {
  std::vector<TableMemory> least;
  for (int64_t i = 0; i < 7; ++i)
    least.push_back({.table = fmt::format("t{}", i), .keys = i == 3 ? 50 : 0, .rows = 100 + i});
  EXPECT_EQ(memory_left(771, least), 0);
  EXPECT_EQ(memory_left(800, least), 29);
  EXPECT_THAT(user_error([&] { memory_left(770, least); }),
              ::testing::AllOf(HasSubstr("memory_bytes is 770, but at least 771 are needed: "),
                               HasSubstr(": table \"t3\" 50 for its ids and 103 for rows, "),
                               HasSubstr(", table \"t6\" 106 for rows, table \"t5\" 105"),
                               HasSubstr(", table \"t2\" 102 for rows, 2 others")));
}

TEST_F(TieredTablesTest, WhatCannotBeIsRefused) {
  const PackSpec spec = spec_of(OptimizerKind::kSgd);
  const auto error = [&](const TierOptions& options) {
    return user_error([&] { TieredTables(spec, options); });
  };
  EXPECT_THAT(error({.memory_bytes = 1000, .step_rows = 10}),
              HasSubstr("memory_bytes is 1000, but at least"));
  EXPECT_THAT(error({.memory_bytes = 1 << 20}), HasSubstr("step_rows"));
  EXPECT_THAT(error({.memory_bytes = 1 << 20, .step_rows = 10, .warmup_steps = 0}),
              HasSubstr("warmup_steps"));
  EXPECT_THAT(error({.memory_bytes = 1 << 20, .step_rows = 10, .folder = "/nowhere"}),
              HasSubstr("/nowhere"));
  TieredTables tiers(spec, {.memory_bytes = 1 << 20, .step_rows = 10});
  EXPECT_THAT(user_error([&] { tiers.end(); }), HasSubstr("call begin first"));
  const Jagged none = {testing::ids_from({}), testing::ids_from({0}), {}, 4, 0};
  tiers.begin(none);
  EXPECT_THAT(user_error([&] { tiers.begin(none); }), HasSubstr("call end first"));
  EXPECT_THAT(user_error([&] { tiers.rows(0, 0, 1); }), HasSubstr("call end first"));
  tiers.end();
  EXPECT_THAT(user_error([&] { tiers.rows(0, 2999, 2); }), HasSubstr("no rows 2999 to 3001"));
  const Jagged outside = {testing::ids_from({3000}), testing::ids_from({0, 1, 1, 1, 1}), {}, 4, 1};
  EXPECT_THAT(user_error([&] { tiers.begin(outside); }), HasSubstr("id 3000 of feature 0"));
}

TEST_F(TieredTablesTest, AFullDiskIsAnError) {
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  SlowRows rows({.table = "t", .rows = 100, .dim = 4, .state_width = 1, .folder = folder_},
                {1, "t", 0.1f, 4});
  const rlimit small = {1000, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const float w[4] = {}, s[1] = {};
  rows.write(3, w, s);
  const std::string error = user_error([&] { rows.write(90, w, s); });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(error, HasSubstr("row 90 of table \"t\" cannot be written"));
}

}  // namespace
}  // namespace dovetail::embedding::tiered_test
