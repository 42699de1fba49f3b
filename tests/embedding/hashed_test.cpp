// ctest-labels: threads
#include "dovetail/embedding/hashed/hashed.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "dovetail/base/machine.h"
#include "dovetail/base/rng.h"
#include "dovetail/embedding/pack/lookup.h"
#include "tests/embedding/testing.h"

namespace dovetail::embedding::hashed_test {
namespace {

using dovetail::testing::expect_same_bits;
using dovetail::testing::normal;
using dovetail::testing::Threads;
using dovetail::testing::user_error;
using testing::apart_memory;
using ::testing::HasSubstr;
using testing::ids_from;
using testing::random_batch;

PackSpec spec_of(OptimizerKind kind) {
  return {.tables = {{"users", 300, 8}, {"items", 90, 5, Pooling::kMean}},
          .feature_table = {0, 1, 0},
          .optimizer = {.kind = kind, .lr = 0.05, .eps = 1e-3, .weight_decay = 0.01},
          .seed = 3};
}

/// One feature, one key in each bag.
Jagged single(const std::vector<int64_t>& keys) {
  return {ids_from(keys),
          at::arange(static_cast<int64_t>(keys.size()) + 1),
          {},
          1,
          static_cast<int64_t>(keys.size())};
}

PackSpec one_table(int64_t rows) {
  return {.tables = {{"t", rows, 4}},
          .feature_table = {0},
          .optimizer = {.kind = OptimizerKind::kAdagrad, .lr = 0.1},
          .seed = 9};
}

/// Returns keys: few of them often, drifting over time, and many seldom.
std::vector<int64_t> skewed_keys(int64_t step) {
  std::vector<int64_t> keys;
  for (int64_t i = 0; i < 40; ++i) {
    const double u = random_uniform(1, RandomStream::kTest, static_cast<uint64_t>(step * 40 + i));
    keys.push_back((static_cast<int64_t>(500 * u * u * u) + step / 10 * 5 - 100) * 1000003);
  }
  return keys;
}

/// Looks keys up without a trace.
at::Tensor look_up(const HashedTables& tables, const Jagged& keys) {
  at::Tensor y = at::empty({keys.samples, tables.packed().columns()});
  tables.pool_into(keys, y);
  return y;
}

void train(HashedTables& tables, const Jagged& keys, uint64_t seed) {
  const Jagged slots = tables.begin(keys);
  update(tables.packed(), {{slots, normal({keys.samples, tables.packed().columns()}, seed)}});
  tables.end();
}

TEST(HashedTables, AreTheTablesOfTheSameVocabulary) {
  for (const int threads : {1, 2}) {
    const Threads count(threads);
    for (const OptimizerKind kind : {OptimizerKind::kRowWiseAdagrad, OptimizerKind::kAdam}) {
      PackedTables plain(spec_of(kind));
      HashedTables hashed(spec_of(kind), {}, Changes::kUntracked, {}, {.apart = threads == 2});
      for (uint64_t step = 1; step <= 100; ++step) {
        const Jagged keys = random_batch(plain, 9, step, step % 2 == 0);
        const Jagged slots = hashed.begin(keys);
        expect_same_bits(pool(hashed.packed(), slots), pool(plain, keys));
        const at::Tensor gradient = normal({9, plain.columns()}, step);
        update(plain, {{keys, gradient}});
        update(hashed.packed(), {{slots, gradient}});
        hashed.end();
      }
      for (int64_t t = 0; t < 2; ++t) {
        const KeyedRows found = hashed.contents(t);
        EXPECT_GT(found.known.keys.numel(), 80);
        expect_same_bits(found.weight, plain.weight(t).index_select(0, found.known.keys));
        expect_same_bits(found.state, plain.packed_state(t).index_select(0, found.known.keys));
      }
    }
  }
}

/// Tables whose rows move through buffers, as to a GPU, have the bits of tables in RAM. They admit
/// and evict keys, save and load. A step is one transfer, and waits for nothing.
TEST(HashedTables, RowsOnADeviceChangeNoBit) {
  const HashedOptions options = {.admission = Admission::kCount,
                                 .min_count = 2,
                                 .max_candidates = 60,
                                 .eviction = Eviction::kAge,
                                 .evict_steps = 3,
                                 .max_age = 5};
  for (const RowDtype dtype : {RowDtype::kFloat32, RowDtype::kBFloat16, RowDtype::kMXFP8}) {
    for (const OptimizerKind kind : {OptimizerKind::kAdam, OptimizerKind::kSgd}) {
      PackSpec spec = spec_of(kind);
      spec.row_dtype = dtype;
      HashedTables here(spec, options),
          apart(spec, options, Changes::kUntracked, {}, apart_memory());
      std::optional<HashedTables> loaded;
      for (int64_t step = 1; step <= 60; ++step) {
        SCOPED_TRACE(fmt::format("{}, step {}", name(dtype), step));
        const std::vector<int64_t> some = skewed_keys(step);
        const Jagged batch = {
            ids_from(some), ids_from({0, 4, 10, 13, 20, 21, 26, 33, 36, 40, 40, 40, 40}), {}, 3, 4};
        const int64_t before = apart.transfers().to_slots;
        for (HashedTables* tables : {&here, &apart, loaded ? &*loaded : nullptr})
          if (tables != nullptr) train(*tables, batch, static_cast<uint64_t>(step));
        EXPECT_LE(apart.transfers().to_slots - before, 1);
        expect_same_bits(look_up(apart, batch), look_up(here, batch));
        if (step != 30) continue;
        loaded.emplace(spec, options, Changes::kUntracked, std::nullopt, apart_memory());
        for (int64_t t = 0; t < 2; ++t) loaded->add(t, here.contents(t));
        loaded->set_steps(here.steps());
        loaded->packed().set_steps(here.packed().steps());
      }
      EXPECT_GT(apart.counters().evicted, 20);
      EXPECT_EQ(apart.transfers().from_slots, 0);
      EXPECT_EQ(apart.transfers().waits, 0);
      EXPECT_EQ(here.transfers().to_slots, 0);
      for (const HashedTables* tables : {&apart, &*loaded})
        for (int64_t t = 0; t < 2; ++t) {
          EXPECT_TRUE(at::equal(tables->contents(t).known.keys, here.contents(t).known.keys));
          EXPECT_TRUE(at::equal(tables->contents(t).weight, here.contents(t).weight));
          expect_same_bits(tables->contents(t).state, here.contents(t).state);
        }
    }
  }
}

TEST(HashedTables, InitialValuesFollowFromTheKeyAlone) {
  const std::vector<int64_t> keys = {INT64_MIN, -1, 0, 7, INT64_MAX, int64_t{1} << 40};
  std::vector<int64_t> reversed(keys.rbegin(), keys.rend());
  HashedTables together(one_table(100), {}), apart(one_table(100), {});
  together.begin(single(keys));
  together.end();
  for (const int64_t key : reversed) {
    apart.begin(single({key, 1000 + key % 1000}));
    apart.end();
  }
  const at::Tensor y = look_up(together, single(keys));
  expect_same_bits(y, look_up(apart, single(keys)));
  const uint64_t stream = mix_seed(9, name_key("t"));
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto words = philox(stream, static_cast<uint64_t>(keys[i]),
                              static_cast<uint64_t>(RandomStream::kInitialize));
    for (size_t d = 0; d < 4; ++d)
      EXPECT_NEAR(y[static_cast<int64_t>(i)][static_cast<int64_t>(d)].item<double>(),
                  ((words[d] >> 8) * 0x1p-23 - 1) / 10, 1e-8);
  }
}

TEST(HashedTables, AKeyWithoutARowReadsZerosAndItsGradientGoesNowhere) {
  HashedTables tables(one_table(2), {});
  train(tables, single({5, 6}), 1);
  const KeyedRows before = tables.contents(0);
  for (uint64_t step = 2; step < 5; ++step) {
    const Jagged slots = tables.begin(single({7, 7, -8}));
    EXPECT_EQ(pool(tables.packed(), slots).count_nonzero().item<int64_t>(), 0);
    update(tables.packed(), {{slots, at::ones({3, 4})}});
    tables.end();
  }
  expect_same_bits(tables.contents(0).weight, before.weight);
  expect_same_bits(tables.contents(0).state, before.state);
  EXPECT_EQ(tables.counters().refused_full, 9);
  EXPECT_EQ(look_up(tables, single({7})).count_nonzero().item<int64_t>(), 0);
}

/// Admission and eviction as the header defines them, in loops over maps.
class Oracle {
 public:
  Oracle(const HashedOptions& options, int64_t rows) : options_(options), rows_(rows) {}

