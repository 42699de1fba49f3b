// ctest-labels: threads
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "dovetail/base/rng.h"
#include "dovetail/embedding/hashed/hashed.h"
#include "dovetail/embedding/pack/lookup.h"
#include "tests/base/temporary_folder.h"
#include "tests/embedding/testing.h"

namespace dovetail::embedding::hashed_tiers_test {
namespace {

using dovetail::testing::expect_same_bits;
using dovetail::testing::normal;
using dovetail::testing::Threads;
using dovetail::testing::user_error;
using testing::apart_memory;
using ::testing::HasSubstr;
using testing::ids_from;

constexpr int64_t kSamples = 20;

PackSpec spec_of(OptimizerKind kind, RowDtype row_dtype = RowDtype::kFloat32) {
  return {.tables = {{"users", 700, 32}, {"items", 300, 5, Pooling::kMean}, {"few", 12, 9}},
          .feature_table = {0, 1, 0, 2},
          .optimizer = {.kind = kind, .lr = 0.05, .eps = 1e-3, .weight_decay = 0.01},
          .seed = 3,
          .row_dtype = row_dtype};
}

/// Returns bags of 0 to 3 keys: few keys often, drifting over time, and many seldom.
Jagged batch_of(int64_t step) {
  std::vector<int64_t> values, offsets = {0};
  for (int64_t f = 0; f < 4; ++f) {
    for (int64_t b = 0; b < kSamples; ++b) {
      const auto place = static_cast<uint64_t>((step * 4 + f) * kSamples + b);
      for (uint64_t i = 0; i < random_below(1, RandomStream::kTest, place, 4); ++i) {
        const double u = random_uniform(2, RandomStream::kTest, 4 * place + i);
        const int64_t key = static_cast<int64_t>(900 * u * u * u) + step / 5 * 9;
        values.push_back((f == 3 ? key % 20 : key) * 1000003 - 7);
      }
      offsets.push_back(std::ssize(values));
    }
  }
  return {.values = ids_from(values),
          .offsets = ids_from(offsets),
          .weights = step % 2 == 0 ? normal({std::ssize(values)}, static_cast<uint64_t>(step))
                                   : at::Tensor(),
          .features = 4,
          .samples = kSamples};
}

at::Tensor look_up(const HashedTables& tables, const Jagged& keys) {
  at::Tensor y = at::empty({keys.samples, tables.packed().columns()});
  tables.pool_into(keys, y);
  return y;
}

/// Every fifth step has no update: its keys are admitted and counted, but their rows stay.
at::Tensor train(HashedTables& tables, int64_t step) {
  const Jagged slots = tables.begin(batch_of(step));
  tables.prefetch(batch_of(step + 1));
  at::Tensor y = pool(tables.packed(), slots);
  if (step % 5 != 0)
    update(tables.packed(),
           {{slots, normal({kSamples, tables.packed().columns()}, static_cast<uint64_t>(step))}});
  tables.end();
  return y;
}

void expect_same_contents(const HashedTables& found, const HashedTables& expected, RowSet which) {
  for (int64_t t = 0; t < 3; ++t) {
    const KeyedRows a = found.contents(t, which), b = expected.contents(t, which);
    const std::pair<const KeyCounts*, const KeyCounts*> counts[] = {{&a.known, &b.known},
                                                                    {&a.candidates, &b.candidates}};
    for (const auto& [x, y] : counts) {
      EXPECT_TRUE(at::equal(x->keys, y->keys));
      EXPECT_TRUE(at::equal(x->occurrences, y->occurrences));
      EXPECT_TRUE(at::equal(x->last_step, y->last_step));
      EXPECT_TRUE(at::equal(x->removed, y->removed));
    }
    EXPECT_TRUE(at::equal(a.weight, b.weight)) << "table " << t;
    expect_same_bits(a.state, b.state);
  }
}

/// Returns memory for the keys and for a share of the rows in memory.
int64_t memory_for(const PackSpec& spec, const HashedOptions& rules, TierOptions tiers,
                   double share, SlotMemory memory = {}) {
  int64_t keys = 0;
  for (const TableMemory& table :
       HashedTables::least_memory(spec, rules, Changes::kTracked, tiers, memory.apart))
    keys += table.keys;
  tiers.memory_bytes = INT64_MAX / 2;
  const HashedTables all(spec, rules, Changes::kTracked, tiers, memory);
  return keys + static_cast<int64_t>(share * static_cast<double>(all.tiers()->memory_bytes()));
}

const HashedOptions kAged = {.eviction = Eviction::kAge, .evict_steps = 3, .max_age = 6};
const HashedOptions kCounted = {.admission = Admission::kCount,
                                .min_count = 2,
                                .max_candidates = 200,
                                .eviction = Eviction::kAge,
                                .evict_steps = 3,
                                .max_age = 6};
const HashedOptions kRarest = {.eviction = Eviction::kFrequency, .evict_steps = 4, .keep_rows = 90};

class HashedTiers : public ::testing::Test {
 protected:
  /// Compares 60 steps with the same steps without tiers. Each has an evaluation, and some a save.
  void expect_like_memory(const PackSpec& spec, const HashedOptions& rules, TierOptions tiers,
                          double share, SlotMemory memory = {}) {
    tiers.step_rows = 70;
    tiers.warmup_steps = 10;
    tiers.refresh_steps = 20;
    tiers.memory_bytes = memory_for(spec, rules, tiers, share, memory);
    HashedTables plain(spec, rules, Changes::kTracked);
    HashedTables ours(spec, rules, Changes::kTracked, tiers, memory);
    std::optional<HashedTables> loaded;
    const int64_t columns = plain.packed().columns();
    for (int64_t step = 1; step <= 60; ++step) {
      SCOPED_TRACE(fmt::format("step {}", step));
      expect_same_bits(train(ours, step), train(plain, step));
      if (loaded) train(*loaded, step);
      const auto before = ours.tiers()->counters();
      expect_same_bits(look_up(ours, batch_of(1000 + step)), look_up(plain, batch_of(1000 + step)));
      EXPECT_EQ(ours.tiers()->counters().hits, before.hits);
      EXPECT_EQ(ours.tiers()->counters().misses, before.misses);
      EXPECT_LE(memory.apart ? ours.tiers()->memory_bytes() : ours.memory_bytes(),
                tiers.memory_bytes);
      if (step % 7 == 0) {
        expect_same_contents(ours, plain, RowSet::kChanged);
        ours.forget_changes();
        plain.forget_changes();
      }
      if (step != 30) continue;
      loaded.emplace(spec, rules, Changes::kTracked, tiers, memory);
      train(*loaded, 3000);  // other rows, which leave again
      for (int64_t t = 0; t < 3; ++t) {
        loaded->clear(t);
        loaded->add(t, plain.contents(t));
      }
      loaded->set_steps(plain.steps());
      loaded->packed().set_steps(plain.packed().steps());
    }
    ASSERT_EQ(columns, ours.packed().columns());
    expect_same_contents(ours, plain, RowSet::kAll);
    for (HashedTables* tables : {&ours, &plain, &*loaded}) tables->forget_changes();
    expect_same_contents(*loaded, plain, RowSet::kAll);
    const HashedCounters a = ours.counters(), b = plain.counters();
    EXPECT_EQ(a.rows, b.rows);
    EXPECT_EQ(a.found, b.found);
    EXPECT_EQ(a.admitted, b.admitted);
    EXPECT_EQ(a.evicted, b.evicted);
    if (rules.eviction != Eviction::kNone) {
      EXPECT_GT(a.evicted, 100);
    }
    const TierCounters moved = ours.tiers()->counters();
    if (share < 0.5) {
      EXPECT_GT(moved.rows_read, 20);
      EXPECT_GT(moved.rows_written, 50);
    }
    EXPECT_GT(moved.hits, 100);
  }

