// ctest-labels: cuda
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dovetail/embedding/hashed/hashed.h"
#include "dovetail/embedding/pack/cuda_kernels.h"
#include "dovetail/embedding/tiers/tiered.h"
#include "tests/embedding/testing.h"
#include "tests/ops/gpu_test.h"

namespace dovetail::embedding::cuda_test {
namespace {

using dovetail::testing::expect_close;
using dovetail::testing::expect_same_bits;
using dovetail::testing::normal;
using dovetail::testing::user_error;
using ::testing::HasSubstr;
using testing::ids_from;
using testing::random_batch;

class CudaTables : public dovetail::testing::NeedsGpuKernels {};

constexpr OptimizerKind kKinds[] = {OptimizerKind::kSgd,     OptimizerKind::kMomentum,
                                    OptimizerKind::kAdagrad, OptimizerKind::kRowWiseAdagrad,
                                    OptimizerKind::kAdam,    OptimizerKind::kRowWiseAdam,
                                    OptimizerKind::kFtrl};

/// Widths for every size of thread group, with and without whole vectors. One table has two
/// features, one has few rows.
PackSpec spec_of(OptimizerKind kind, RowDtype dtype) {
  return {.tables = {{"a", 97, 16},
                     {"b", 3, 5, Pooling::kMean},
                     {"c", 41, 64},
                     {"d", 50, 260},
                     {"e", 20, 1024}},
          .feature_table = {1, 0, 2, 0, 3, 4},
          .optimizer = {.kind = kind, .lr = 0.05, .eps = 1e-3, .weight_decay = 0.01},
          .seed = 3,
          .row_dtype = dtype};
}

Jagged on_gpu(Jagged batch) {
  for (at::Tensor* tensor : {&batch.values, &batch.offsets, &batch.weights})
    if (tensor->defined()) *tensor = tensor->to(at::kCUDA);
  return batch;
}

PackedTables on_gpu(const PackSpec& spec) {
  return PackedTables(spec, PackedTables::Initial::kDrawn, at::kCUDA);
}

/// Returns the batches of a step: one, or the same samples in two.
std::vector<Jagged> cut(const Jagged& batch, bool twice) {
  if (!twice) return {batch};
  return {samples_of(batch, 0, batch.samples / 3),
          samples_of(batch, batch.samples / 3, batch.samples - batch.samples / 3)};
}

void train(PackedTables& tables, const std::vector<Jagged>& batches, const at::Tensor& gradient) {
  std::vector<PooledGradient> parts;
  int64_t first = 0;
  for (const Jagged& batch : batches) {
    const at::Tensor part = gradient.narrow(0, first, batch.samples);
    first += batch.samples;
    const bool gpu = tables.device().is_cuda();
    parts.push_back(
        {.batch = gpu ? on_gpu(batch) : batch, .gradient = gpu ? part.to(at::kCUDA) : part});
  }
  update(tables, parts);
}

TEST_F(CudaTables, BeginAsThoseOfTheCpu) {
  for (const RowDtype dtype : {RowDtype::kFloat32, RowDtype::kBFloat16}) {
    const PackedTables cpu(spec_of(OptimizerKind::kAdam, dtype)), gpu = on_gpu(cpu.spec());
    for (int64_t t = 0; t < 5; ++t) {
      EXPECT_TRUE(at::equal(gpu.stored(t).cpu(), cpu.stored(t)));
      EXPECT_EQ(gpu.packed_state(t).count_nonzero().item<int64_t>(), 0);
    }
  }
}

TEST_F(CudaTables, PoolAsTheCpuBitForBit) {
  for (const RowDtype dtype : {RowDtype::kFloat32, RowDtype::kBFloat16}) {
    const PackedTables cpu(spec_of(OptimizerKind::kSgd, dtype)), gpu = on_gpu(cpu.spec());
    for (const int64_t samples : {0, 1, 33, 257}) {
      for (const bool weighted : {false, true}) {
        const Jagged batch = random_batch(cpu, samples, 7, weighted);
        expect_same_bits(pool(gpu, on_gpu(batch)).cpu(), pool(cpu, batch));
      }
    }
  }
}

/// SGD, momentum, Adagrad and Adam update element by element. Row-wise Adagrad also sums squares,
/// in its own order.
TEST_F(CudaTables, UpdateAsTheCpu) {
  for (const OptimizerKind kind : kKinds) {
    for (const bool twice : {false, true}) {
      SCOPED_TRACE(fmt::format("optimizer {}, {}", static_cast<int>(kind),
                               twice ? "in two micro-batches" : "at once"));
      PackedTables cpu(spec_of(kind, RowDtype::kFloat32)), gpu = on_gpu(cpu.spec());
      for (uint64_t step = 1; step <= 5; ++step) {
        const std::vector<Jagged> batches = cut(random_batch(cpu, 67, step, step % 2 == 0), twice);
        const at::Tensor gradient = normal({67, cpu.columns()}, step);
        train(cpu, batches, gradient);
        train(gpu, batches, gradient);
      }
      for (int64_t t = 0; t < 5; ++t) {
        expect_close(gpu.weight(t).cpu(), cpu.weight(t).to(at::kDouble), 2e-6, "rows");
        if (kind != OptimizerKind::kSgd)
          expect_close(gpu.packed_state(t).cpu(), cpu.packed_state(t).to(at::kDouble), 2e-6,
                       "state");
      }
    }
  }
}

/// Rounds with the same random words. Only numbers within a rounding error of a step of the format
/// may differ.
TEST_F(CudaTables, RoundRowsAsTheCpu) {
  PackedTables cpu(spec_of(OptimizerKind::kAdagrad, RowDtype::kBFloat16)), gpu = on_gpu(cpu.spec());
  const Jagged batch = random_batch(cpu, 67, 1, false);
  train(cpu, {batch}, normal({67, cpu.columns()}, 1));
  train(gpu, {batch}, normal({67, cpu.columns()}, 1));
  for (int64_t t = 0; t < 5; ++t) {
    const at::Tensor differ = gpu.stored(t).cpu() != cpu.stored(t);
    EXPECT_LT(differ.sum().item<int64_t>(), 1 + differ.numel() / 1000) << "table " << t;
    expect_close(gpu.weight(t).cpu(), cpu.weight(t).to(at::kDouble), 0x1p-7, "rows");
  }
}

/// Rows of many occurrences are summed in parts, so they are close to the reference. All other
/// values are bitwise equal.
TEST_F(CudaTables, RowsOfManyOccurrencesAreTheirSum) {
  const auto spec = [](bool alone) {
    PackSpec of_tables{.tables = {{"hot", 5, 16}},
                       .feature_table = {0},
                       .optimizer = {.kind = OptimizerKind::kSgd}};
    if (!alone) of_tables.tables.push_back({"wide", 4, 260});
    if (!alone) of_tables.feature_table.push_back(1);
    return of_tables;
  };
  const int64_t samples = 20000;
  const at::Tensor ids =
      at::arange(samples).remainder(3).mul(at::arange(samples).remainder(2)).to(at::kCUDA);
  const at::Tensor gradient = normal({samples, 16}, 1).to(at::kCUDA);
  const Jagged batch = {ids, at::arange(samples + 1).to(at::kCUDA), {}, 1, samples};
  PackedTables alone = on_gpu(spec(true)), again = on_gpu(spec(true)), beside = on_gpu(spec(false));
  const at::Tensor before = alone.weight(0).cpu().to(at::kDouble);
  update(alone, {{batch, gradient}});
  update(again, {{batch, gradient}});
  expect_same_bits(again.weight(0).cpu(), alone.weight(0).cpu());
  const at::Tensor sums =
      at::zeros({5, 16}, at::kDouble).index_add_(0, ids.cpu(), gradient.cpu().to(at::kDouble));
  expect_close(alone.weight(0).cpu(), before - 0.01 * sums, 1e-5, "rows");
  const at::Tensor wide = normal({samples, 260}, 2).to(at::kCUDA);
  const Jagged both = {
      at::cat({ids, ids}), at::arange(2 * samples + 1).to(at::kCUDA), {}, 2, samples};
  update(beside, {{both, at::cat({gradient, wide}, 1)}});
  expect_same_bits(beside.weight(0).cpu(), alone.weight(0).cpu());
  PackedTables parts = on_gpu(spec(true));
  std::vector<PooledGradient> micro_batches;
  for (int64_t first = 0; first < samples; first += 7000) {
    const int64_t count = std::min<int64_t>(7000, samples - first);
    micro_batches.push_back(
        {{ids.narrow(0, first, count), at::arange(count + 1).to(at::kCUDA), {}, 1, count},
         gradient.narrow(0, first, count)});
  }
  update(parts, micro_batches);
  expect_same_bits(parts.weight(0).cpu(), alone.weight(0).cpu());
}

TEST_F(CudaTables, WhatIsWrongIsNamedAsOnTheCpu) {
  PackedTables gpu = on_gpu(spec_of(OptimizerKind::kSgd, RowDtype::kFloat32));
  Jagged batch = on_gpu(random_batch(gpu, 4, 1, false));
  EXPECT_THAT(user_error([&] { pool(gpu, random_batch(gpu, 4, 1, false)); }),
              HasSubstr("values must be"));
  Jagged bad = batch;
  bad.values = batch.values.clone();
  bad.values[batch.values.numel() - 1] = 20;
  EXPECT_THAT(user_error([&] { pool(gpu, bad); }), HasSubstr("id 20 of feature 5"));
  bad.values[batch.values.numel() - 1] = -1;
  EXPECT_THAT(user_error([&] { pool(gpu, bad); }), HasSubstr("id -1 of feature 5"));
  bad = batch;
  bad.offsets = batch.offsets.clone();
  bad.offsets[3] = batch.offsets[4] + 1;
  EXPECT_THAT(user_error([&] { pool(gpu, bad); }), HasSubstr("offsets must ascend"));
  bad.offsets = batch.offsets + 1;
  EXPECT_THAT(user_error([&] { pool(gpu, bad); }), HasSubstr("offsets must go from 0"));
  EXPECT_THAT(user_error([&] { update(gpu, {{batch, at::zeros({4, gpu.columns()})}}); }),
              HasSubstr("Float on cuda:0"));
  PackSpec wide = {.tables = {{"w", 2, 1025}}, .feature_table = {0}};
  EXPECT_THAT(user_error([&] { on_gpu(wide); }), HasSubstr("at most 1024"));
  wide.row_dtype = RowDtype::kMXFP8;
  EXPECT_THAT(user_error([&] { on_gpu(wide); }), HasSubstr("not mxfp8"));
}

/// Tables of rows with 8- and 16-byte words and of an odd width, for tiers and dynamic tables.
PackSpec large_spec(OptimizerKind kind, RowDtype dtype) {
  return {.tables = {{"large", 3000, 16}, {"middle", 700, 5, Pooling::kMean}, {"small", 20, 36}},
          .feature_table = {0, 1, 0, 2},
          .optimizer = {.kind = kind, .lr = 0.05, .eps = 1e-3, .weight_decay = 0.01},
          .seed = 3,
          .row_dtype = dtype};
}

/// Returns a batch in which a part of the ids is new in each step and a part comes from few rows.
Jagged skewed_batch(const PackedTables& tables, uint64_t step) {
  Jagged batch = random_batch(tables, 24, step, step % 2 == 0);
  const at::Tensor few =
      at::rand({batch.values.numel()}, at::detail::createCPUGenerator(step)) < 0.7;
  batch.values = at::where(few, batch.values % 20, batch.values);
  return batch;
}

/// Tiers have the bits of plain tables on the GPU: the same kernels compute both.
TEST_F(CudaTables, TiersHaveTheBitsOfTablesOnTheGpu) {
  for (const RowDtype dtype : {RowDtype::kFloat32, RowDtype::kBFloat16})
    for (const OptimizerKind kind : {OptimizerKind::kRowWiseAdagrad, OptimizerKind::kAdam})
      for (const TierPolicy policy : {TierPolicy::kHot, TierPolicy::kLru, TierPolicy::kLfu}) {
        SCOPED_TRACE(fmt::format("{}, optimizer {}, policy {}", name(dtype), static_cast<int>(kind),
                                 static_cast<int>(policy)));
        PackedTables plain = on_gpu(large_spec(kind, dtype));
        TieredTables tiers(plain.spec(),
                           {.policy = policy,
                            .memory_bytes = 50000,
                            .step_rows = 120,
                            .warmup_steps = 5,
                            .refresh_steps = 10},
                           {}, SlotMemory::on(at::kCUDA));
        ASSERT_LT(tiers.fast_rows(0), 1000);
        for (uint64_t step = 1; step <= 60; ++step) {
          const Jagged batch = skewed_batch(plain, step);
          const at::Tensor gradient = normal({24, plain.columns()}, step).to(at::kCUDA);
          const SlotTransfers before = tiers.transfers();
          const Jagged slots = on_gpu(tiers.begin(batch));
          expect_same_bits(pool(tiers.fast(), slots).cpu(), pool(plain, on_gpu(batch)).cpu());
          update(tiers.fast(), {{slots, gradient}});
          update(plain, {{on_gpu(batch), gradient}});
          tiers.end();
          EXPECT_LE(tiers.transfers().to_slots - before.to_slots, 2);
          EXPECT_LE(tiers.transfers().from_slots - before.from_slots, 2);
          const Jagged other = skewed_batch(plain, 1000 + step);
          const at::Tensor y = at::empty({24, plain.columns()}, gradient.options());
          tiers.pool_into(other, y);
          expect_same_bits(y.cpu(), pool(plain, on_gpu(other)).cpu());
        }
        for (int64_t t = 0; t < 3; ++t) {
          const auto [weight, state] =
              tiers.rows(t, 0, plain.spec().tables[static_cast<size_t>(t)].rows);
          EXPECT_TRUE(at::equal(weight, plain.stored(t).cpu())) << "table " << t;
          expect_same_bits(state, plain.packed_state(t).cpu());
        }
        EXPECT_GT(tiers.counters().rows_read, 20);
      }
}

/// Admission and eviction are the CPU's, and rows agree with the CPU's, with and without tiers.
TEST_F(CudaTables, DynamicTablesAgreeWithTheCpu) {
  const HashedOptions options = {.admission = Admission::kCount,
                                 .min_count = 2,
                                 .max_candidates = 500,
                                 .eviction = Eviction::kAge,
                                 .evict_steps = 4,
                                 .max_age = 8};
  for (const RowDtype dtype : {RowDtype::kFloat32, RowDtype::kBFloat16}) {
    const PackSpec spec = large_spec(OptimizerKind::kAdam, dtype);
    const TierOptions tiers = {.memory_bytes = dtype == RowDtype::kFloat32 ? 52000 : 45000,
                               .step_rows = 120,
                               .warmup_steps = 5};
    const PackedTables ids(spec);
    HashedTables cpu(spec, options),
        gpu(spec, options, Changes::kUntracked, std::nullopt, SlotMemory::on(at::kCUDA)),
        tiered(spec, options, Changes::kUntracked, tiers, SlotMemory::on(at::kCUDA));
    for (uint64_t step = 1; step <= 40; ++step) {
      Jagged keys = skewed_batch(ids, step);
      keys.values = keys.values % 300;  // they come again before they are evicted
      const at::Tensor gradient = normal({24, ids.columns()}, step);
      std::vector<at::Tensor> pooled;
      for (HashedTables* tables : {&cpu, &gpu, &tiered}) {
        const bool there = tables != &cpu;
        const Jagged rows = tables->begin(keys), batch = there ? on_gpu(rows) : rows;
        pooled.push_back(pool(tables->packed(), batch).cpu());
        update(tables->packed(), {{batch, there ? gradient.to(at::kCUDA) : gradient}});
        tables->end();
      }
      expect_same_bits(pooled[2], pooled[1]);
      expect_close(pooled[1], pooled[0].to(at::kDouble), dtype == RowDtype::kFloat32 ? 1e-5 : 2e-2,
                   "pooled rows");
    }
    for (int64_t t = 0; t < 3; ++t) {
      const KeyedRows a = cpu.contents(t), b = gpu.contents(t), c = tiered.contents(t);
      EXPECT_TRUE(at::equal(b.known.keys, a.known.keys));
      EXPECT_TRUE(at::equal(b.candidates.keys, a.candidates.keys));
      EXPECT_TRUE(at::equal(c.known.keys, b.known.keys));
      EXPECT_TRUE(at::equal(c.weight, b.weight));
      expect_same_bits(c.state, b.state);
    }
    EXPECT_GT(gpu.counters().evicted, 50);
    EXPECT_EQ(gpu.transfers().waits, 0);
    EXPECT_GT(tiered.tiers()->counters().rows_read, 20);
  }
}

TEST_F(CudaTables, LookupsOfNothingAreNothing) {
  PackedTables gpu = on_gpu(spec_of(OptimizerKind::kAdam, RowDtype::kFloat32));
  const at::Tensor before = gpu.weight(0).clone();
  const Jagged none = on_gpu({ids_from({}), at::zeros({6 * 3 + 1}, at::kLong), {}, 6, 3});
  EXPECT_EQ(pool(gpu, none).count_nonzero().item<int64_t>(), 0);
  update(gpu, {{none, at::ones({3, gpu.columns()}, at::kCUDA)}});
  update(gpu, {});
  EXPECT_TRUE(at::equal(gpu.weight(0), before));
  EXPECT_EQ(gpu.steps(), 2);
}

}  // namespace
}  // namespace dovetail::embedding::cuda_test