  struct Row {
    int64_t occurrences = 0, last_step = 0;
    int64_t now = 0;  ///< occurrences, halved as often as counts were
    bool operator==(const Row& other) const {
      return occurrences == other.occurrences && last_step == other.last_step;
    }
  };

  void step(const std::vector<int64_t>& ids) {
    ++step_;
    std::map<int64_t, int64_t> counts;
    std::vector<int64_t> order;
    for (const int64_t key : ids)
      if (counts[key]++ == 0) order.push_back(key);
    for (const int64_t key : order) {
      if (rows.contains(key)) {
        found += counts[key];
        rows[key] = {rows[key].now + counts[key], step_, rows[key].now + counts[key]};
      }
    }
    for (const int64_t key : order) {
      if (rows.contains(key)) continue;
      const int64_t all =
          counts[key] + (candidates.contains(key) ? candidates[key].occurrences : 0);
      if (!admits(key, counts[key], all)) continue;
      if (static_cast<int64_t>(rows.size()) == rows_) {
        refused_full += counts[key];
        continue;
      }
      candidates.erase(key);
      rows[key] = {all, step_, all};
      ++admitted;
    }
    if (step_ % options_.evict_steps == 0) evict();
  }

  std::map<int64_t, Row> rows, candidates;
  int64_t found = 0, admitted = 0, not_admitted = 0, refused_full = 0, refused_candidates = 0,
          evicted = 0;