  dovetail::test::TemporaryFolder folder_;
};

TEST_F(HashedTiers, ChangeNoBit) {
  for (const HashedOptions& rules : {HashedOptions(), kAged, kCounted, kRarest}) {
    for (const TierPolicy policy : {TierPolicy::kHot, TierPolicy::kLru, TierPolicy::kLfu}) {
      for (const double share : {0.3, 1.0}) {
        if (share == 1.0 && policy != TierPolicy::kHot) continue;
        SCOPED_TRACE(fmt::format("eviction {}, policy {}, share {}",
                                 static_cast<int>(rules.eviction), static_cast<int>(policy),
                                 share));
        const Threads threads(policy == TierPolicy::kHot ? 2 : 1);
        expect_like_memory(
            spec_of(OptimizerKind::kAdam), rules,
            {.policy = policy, .folder = share < 0.5 ? folder_.path() : std::filesystem::path()},
            share);
        if (policy != TierPolicy::kLru)
          expect_like_memory(spec_of(OptimizerKind::kAdam), rules, {.policy = policy}, share,
                             apart_memory());
      }
    }
  }
}

TEST_F(HashedTiers, ChangeNoBitOfRowsOfLowPrecision) {
  for (const RowDtype row_dtype : {RowDtype::kBFloat16, RowDtype::kMXFP8})
    for (const TierPolicy policy : {TierPolicy::kHot, TierPolicy::kLru})
      for (const SlotMemory memory : {SlotMemory(), apart_memory()})
        expect_like_memory(spec_of(OptimizerKind::kRowWiseAdagrad, row_dtype), kAged,
                           {.policy = policy, .folder = folder_.path()}, 0.4, memory);
}

/// An evicted key that returns has the value of InitialRows (table.h) and no state, whatever row it
/// gets.
TEST_F(HashedTiers, ARowThatComesAgainBeginsAnew) {
  const PackSpec spec = {.tables = {{"t", 100, 6}},
                         .feature_table = {0},
                         .optimizer = {.kind = OptimizerKind::kAdagrad, .lr = 0.5},
                         .seed = 9};
  const InitialRows initial(9, "t", 0.1f, 6);
  const HashedOptions rules = {.eviction = Eviction::kAge, .evict_steps = 1, .max_age = 1};
  TierOptions tiers = {.policy = TierPolicy::kLru, .step_rows = 4, .folder = folder_.path()};
  tiers.memory_bytes = memory_for(spec, rules, tiers, 0.4);
  HashedTables tables(spec, rules, Changes::kUntracked, tiers);
  for (int64_t step = 0; step < 40; ++step) {
    const std::vector<int64_t> keys = {step % 4, 100 + step % 7, 200 + step % 5};
    const KeyedRows before = tables.contents(0);
    const Jagged slots = tables.begin({ids_from(keys), at::arange(4), {}, 1, 3});
    const at::Tensor y = pool(tables.packed(), slots);
    for (size_t i = 0; i < keys.size(); ++i) {
      if ((before.known.keys == keys[i]).any().item<bool>()) continue;
      at::Tensor row = at::empty({6});
      initial.fill(static_cast<uint64_t>(keys[i]), row.mutable_data_ptr<float>());
      expect_same_bits(y[static_cast<int64_t>(i)], row);
    }
    update(tables.packed(), {{slots, at::ones({3, 6})}});
    tables.end();
  }
  EXPECT_GT(tables.counters().evicted, 50);
}

TEST_F(HashedTiers, TheMemoryCoversKeysAndRows) {
  const PackSpec spec = {.tables = {{"users", 100000, 64}, {"items", 2000, 64}},
                         .feature_table = {0, 1},
                         .optimizer = {.kind = OptimizerKind::kAdam}};
  // A tenth of the bytes of all rows and their moments.
  TierOptions tiers = {.memory_bytes = 102000 * 3 * 64 * 4 / 10, .step_rows = 300};
  HashedTables tables(spec, {}, Changes::kUntracked, tiers);
  const int64_t empty = tables.memory_bytes();
  for (int64_t step = 0; step < 40; ++step) {
    const Jagged slots = tables.begin({at::arange(500) + 250 * step, at::arange(501), {}, 2, 250});
    update(tables.packed(), {{slots, at::ones({250, 128})}});
    tables.end();
    EXPECT_LE(tables.memory_bytes(), tiers.memory_bytes);
  }
  EXPECT_EQ(tables.counters().rows, 12000);
  // Ids without a row are no accesses.
  EXPECT_EQ(tables.tiers()->counters().hits + tables.tiers()->counters().misses, 12000);
  EXPECT_EQ(tables.counters().bytes, tables.memory_bytes());
  EXPECT_GT(tables.memory_bytes(), empty + 10000 * 32);  // keys come as they are admitted
  EXPECT_GT(tables.tiers()->fast_rows(0), 100);
  const auto error = [&](int64_t bytes) {
    tiers.memory_bytes = bytes;
    return user_error([&] { HashedTables(spec, {}, Changes::kUntracked, tiers); });
  };
  // A key takes 24 bytes in the map, 32 for itself and its counts, and 4 in the list of free rows.
  EXPECT_THAT(error(1000000),
              ::testing::AllOf(HasSubstr("memory_bytes is 1000000, but at least"),
                               HasSubstr("table \"users\" 60"), HasSubstr("for its ids and"),
                               HasSubstr("table \"items\" 120")));
  EXPECT_THAT(error(6300000), HasSubstr("memory_bytes is 6300000"));
}

}  // namespace
}  // namespace dovetail::embedding::hashed_tiers_test
