// ctest-labels: threads
#include "dovetail/embedding/pack/lookup.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/embedding/testing.h"

namespace dovetail::embedding::lookup_test {
namespace {

using dovetail::testing::at_every_simd_level;
using dovetail::testing::expect_close;
using dovetail::testing::expect_same_bits;
using dovetail::testing::normal;
using dovetail::testing::Threads;
using testing::random_batch;
using testing::Reference;

constexpr OptimizerKind kKinds[] = {OptimizerKind::kSgd,     OptimizerKind::kMomentum,
                                    OptimizerKind::kAdagrad, OptimizerKind::kRowWiseAdagrad,
                                    OptimizerKind::kAdam,    OptimizerKind::kRowWiseAdam,
                                    OptimizerKind::kFtrl};

/// Tables with widths near the vectors' width and both poolings. One has two features, one has a
/// single row.
PackSpec mixed(OptimizerKind kind, double weight_decay = 0) {
  return {.tables = {{"one", 7, 1},
                     {"three", 5, 3, Pooling::kMean},
                     {"sixteen", 9, 16},
                     {"thirty_three", 1, 33},
                     {"sixty_four", 40, 64, Pooling::kMean},
                     {"wide", 6, 300}},
          .feature_table = {4, 0, 1, 2, 4, 3, 5, 2},
          .optimizer = {.kind = kind, .lr = 0.05, .eps = 1e-3, .weight_decay = weight_decay},
          .seed = 3};
}

at::Tensor gradient_for(const PackedTables& tables, int64_t samples, uint64_t seed) {
  return normal({samples, tables.columns()}, seed);
}

void expect_like_reference(const PackedTables& tables, const Reference& reference,
                           double tolerance) {
  for (size_t t = 0; t < tables.spec().tables.size(); ++t) {
    const std::string& name = tables.spec().tables[t].name;
    expect_close(tables.weight(static_cast<int64_t>(t)), reference.weight[t], tolerance, name);
    for (const auto& [part, state] : tables.state(static_cast<int64_t>(t))) {
      const bool is_second = part == "v" || part == "n";
      const at::Tensor expected = is_second ? reference.second[t] : reference.first[t];
      expect_close(state, state.dim() == 1 ? expected.select(1, 0) : expected, tolerance,
                   name + " " + part);
    }
  }
}

void expect_like_definition(OptimizerKind kind, double weight_decay, bool weighted) {
  PackedTables tables(mixed(kind, weight_decay));
  Reference reference(tables);
  for (uint64_t step = 1; step <= 3; ++step) {
    const Jagged batch = random_batch(tables, 13, step, weighted);
    expect_close(pool(tables, batch), reference.pool(batch), 2e-6, "pooled");
    const at::Tensor gradient = gradient_for(tables, 13, 10 + step);
    update(tables, {{batch, gradient}});
    reference.update(batch, gradient);
    expect_like_reference(tables, reference, 2e-5);
  }
}

TEST(EmbeddingLookup, IsItsDefinitionForEveryOptimizer) {
  at_every_simd_level([] {
    for (const OptimizerKind kind : kKinds) {
      SCOPED_TRACE(static_cast<int>(kind));
      expect_like_definition(kind, 0, false);
      expect_like_definition(kind, 0.1, true);
    }
  });
}

TEST(EmbeddingLookup, PenaltiesOfFtrlAreItsDefinition) {
  const auto train = [](double l1) {
    PackedTables tables(
        {.tables = {{"t", 40, 16}, {"u", 30, 5}},
         .feature_table = {0, 1},
         .optimizer = {.kind = OptimizerKind::kFtrl, .lr = 0.1, .l1 = l1, .l2 = 0.3, .beta = 0.5}});
    Reference reference(tables);
    for (uint64_t step = 1; step <= 4; ++step) {
      const Jagged batch = random_batch(tables, 13, step, false);
      const at::Tensor gradient = gradient_for(tables, 13, step);
      update(tables, {{batch, gradient}});
      reference.update(batch, gradient);
    }
    expect_like_reference(tables, reference, 2e-5);
    return tables.weight(0).eq(0).sum().item<int64_t>();
  };
  at_every_simd_level([&] {
    EXPECT_EQ(train(0), 0);
    EXPECT_GT(train(1), 40 * 16 / 4);
  });
  ops::set_disabled_kernels("embedding");
  EXPECT_GT(train(1), 40 * 16 / 4);
  ops::set_disabled_kernels("");
}

TEST(EmbeddingLookup, InitialValuesKeepToTheRange) {
  PackSpec spec{.tables = {{"t", 400, 16}, {"u", 400, 16}, {"v", 400, 16}}, .feature_table = {0}};
  spec.tables[1].initial_range = 0.5;
  spec.tables[2].initial_range = 0;
  const PackedTables tables(spec);
  EXPECT_NEAR(tables.weight(0).abs().max().item<double>(), 1 / std::sqrt(400), 1e-3);
  EXPECT_NEAR(tables.weight(1).abs().max().item<double>(), 0.5, 1e-3);
  EXPECT_EQ(tables.weight(2).count_nonzero().item<int64_t>(), 0);
}

TEST(EmbeddingLookup, WithKernelsOffIsTheSame) {
  const Threads one(1);
  ops::set_disabled_kernels("embedding");
  for (const OptimizerKind kind : kKinds) {
    SCOPED_TRACE(static_cast<int>(kind));
    expect_like_definition(kind, 0.1, true);
    expect_like_definition(kind, 0, false);
  }
  ops::set_disabled_kernels("");
}

std::vector<at::Tensor> bits_of(const PackedTables& tables) {
  std::vector<at::Tensor> all;
  for (size_t t = 0; t < tables.spec().tables.size(); ++t) {
    all.push_back(tables.weight(static_cast<int64_t>(t)));
    all.push_back(tables.packed_state(static_cast<int64_t>(t)));
  }
  return all;
}

void expect_same_tables(const PackedTables& a, const PackedTables& b) {
  const auto x = bits_of(a), y = bits_of(b);
  ASSERT_EQ(x.size(), y.size());
  for (size_t i = 0; i < x.size(); ++i) expect_same_bits(x[i], y[i], std::to_string(i));
}

TEST(EmbeddingLookup, MicroBatchesAndThreadsDoNotChangeABit) {
  for (const OptimizerKind kind : kKinds) {
    constexpr int64_t kSamples = 23;
    PackedTables whole(mixed(kind, 0.1));
    const Jagged batch = random_batch(whole, kSamples, 5, true);
    const at::Tensor gradient = gradient_for(whole, kSamples, 6) * 100;
    const at::Tensor pooled = pool(whole, batch);
    update(whole, {{batch, gradient}});
    for (const int threads : {1, 2}) {
      const Threads count(threads);
      for (int64_t parts = 1; parts <= 5; ++parts) {
        PackedTables cut(mixed(kind, 0.1));
        std::vector<PooledGradient> list;
        for (int64_t m = 0; m < parts; ++m) {
          const int64_t begin = kSamples * m / parts, end = kSamples * (m + 1) / parts;
          list.push_back({samples_of(batch, begin, end - begin), gradient.slice(0, begin, end)});
          expect_same_bits(pool(cut, list.back().batch), pooled.slice(0, begin, end));
        }
        update(cut, list);
        expect_same_tables(cut, whole);
      }
    }
  }
}

/// A lookup with more ids than one list holds gives the same as each table alone.
TEST(EmbeddingLookup, ManyLargeTablesAreAsEachAlone) {
  constexpr int64_t kSamples = 10000;
  const std::vector<int64_t> sizes = {10, 10, 1, 30, 10};  // size of each bag of a table
  PackSpec spec{.tables = {}, .feature_table = {}, .optimizer = {.kind = OptimizerKind::kAdagrad}};
  std::vector<at::Tensor> values, ends = {at::zeros({1}, at::kLong)};
  std::vector<Jagged> alone;
  int64_t begin = 0;
  for (size_t t = 0; t < sizes.size(); ++t) {
    spec.tables.push_back({.name = fmt::format("t{}", t), .rows = 1000, .dim = 4});
    spec.feature_table.push_back(static_cast<int64_t>(t));
    const auto generator = at::detail::createCPUGenerator(t);
    values.push_back(at::randint(0, 1000, {sizes[t] * kSamples}, generator, at::kLong));
    ends.push_back(begin + sizes[t] * at::arange(1, kSamples + 1));
    alone.push_back({values.back(), sizes[t] * at::arange(kSamples + 1), {}, 1, kSamples});
    begin += sizes[t] * kSamples;
  }
  PackedTables tables(spec);
  const at::Tensor gradient = normal({kSamples, 20}, 1);
  update(tables, {{{at::cat(values), at::cat(ends), {}, 5, kSamples}, gradient}});
  for (size_t t = 0; t < sizes.size(); ++t) {
    PackedTables one(
        {.tables = {spec.tables[t]}, .feature_table = {0}, .optimizer = spec.optimizer});
    const at::Tensor before = one.weight(0).clone();
    const auto column = static_cast<int64_t>(4 * t);
    update(one, {{alone[t], gradient.slice(1, column, column + 4)}});
    expect_same_bits(tables.weight(static_cast<int64_t>(t)), one.weight(0), spec.tables[t].name);
    expect_same_bits(tables.packed_state(static_cast<int64_t>(t)), one.packed_state(0),
                     spec.tables[t].name);
    EXPECT_FALSE(at::equal(before, one.weight(0)));
  }
}

/// One table has enough ids that its keys are distributed to ranges of rows. Most ranges have few
/// rows.
TEST(EmbeddingLookup, ManyOccurrencesAreSummedInTheSameOrder) {
  const PackSpec spec = {.tables = {{"many", 5000, 17}, {"few", 3, 8, Pooling::kMean}},
                         .feature_table = {0, 1, 0},
                         .optimizer = {.kind = OptimizerKind::kAdam}};
  constexpr int64_t kSamples = 11000;
  const auto generator = at::detail::createCPUGenerator(1);
  const at::Tensor wide = at::randint(0, 5000, {2, kSamples, 2}, generator, at::kLong);
  const at::Tensor ids = at::where(wide % 3 == 0, wide, wide % 7),
                   few = at::randint(0, 3, {2 * kSamples}, at::kLong);
  const Jagged batch = {.values = at::cat({ids[0].flatten(), few, ids[1].flatten()}),
                        .offsets = at::arange(3 * kSamples + 1) * 2,
                        .features = 3,
                        .samples = kSamples};
  std::vector<std::unique_ptr<PackedTables>> runs;
  const at::Tensor gradient = normal({kSamples, 17 + 8 + 17}, 2);
  for (const int threads : {1, 2}) {
    const Threads count(threads);
    for (const int64_t parts : {1, 3}) {
      runs.push_back(std::make_unique<PackedTables>(spec));
      std::vector<PooledGradient> list;
      for (int64_t m = 0; m < parts; ++m) {
        const int64_t begin = kSamples * m / parts, end = kSamples * (m + 1) / parts;
        list.push_back({samples_of(batch, begin, end - begin), gradient.slice(0, begin, end)});
      }
      update(*runs.back(), list);
      expect_same_tables(*runs.back(), *runs.front());
    }
  }
  // The same sums by index_add in float64.
  const at::Tensor both =
      at::cat({gradient.narrow(1, 0, 17), gradient.narrow(1, 25, 17)}).to(at::kDouble);
  const at::Tensor sum =
      at::zeros({5000, 17}, at::kDouble).index_add_(0, ids.flatten(), both.repeat_interleave(2, 0));
  expect_close(runs.front()->state(0)[0].second, sum * 0.1, 1e-4);
}

TEST(EmbeddingLookup, OutputsThatAreStreamedAreTheSame) {
  PackedTables tables({.tables = {{"t", 50, 64}, {"u", 20, 32}}, .feature_table = {0, 1, 0}});
  const Jagged batch = random_batch(tables, 16000, 4, false);
  const at::Tensor y = pool(tables, batch);
  for (const int64_t begin : {0, 8000, 15999}) {
    const int64_t end = std::min<int64_t>(begin + 500, 16000);
    expect_same_bits(y.slice(0, begin, end), pool(tables, samples_of(batch, begin, end - begin)));
  }
}

/// Bags of one id run a path of their own, except with weights. Rows of a few vectors have their
/// own path for updates.
TEST(EmbeddingLookup, SingleIdsAreTheSame) {
  at_every_simd_level([] {
    for (const int64_t samples : {33, 12000}) {
      PackedTables tables(
          {.tables = {{"t", 50, 64}, {"u", 20, 32}, {"v", 30, 128}, {"w", 9, 21}},
           .feature_table = {0, 1, 2, 3},
           .optimizer = {.kind = OptimizerKind::kRowWiseAdagrad, .weight_decay = 0.1}});
      tables.weight(0)[7].fill_(-0.0f);
      const auto generator = at::detail::createCPUGenerator(1);
      Jagged batch = {.values = at::randint(0, 9, {4 * samples}, generator, at::kLong),
                      .offsets = at::arange(4 * samples + 1),
                      .features = 4,
                      .samples = samples};
      const at::Tensor copied = pool(tables, batch);
      batch.weights = at::ones({4 * samples});
      expect_same_bits(copied, pool(tables, batch));
      if (samples > 33) continue;
      batch.weights = at::Tensor();
      Reference reference(tables);
      expect_close(copied, reference.pool(batch), 0, "pooled");
      const at::Tensor gradient = gradient_for(tables, samples, 2);
      update(tables, {{batch, gradient}});
      reference.update(batch, gradient);
      expect_like_reference(tables, reference, 2e-5);
    }
  });
}

TEST(EmbeddingLookup, PackingDoesNotChangeABit) {
  for (const OptimizerKind kind : kKinds) {
    PackedTables packed(mixed(kind));
    const Jagged batch = random_batch(packed, 19, 8, true);
    const at::Tensor gradient = gradient_for(packed, 19, 9), pooled = pool(packed, batch);
    update(packed, {{batch, gradient}});
    for (size_t t = 0; t < packed.spec().tables.size(); ++t) {
      const auto table = static_cast<int64_t>(t);
      PackSpec alone = packed.spec();
      alone.tables = {packed.spec().tables[t]};
      const auto& features = packed.features_of(table);
      alone.feature_table.assign(features.size(), 0);
      PackedTables single(alone);
      std::vector<at::Tensor> columns, values, weights, sizes;
      for (const int64_t f : features) {
        const int64_t column = packed.features()[static_cast<size_t>(f)].column;
        columns.push_back(gradient.narrow(1, column, alone.tables[0].dim));
        const at::Tensor offsets = batch.offsets.narrow(0, f * 19, 20);
        const int64_t begin = offsets[0].item<int64_t>(), end = offsets[19].item<int64_t>();
        values.push_back(batch.values.slice(0, begin, end));
        weights.push_back(batch.weights.slice(0, begin, end));
        sizes.push_back(offsets.diff());
      }
      const at::Tensor offsets = at::cat({at::zeros({1}, at::kLong), at::cat(sizes).cumsum(0)});
      const Jagged part = {at::cat(values), offsets, at::cat(weights),
                           static_cast<int64_t>(features.size()), 19};
      const int64_t first = packed.features()[static_cast<size_t>(features[0])].column;
      expect_same_bits(pool(single, part).narrow(1, 0, alone.tables[0].dim),
                       pooled.narrow(1, first, alone.tables[0].dim));
      update(single, {{part, at::cat(columns, 1)}});
      expect_same_bits(single.weight(0), packed.weight(table));
      expect_same_bits(single.packed_state(0), packed.packed_state(table));
    }
  }
}

TEST(EmbeddingLookup, RowsThatDoNotOccurStay) {
  PackedTables tables({.tables = {{"t", 10, 4}},
                       .feature_table = {0},
                       .optimizer = {.kind = OptimizerKind::kMomentum, .weight_decay = 0.5}});
  const at::Tensor before = tables.weight(0).clone();
  const Jagged batch = {testing::ids_from({3, 3}), testing::ids_from({0, 2}), {}, 1, 1};
  update(tables, {{batch, at::ones({1, 4})}});
  const at::Tensor changed = (tables.weight(0) != before).any(1);
  EXPECT_EQ(changed.sum().item<int64_t>(), 1);
  EXPECT_TRUE(changed[3].item<bool>());
}

TEST(EmbeddingLookup, NothingIsFine) {
  PackedTables none({});
  const Jagged no_features = {testing::ids_from({}), testing::ids_from({0}), {}, 0, 5};
  EXPECT_EQ(pool(none, no_features).sizes(), at::IntArrayRef({5, 0}));
  update(none, {{no_features, at::empty({5, 0})}});
  PackedTables tables(mixed(OptimizerKind::kSgd));
  const at::Tensor before = tables.weight(0).clone();
  const Jagged no_samples = {testing::ids_from({}), testing::ids_from({0}), {}, 8, 0};
  EXPECT_EQ(pool(tables, no_samples).size(0), 0);
  update(tables, {{no_samples, at::empty({0, tables.columns()})}});
  update(tables, {});
  expect_same_bits(tables.weight(0), before);
}

TEST(EmbeddingLookup, GradientsOfTheWrongShapeAreRefusedBeforeAnythingChanges) {
  PackedTables tables({.tables = {{"t", 10, 4}}, .feature_table = {0}});
  const Jagged batch = {testing::ids_from({3}), testing::ids_from({0, 1}), {}, 1, 1};
  const at::Tensor before = tables.weight(0).clone();
  EXPECT_THAT(dovetail::testing::user_error(
                  [&] { update(tables, {{batch, at::ones({1, 4})}, {batch, at::ones({1, 5})}}); }),
              ::testing::HasSubstr("must be (1, 4)"));
  expect_same_bits(tables.weight(0), before);
}

}  // namespace
}  // namespace dovetail::embedding::lookup_test