 private:
  bool admits(int64_t key, int64_t count, int64_t all) {
    if (options_.admission == Admission::kAlways) return true;
    if (options_.admission == Admission::kProbability) {
      const double u =
          random_uniform(mix_seed(mix_seed(9, name_key("t")), static_cast<uint64_t>(step_)),
                         RandomStream::kAdmission, static_cast<uint64_t>(key));
      double none = 1;
      for (int64_t i = 0; i < count; ++i) none *= 1 - options_.probability;
      if (u >= 1 - none) not_admitted += count;
      return u < 1 - none;
    }
    if (!candidates.contains(key) && all < options_.min_count &&
        static_cast<int64_t>(candidates.size()) == options_.max_candidates) {
      refused_candidates += count;
      return false;
    }
    if (candidates.contains(key) || all < options_.min_count) candidates[key] = {all, step_};
    if (all < options_.min_count) not_admitted += count;
    return all >= options_.min_count;
  }

  void evict() {
    const auto old = [&](const auto& entry) {
      return step_ - entry.second.last_step > options_.max_age;
    };
    if (options_.eviction == Eviction::kAge)
      evicted += static_cast<int64_t>(std::erase_if(rows, old));
    std::erase_if(candidates, old);
    if (options_.eviction != Eviction::kFrequency) return;
    while (static_cast<int64_t>(rows.size()) > options_.keep_rows) {
      auto least = rows.begin();
      for (auto i = rows.begin(); i != rows.end(); ++i) {
        const auto rank = [](const auto& e) {
          return std::tuple(e.second.now, e.second.last_step, static_cast<uint64_t>(e.first));
        };
        if (rank(*i) < rank(*least)) least = i;
      }
      rows.erase(least);
      ++evicted;
    }
    for (auto& [key, row] : rows) row.now /= 2;
  }

