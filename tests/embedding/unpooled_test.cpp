// ctest-labels: threads
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/sgd.h>

#include "dovetail/embedding/pack/lookup.h"
#include "dovetail/embedding/ranks/table_placement.h"
#include "tests/embedding/testing.h"

namespace dovetail::embedding::unpooled_test {
namespace {

using dovetail::testing::at_every_simd_level;
using dovetail::testing::expect_close;
using dovetail::testing::expect_same_bits;
using dovetail::testing::normal;
using dovetail::testing::Threads;
using dovetail::testing::user_error;
using ::testing::HasSubstr;
using testing::ids_from;
using testing::random_batch;

constexpr int64_t kSamples = 13;

/// Tables: one with two features, one with a single row, one that only the last feature reads.
PackSpec spec_of(OptimizerKind kind, int64_t dim, Pooling pooling = Pooling::kNone) {
  return {.tables = {{"shared", 7, dim, pooling},
                     {"one", 1, dim, pooling},
                     {"other", 40, dim, pooling}},
          .feature_table = {0, 1, 0, 2},
          .optimizer = {.kind = kind, .lr = 0.05, .eps = 1e-3},
          .seed = 3};
}

/// The table of each id of a batch.
std::vector<int64_t> table_of_ids(const PackSpec& spec, const Jagged& batch) {
  std::vector<int64_t> tables;
  const auto* offsets = batch.offsets.const_data_ptr<int64_t>();
  for (int64_t f = 0; f < batch.features; ++f)
    tables.insert(
        tables.end(),
        static_cast<size_t>(offsets[(f + 1) * batch.samples] - offsets[f * batch.samples]),
        spec.feature_table[static_cast<size_t>(f)]);
  return tables;
}

/// Compares with torch's embedding and optimizers on dense float64 tables.
void expect_like_torch(OptimizerKind kind, int64_t dim, bool weighted) {
  PackedTables tables(spec_of(kind, dim));
  std::vector<at::Tensor> dense;
  for (int64_t t = 0; t < 3; ++t)
    dense.push_back(tables.weight(t).to(at::kDouble).requires_grad_());
  torch::optim::SGD sgd(dense, torch::optim::SGDOptions(0.05));
  torch::optim::Adagrad adagrad(dense, torch::optim::AdagradOptions(0.05).eps(1e-3));
  for (uint64_t step = 1; step <= 3; ++step) {
    const Jagged batch = random_batch(tables, kSamples, step, weighted);
    const std::vector<int64_t> table = table_of_ids(tables.spec(), batch);
    std::vector<at::Tensor> rows = {at::empty({0, dim}, at::kDouble)};
    for (size_t i = 0; i < table.size(); ++i)
      rows.push_back(
          at::embedding(dense[static_cast<size_t>(table[i])], batch.values.slice(0, i, i + 1)));
    at::Tensor expected = at::cat(rows);
    if (weighted) expected = expected * batch.weights.unsqueeze(1);
    expect_close(pool(tables, batch), expected.detach(), 5e-6, "rows");
    const at::Tensor gradient = normal({batch.values.numel(), dim}, 10 + step);
    update(tables, {{batch, gradient}});
    sgd.zero_grad();
    expected.backward(gradient.to(at::kDouble));
    kind == OptimizerKind::kSgd ? sgd.step() : adagrad.step();
    for (int64_t t = 0; t < 3; ++t)
      expect_close(tables.weight(t), dense[static_cast<size_t>(t)].detach(), 1e-5,
                   tables.spec().tables[size_t(t)].name);
  }
}

TEST(UnpooledLookup, IsTorchsEmbedding) {
  at_every_simd_level([] {
    for (const int64_t dim : {1, 5, 16, 33}) {
      expect_like_torch(OptimizerKind::kSgd, dim, dim == 16);
      expect_like_torch(OptimizerKind::kAdagrad, dim, dim == 5);
    }
  });
  const Threads one(1);
  ops::set_disabled_kernels("embedding");
  expect_like_torch(OptimizerKind::kAdagrad, 16, true);
  expect_like_torch(OptimizerKind::kSgd, 5, false);
  ops::set_disabled_kernels("");
}

std::vector<at::Tensor> bits_of(const PackedTables& tables) {
  std::vector<at::Tensor> all;
  for (int64_t t = 0; t < 3; ++t) {
    all.push_back(tables.weight(t));
    all.push_back(tables.packed_state(t));
  }
  return all;
}

void expect_same_tables(const PackedTables& a, const PackedTables& b) {
  const auto x = bits_of(a), y = bits_of(b);
  for (size_t i = 0; i < x.size(); ++i) expect_same_bits(x[i], y[i], std::to_string(i));
}

/// Unpooled ids that have the gradient of their bag update as a pooled sum. Results are bitwise
/// equal, so rows are added in the same order.
TEST(UnpooledLookup, OfTheGradientsOfSumsIsASum) {
  for (const OptimizerKind kind :
       {OptimizerKind::kMomentum, OptimizerKind::kRowWiseAdagrad, OptimizerKind::kAdam}) {
    for (const bool weighted : {false, true}) {
      PackedTables rows(spec_of(kind, 16)), sums(spec_of(kind, 16, Pooling::kSum));
      for (uint64_t step = 1; step <= 3; ++step) {
        const Jagged batch = random_batch(rows, kSamples, step, weighted);
        const at::Tensor gradient = normal({kSamples, sums.columns()}, step);
        std::vector<at::Tensor> of_ids = {gradient.narrow(0, 0, 0).narrow(1, 0, 16)};
        for (int64_t f = 0; f < batch.features; ++f)
          of_ids.push_back(gradient.narrow(1, 16 * f, 16)
                               .repeat_interleave(
                                   batch.offsets.narrow(0, f * kSamples, kSamples + 1).diff(), 0));
        update(rows, {{batch, at::cat(of_ids)}});
        update(sums, {{batch, gradient}});
        expect_same_tables(rows, sums);
      }
    }
  }
}

TEST(UnpooledLookup, MicroBatchesAndThreadsDoNotChangeABit) {
  PackedTables whole(spec_of(OptimizerKind::kAdam, 16));
  const Jagged batch = random_batch(whole, kSamples, 5, true);
  const at::Tensor gradient = normal({batch.values.numel(), 16}, 6) * 100,
                   rows = pool(whole, batch);
  update(whole, {{batch, gradient}});
  const auto of_samples = [&](const at::Tensor& all, int64_t begin, int64_t end) {
    std::vector<at::Tensor> parts;
    for (int64_t f = 0; f < batch.features; ++f)
      parts.push_back(all.slice(0, batch.offsets[f * kSamples + begin].item<int64_t>(),
                                batch.offsets[f * kSamples + end].item<int64_t>()));
    return at::cat(parts);
  };
  for (const int threads : {1, 2}) {
    const Threads count(threads);
    for (int64_t parts = 1; parts <= 4; ++parts) {
      PackedTables cut(spec_of(OptimizerKind::kAdam, 16));
      std::vector<PooledGradient> list;
      for (int64_t m = 0; m < parts; ++m) {
        const int64_t begin = kSamples * m / parts, end = kSamples * (m + 1) / parts;
        list.push_back({samples_of(batch, begin, end - begin), of_samples(gradient, begin, end)});
        expect_same_bits(pool(cut, list.back().batch), of_samples(rows, begin, end));
      }
      update(cut, list);
      expect_same_tables(cut, whole);
    }
  }
}

/// The batch has more ids than one piece of work, and more occurrences than are sorted at once.
TEST(UnpooledLookup, LargeBatchesAreTheSame) {
  const PackSpec spec{.tables = {{"t", 30, 8, Pooling::kNone}},
                      .feature_table = {0, 0},
                      .optimizer = {.kind = OptimizerKind::kSgd, .lr = 0.5}};
  PackedTables tables(spec);
  constexpr int64_t kMany = 20000;
  const at::Tensor values = at::arange(2 * kMany).remainder(30),
                   offsets = at::arange(2 * kMany + 1);
  const at::Tensor before = tables.weight(0).clone(), gradient = normal({2 * kMany, 8}, 1);
  const Jagged batch{values, offsets, {}, 2, kMany};
  expect_same_bits(pool(tables, batch), before.index_select(0, values));
  update(tables, {{batch, gradient}});
  const at::Tensor sums =
      at::zeros({30, 8}, at::kDouble).index_add_(0, values, gradient.to(at::kDouble));
  expect_close(tables.weight(0), before.to(at::kDouble) - 0.5 * sums, 1e-4, "rows");
}

/// A table's only feature has one id in each bag. The feature before it has none or two, so that
/// ids and samples have different numbers.
TEST(UnpooledLookup, SingleIdsAreTheSame) {
  const PackSpec spec{
      .tables = {{"first", 5, 8, Pooling::kNone}, {"single", 30, 8, Pooling::kNone}},
      .feature_table = {0, 1},
      .optimizer = {.kind = OptimizerKind::kSgd, .lr = 0.5}};
  for (const int64_t ids_of_first : {0, 2}) {
    PackedTables tables(spec);
    const int64_t behind = ids_of_first * kSamples;
    const at::Tensor ids = at::arange(kSamples).remainder(4);
    const Jagged batch{
        at::cat({at::arange(behind).remainder(5), ids}),
        at::cat({ids_of_first * at::arange(kSamples + 1), behind + at::arange(1, kSamples + 1)}),
        {},
        2,
        kSamples};
    const at::Tensor before = tables.weight(1).clone(),
                     gradient = normal({behind + kSamples, 8}, 1);
    expect_same_bits(pool(tables, batch).narrow(0, behind, kSamples), before.index_select(0, ids));
    update(tables, {{batch, gradient}});
    const at::Tensor of_ids = gradient.narrow(0, behind, kSamples).to(at::kDouble),
                     sums = at::zeros({30, 8}, at::kDouble).index_add_(0, ids, of_ids);
    expect_close(tables.weight(1), before.to(at::kDouble) - 0.5 * sums, 1e-5, "rows");
  }
}

TEST(UnpooledLookup, WithoutIdsGivesNoRows) {
  PackedTables tables(spec_of(OptimizerKind::kSgd, 4));
  const Jagged none{ids_from({}), at::zeros({4 * 2 + 1}, at::kLong), {}, 4, 2};
  EXPECT_EQ(pool(tables, none).sizes(), (at::IntArrayRef{0, 4}));
  const at::Tensor before = tables.weight(0).clone();
  update(tables, {{none, at::empty({0, 4})}});
  expect_same_bits(tables.weight(0), before);
}

TEST(UnpooledLookup, WhatCannotBeIsRefused) {
  const auto refusal = [](const PackSpec& spec) {
    return user_error([&] { PackedTables tables(spec); });
  };
  PackSpec spec = spec_of(OptimizerKind::kSgd, 4);
  spec.tables[2].pooling = Pooling::kMean;
  EXPECT_THAT(refusal(spec), HasSubstr("only one of them has pooling none"));
  spec = spec_of(OptimizerKind::kSgd, 4);
  spec.tables[1].dim = 5;
  EXPECT_THAT(refusal(spec), HasSubstr("4 and 5 elements"));
  spec = spec_of(OptimizerKind::kSgd, 4);
  EXPECT_THAT(user_error([&] { place_tables(spec, {}); }),
              HasSubstr("table \"shared\" has pooling none"));
  PackedTables tables(spec);
  const Jagged batch = random_batch(tables, kSamples, 1, false);
  EXPECT_THAT(user_error([&] { update(tables, {{batch, at::zeros({kSamples, 4})}}); }),
              HasSubstr(fmt::format("the gradient of {} ids must be", batch.values.numel())));
}

}  // namespace
}  // namespace dovetail::embedding::unpooled_test