  HashedOptions options_;
  int64_t rows_, step_ = 0;
};

HashedCounters like_oracle(const HashedOptions& options, int64_t capacity, int threads) {
  const Threads count(threads);
  HashedTables tables(one_table(capacity), options);
  Oracle oracle(options, capacity);
  for (int64_t step = 1; step <= 150; ++step) {
    const std::vector<int64_t> keys = skewed_keys(step);
    train(tables, single(keys), static_cast<uint64_t>(step));
    oracle.step(keys);
    const KeyedRows found = tables.contents(0);
    std::map<int64_t, Oracle::Row> rows;
    for (int64_t i = 0; i < found.known.keys.numel(); ++i)
      rows[found.known.keys[i].item<int64_t>()] = {found.known.occurrences[i].item<int64_t>(),
                                                   found.known.last_step[i].item<int64_t>()};
    EXPECT_EQ(rows, oracle.rows) << "step " << step;
  }
  const HashedCounters counters = tables.counters();
  EXPECT_EQ(counters.rows, static_cast<int64_t>(oracle.rows.size()));
  EXPECT_EQ(counters.candidates, static_cast<int64_t>(oracle.candidates.size()));
  EXPECT_EQ(counters.found, oracle.found);
  EXPECT_EQ(counters.admitted, oracle.admitted);
  EXPECT_EQ(counters.not_admitted, oracle.not_admitted);
  EXPECT_EQ(counters.refused_full, oracle.refused_full);
  EXPECT_EQ(counters.refused_candidates, oracle.refused_candidates);
  EXPECT_EQ(counters.evicted, oracle.evicted);
  return counters;
}

TEST(HashedTables, AdmissionAndEvictionAreTheirDefinitions) {
  EXPECT_GT(like_oracle({}, 100, 1).refused_full, 0);
  const HashedCounters counted = like_oracle({.admission = Admission::kCount,
                                              .min_count = 3,
                                              .max_candidates = 60,
                                              .evict_steps = 7,
                                              .max_age = 20},
                                             80, 1);
  EXPECT_GT(counted.refused_full, 0);
  EXPECT_GT(counted.refused_candidates, 0);
  EXPECT_GT(counted.not_admitted, 0);
  EXPECT_GT(counted.candidates_evicted, 0);
  EXPECT_GT(
      like_oracle({.admission = Admission::kProbability, .probability = 0.2}, 1000, 1).not_admitted,
      0);
  EXPECT_GT(
      like_oracle({.eviction = Eviction::kAge, .evict_steps = 5, .max_age = 8}, 400, 2).evicted, 0);
  EXPECT_GT(like_oracle({.admission = Admission::kCount,
                         .min_count = 2,
                         .max_candidates = 1000,
                         .eviction = Eviction::kFrequency,
                         .evict_steps = 3,
                         .keep_rows = 50},
                        90, 2)
                .evicted,
            0);
}

TEST(HashedTables, ARowThatComesAgainBeginsAnew) {
  HashedTables tables(one_table(10), {.eviction = Eviction::kAge, .evict_steps = 1, .max_age = 1});
  const at::Tensor first = pool(tables.packed(), tables.begin(single({42})));
  tables.end();
  train(tables, single({42}), 1);
  for (int64_t step = 0; step < 3; ++step) train(tables, single({1, 2, 3}), 2);
  EXPECT_EQ(tables.counters().evicted, 1);
  const Jagged slots = tables.begin(single({42}));
  expect_same_bits(pool(tables.packed(), slots), first);
  tables.end();
  EXPECT_EQ(tables.contents(0).state[3].count_nonzero().item<int64_t>(), 0);
}

TEST(HashedTables, WhatIsSavedCanBeLoaded) {
  const HashedOptions options = {.admission = Admission::kCount,
                                 .min_count = 3,
                                 .max_candidates = 50,
                                 .eviction = Eviction::kFrequency,
                                 .evict_steps = 4,
                                 .keep_rows = 60};
  for (const RowDtype dtype : {RowDtype::kFloat32, RowDtype::kBFloat16, RowDtype::kMXFP8}) {
    PackSpec spec = one_table(200);
    spec.row_dtype = dtype;
    HashedTables first(spec, options), second(spec, options);
    for (int64_t step = 1; step <= 10; ++step)
      train(first, single(skewed_keys(step)), static_cast<uint64_t>(step));
    train(second, single({1, 2, 3}), 1);
    second.clear(0);
    second.add(0, first.contents(0));
    second.set_steps(first.steps());
    second.packed().set_steps(first.packed().steps());
    for (int64_t step = 11; step <= 30; ++step) {
      train(first, single(skewed_keys(step)), static_cast<uint64_t>(step));
      train(second, single(skewed_keys(step)), static_cast<uint64_t>(step));
    }
    const KeyedRows a = first.contents(0), b = second.contents(0);
    EXPECT_TRUE(at::equal(a.known.keys, b.known.keys));
    EXPECT_TRUE(at::equal(a.known.occurrences, b.known.occurrences));
    EXPECT_TRUE(at::equal(a.known.last_step, b.known.last_step));
    EXPECT_GT(a.candidates.keys.numel(), 0);
    EXPECT_TRUE(at::equal(a.candidates.keys, b.candidates.keys));
    EXPECT_TRUE(at::equal(a.candidates.occurrences, b.candidates.occurrences));
    EXPECT_TRUE(at::equal(a.candidates.last_step, b.candidates.last_step));
    EXPECT_TRUE(at::equal(a.weight, b.weight));
    expect_same_bits(a.state, b.state);
  }
}

TEST(HashedTables, MemoryGrowsWithTheRows) {
  HashedTables tables(one_table(int64_t{1} << 30), {});
  EXPECT_LT(tables.memory_bytes(), 10000);
  for (int64_t step = 0; step < 20; ++step) {
    tables.begin({at::arange(step * 1000, step * 1000 + 1000), at::arange(1001), {}, 1, 1000});
    tables.end();
  }
  EXPECT_EQ(tables.counters().rows, 20000);
  EXPECT_GT(tables.memory_bytes(), 20000 * 32);
  EXPECT_LT(tables.memory_bytes(), 20000 * 150);
}

/// Checks the memory limit with a stream of new keys, each in two steps and twice in each. Other
/// users of memory are on, too: candidates, evictions and the records for a delta.
void expect_within(int64_t max_bytes, RowDtype dtype, const HashedOptions& options,
                   Changes changes) {
  PackSpec spec = one_table(1000000);
  spec.row_dtype = dtype;
  spec.tables[0].max_bytes = max_bytes;
  HashedTables tables(spec, options, changes);
  int64_t most = 0, next = 0;
  for (int64_t step = 1; step <= 60; ++step) {
    train(tables, {at::arange(next, next + 200).div(2, "floor"), at::arange(201), {}, 1, 200}, 1);
    next += 100;
    EXPECT_LE(tables.memory_bytes(), max_bytes) << "step " << step;
    EXPECT_EQ(tables.counters().bytes, tables.memory_bytes());
    most = std::max(most, tables.counters().rows);
    if (step % 7 == 0) tables.forget_changes();
  }
  EXPECT_EQ(most, tables.maximum_rows(0));
  EXPECT_LE(tables.memory_bytes(), max_bytes);
  const int64_t of_candidates =
      options.admission == Admission::kCount ? 40 * options.max_candidates : 0;
  EXPECT_GT(tables.memory_bytes(), max_bytes - of_candidates - 400)
      << "one row more would have fitted";
  const HashedCounters counters = tables.counters();
  EXPECT_GT(counters.refused_memory, 0);
  EXPECT_EQ(counters.refused_full, 0);
  EXPECT_EQ(counters.found + counters.not_admitted + counters.refused_memory +
                counters.refused_candidates + 2 * counters.admitted,
            60 * 200);
  // The number of rows that fit does not depend on their values.
  HashedTables again(spec, options, changes);
  again.add(0, tables.contents(0));
  again.set_steps(tables.steps());
  EXPECT_LE(again.memory_bytes(), max_bytes);
}

TEST(HashedTables, TakeNoMoreThanTheirMaxBytes) {
  for (const RowDtype dtype : {RowDtype::kFloat32, RowDtype::kBFloat16}) {
    expect_within(200000, dtype, {}, Changes::kUntracked);
    expect_within(150000, dtype, {.eviction = Eviction::kAge, .evict_steps = 20, .max_age = 25},
                  Changes::kTracked);
    expect_within(150000, dtype,
                  {.admission = Admission::kCount,
                   .min_count = 3,
                   .max_candidates = 500,
                   .evict_steps = 3,
                   .max_age = 2},
                  Changes::kTracked);
  }
}

/// Measures the process's memory, not the tables' own count.
TEST(HashedTables, MaxBytesHoldForTheProcess) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP()
      << "a sanitizer's shadow memory, and what it keeps of freed blocks, count as resident";
#endif
  constexpr int64_t kMaxBytes = int64_t{48} << 20, kSteps = 200, kKeys = 4096;
  PackSpec spec = one_table(10000000);
  spec.tables[0].dim = 16;
  spec.tables[0].max_bytes = kMaxBytes;
  const auto before = static_cast<int64_t>(resident_bytes());
  HashedTables tables(spec, {});
  for (int64_t step = 0; step < kSteps; ++step) {
    tables.begin(
        {at::arange(step * kKeys, (step + 1) * kKeys), at::arange(kKeys + 1), {}, 1, kKeys});
    tables.end();
  }
  const int64_t taken = static_cast<int64_t>(resident_bytes()) - before;
  EXPECT_LT(taken, kMaxBytes + (int64_t{4} << 20))
      << "what the last step needed for its keys comes on top";
  EXPECT_GT(taken, kMaxBytes * 4 / 5);
  EXPECT_EQ(tables.counters().rows, tables.maximum_rows(0));
  EXPECT_GT(tables.counters().refused_memory, kSteps * kKeys / 2);
}

TEST(HashedTables, TheSmallerOfBothCapsHolds) {
  const auto tables_of = [](int64_t rows, int64_t max_bytes) {
    PackSpec spec = one_table(rows);
    spec.tables[0].max_bytes = max_bytes;
    return HashedTables(spec, {});
  };
  EXPECT_EQ(tables_of(1000, 0).maximum_rows(0), 1000);
  EXPECT_EQ(tables_of(1000, 1 << 20).maximum_rows(0), 1000);
  const int64_t fitting = tables_of(1000000, 100000).maximum_rows(0);
  EXPECT_GT(fitting, 700);  // 16 bytes of a row, 16 of state, some 70 of its key
  EXPECT_LT(fitting, 1100);
  for (const auto& [rows, max_bytes] :
       {std::pair<int64_t, int64_t>{20, 1 << 20}, {1000000, 4000}}) {
    HashedTables tables = tables_of(rows, max_bytes);
    const int64_t most = tables.maximum_rows(0);
    tables.begin({at::arange(500), at::arange(501), {}, 1, 500});
    tables.end();
    EXPECT_EQ(tables.counters().rows, most);
    EXPECT_EQ(tables.counters().refused_full, rows == 20 ? 500 - most : 0);
    EXPECT_EQ(tables.counters().refused_memory, rows == 20 ? 0 : 500 - most);
  }
  // Initial values of a row depend on the maximum number of rows, not on the number that fits.
  HashedTables few = tables_of(100, 4000), all = tables_of(100, 0);
  ASSERT_LT(few.maximum_rows(0), 100);
  expect_same_bits(pool(few.packed(), few.begin(single({42}))),
                   pool(all.packed(), all.begin(single({42}))));
  PackSpec spec = one_table(1000);
  spec.tables[0].max_bytes = 500;
  EXPECT_THAT(user_error([&] { HashedTables(spec, {}); }), HasSubstr("has max_bytes = 500"));
  spec.tables[0].max_bytes = 1 << 20;
  EXPECT_THAT(user_error([&] {
                HashedTables(spec, {.admission = Admission::kCount, .max_candidates = 1 << 20});
              }),
              HasSubstr("for max_candidates. Raise max_bytes, or lower max_candidates"));
  HashedTables full = tables_of(1000000, 1 << 20), small = tables_of(1000000, 4000);
  full.begin({at::arange(500), at::arange(501), {}, 1, 500});
  full.end();
  EXPECT_THAT(user_error([&] { small.add(0, full.contents(0)); }),
              HasSubstr("raise its max_bytes"));
}

TEST(HashedTables, WhatCannotBeIsRefused) {
  const auto error = [](const HashedOptions& options) {
    return user_error([&] { HashedTables(one_table(5), options); });
  };
  EXPECT_THAT(error({.admission = Admission::kCount}), HasSubstr("max_candidates is 0"));
  EXPECT_THAT(error({.admission = Admission::kCount, .min_count = 0}), HasSubstr("min_count is 0"));
  EXPECT_THAT(error({.admission = Admission::kProbability, .probability = 0}),
              HasSubstr("probability is 0"));
  EXPECT_THAT(error({.eviction = Eviction::kFrequency}), HasSubstr("keep_rows is 0"));
  EXPECT_THAT(error({.eviction = Eviction::kAge, .max_age = 0}), HasSubstr("max_age is 0"));
  EXPECT_THAT(error({.evict_steps = 0}), HasSubstr("evict_steps is 0"));
  EXPECT_THAT(user_error([] { HashedTables(one_table(0), {}); }), HasSubstr("may have 0 rows"));
  EXPECT_THAT(user_error([] { parse_admission("never"); }), HasSubstr("never"));
  EXPECT_THAT(user_error([] { parse_eviction("lru"); }), HasSubstr("lru"));
  HashedTables tables(one_table(5), {});
  EXPECT_THAT(user_error([&] { tables.end(); }), HasSubstr("call begin first"));
  EXPECT_THAT(user_error([&] { tables.begin({ids_from({1, 2}), ids_from({0, 2, 1}), {}, 1, 2}); }),
              HasSubstr("offsets"));
  train(tables, single({1, 2}), 1);
  KeyedRows rows = tables.contents(0);
  rows.known.keys.fill_(7);
  EXPECT_THAT(user_error([&] { tables.add(0, rows); }), HasSubstr("key 7 is there twice"));
  rows.weight = rows.weight.narrow(1, 0, 3);
  EXPECT_THAT(user_error([&] { tables.add(0, rows); }),
              HasSubstr("weight of table \"t\" must be (2, 4)"));
}

}  // namespace
}  // namespace dovetail::embedding::hashed_test
