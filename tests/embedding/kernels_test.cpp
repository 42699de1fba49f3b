// The source of the GPU's embedding kernels runs on the CPU (cuda_on_cpu.h). Sorting, which CUB
// does on a GPU, is done here by its definition. Results are compared with the CPU's.
#include "tests/fit/cuda_on_cpu.h"
// The kernels need the definitions above.
#include "dovetail/embedding/cuda/move.cu"
#include "dovetail/embedding/cuda/pool.cu"
#include "dovetail/embedding/cuda/update.cu"
#undef __host__
#undef __global__
#undef __device__
#undef __shared__
#undef __align__
#undef __launch_bounds__

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "dovetail/embedding/pack/lookup_cuda.h"
#include "tests/embedding/testing.h"

namespace dovetail::embedding::kernels_test {
namespace {

using dovetail::testing::expect_close;
using dovetail::testing::expect_same_bits;
using dovetail::testing::normal;
using testing::ids_from;
using testing::random_batch;

constexpr OptimizerKind kKinds[] = {OptimizerKind::kSgd,     OptimizerKind::kMomentum,
                                    OptimizerKind::kAdagrad, OptimizerKind::kRowWiseAdagrad,
                                    OptimizerKind::kAdam,    OptimizerKind::kRowWiseAdam,
                                    OptimizerKind::kFtrl};

/// Widths for every size of team, with and without whole vectors. Table "a" has two features unless
/// `one_each`.
PackSpec spec_of(OptimizerKind kind, RowDtype dtype, bool one_each) {
  PackSpec spec = {.tables = {{"a", 97, 16},
                              {"b", 3, 5, Pooling::kMean},
                              {"c", 41, 64},
                              {"d", 50, 260},
                              {"e", 20, 1024}},
                   .feature_table = {1, 0, 2, 3, 4},
                   .optimizer = {.kind = kind, .lr = 0.05, .eps = 1e-3, .weight_decay = 0.01},
                   .seed = 3,
                   .row_dtype = dtype};
  if (!one_each) spec.feature_table.push_back(0);
  return spec;
}

at::Tensor pool_by_kernel(const PackedTables& tables, const Jagged& batch) {
  const PackLayout layout(tables);
  at::Tensor y = at::full({batch.samples, tables.columns()}, 7, at::kFloat);
  cuda::pool({.pack = layout.pack,
              .batch = cuda_batch(batch),
              .y = y.mutable_data_ptr<float>(),
              .columns = tables.columns()},
             nullptr);
  return y;
}

/// Runs the second half of an update. The first half follows from its definition. It lists the
/// occurrences of all micro-batches in the order of samples, features and places in the bag. Then
/// it sorts them by row.
void update_by_kernel(PackedTables& tables, const std::vector<PooledGradient>& micro_batches) {
  const PackLayout layout(tables);
  const int64_t features = layout.pack.num_features;
  const std::vector<uint64_t> keys_of_rounding = rounding_keys(tables);
  std::vector<CudaGradient> parts;
  std::vector<uint32_t> rows;
  std::vector<CudaOccurrence> listed;
  int64_t bags = 0;
  for (const auto& [batch, gradient] : micro_batches) {
    const CudaBatch in = cuda_batch(batch);
    parts.push_back({.batch = in,
                     .gradient = gradient.const_data_ptr<float>(),
                     .gradient_stride = gradient.stride(0),
                     .first_bag = bags,
                     .first_id = std::ssize(listed)});
    for (int64_t sample = 0; sample < in.samples; ++sample)
      for (int64_t f = 0; f < features; ++f) {
        const CudaFeature& feature = layout.features[static_cast<size_t>(f)];
        const int64_t begin = in.offsets[f * in.samples + sample],
                      end = in.offsets[f * in.samples + sample + 1];
        const float mean = feature.mean && end > begin ? 1.0f / static_cast<float>(end - begin) : 1;
        for (int64_t i = begin; i < end; ++i) {
          rows.push_back(static_cast<uint32_t>(
              layout.tables[static_cast<size_t>(feature.table)].first_row + in.values[i]));
          listed.push_back({static_cast<uint32_t>(bags + sample * features + f),
                            (in.weights == nullptr ? 1 : in.weights[i]) * mean});
        }
      }
    bags += in.samples * features;
  }
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return rows[i]; });
  std::vector<uint32_t> keys, begins, long_rows(rows.size()), counts(2);
  std::vector<CudaOccurrence> occurrences;
  for (const size_t i : order) {
    if (keys.empty() || keys.back() != rows[i])
      begins.push_back(static_cast<uint32_t>(keys.size()));
    keys.push_back(rows[i]);
    occurrences.push_back(listed[i]);
  }
  counts[0] = static_cast<uint32_t>(begins.size());
  cuda::update_rows({.pack = layout.pack,
                     .scalars = update_scalars(tables.spec().optimizer, tables.steps() + 1),
                     .rounding_keys = keys_of_rounding.data(),
                     .num_parts = std::ssize(parts),
                     .parts = parts.data(),
                     .parts_on_gpu = parts.data(),
                     .bags = bags,
                     .count = std::ssize(keys),
                     .row_bits = 32,
                     .bag_begins = nullptr,
                     .keys = nullptr,
                     .sorted_keys = keys.data(),
                     .occurrences = nullptr,
                     .sorted_occurrences = occurrences.data(),
                     .row_begins = begins.data(),
                     .long_rows = long_rows.data(),
                     .counts = counts.data(),
                     .scratch = nullptr,
                     .scratch_bytes = 0},
                    nullptr);
  tables.set_steps(tables.steps() + 1);
}

TEST(EmbeddingKernels, PoolAsTheCpuBitForBit) {
  for (const RowDtype dtype : {RowDtype::kFloat32, RowDtype::kBFloat16}) {
    const PackedTables tables(spec_of(OptimizerKind::kSgd, dtype, false));
    for (const int64_t samples : {1, 33, 257})
      for (const bool weighted : {false, true}) {
        const Jagged batch = random_batch(tables, samples, 7, weighted);
        expect_same_bits(pool_by_kernel(tables, batch), pool(tables, batch));
      }
  }
}

TEST(EmbeddingKernels, PoolsNarrowRowsOfOneTableAsTheCpu) {
  for (const int64_t dim : {1, 3, 4, 8, 12, 128, 130, 512}) {
    const PackedTables tables(PackSpec{.tables = {{"t", 11, dim}}, .feature_table = {0, 0}});
    const Jagged batch = random_batch(tables, 70, 2, true);
    expect_same_bits(pool_by_kernel(tables, batch), pool(tables, batch));
  }
}

TEST(EmbeddingKernels, PoolOfABadBatchStaysWithinMemory) {
  const PackedTables tables(PackSpec{.tables = {{"t", 11, 8}}, .feature_table = {0}});
  const Jagged good = {ids_from({1, 2, 3}), ids_from({0, 1, 2, 3}), {}, 1, 3};
  Jagged bad = good;
  bad.values = ids_from({1, int64_t{1} << 40, -3});
  const at::Tensor y = pool_by_kernel(tables, bad);
  expect_same_bits(y[0], tables.weight(0)[1]);
  EXPECT_EQ(y.narrow(0, 1, 2).count_nonzero().item<int64_t>(), 0);
  bad = good;
  bad.offsets = ids_from({-(int64_t{1} << 40), 2, 1, int64_t{1} << 40});
  EXPECT_EQ(pool_by_kernel(tables, bad).count_nonzero().item<int64_t>(), 0);
}

TEST(EmbeddingKernels, CheckFindsEachFault) {
  const PackedTables tables(
      PackSpec{.tables = {{"t", 11, 8}, {"u", 4, 8}}, .feature_table = {0, 1}});
  const auto is_bad = [&](const Jagged& batch) {
    int32_t bad = 0;
    cuda::check({.batch = cuda_batch(batch),
                 .features = 2,
                 .rows = tables.feature_rows().data(),
                 .bad = &bad},
                nullptr);
    return bad != 0;
  };
  const auto batch = [](const std::vector<int64_t>& values, const std::vector<int64_t>& offsets) {
    const auto samples = static_cast<int64_t>(offsets.size() - 1) / 2;
    return Jagged{ids_from(values), ids_from(offsets), {}, 2, samples};
  };
  EXPECT_FALSE(is_bad(batch({10, 0, 3}, {0, 1, 2, 2, 3})));
  EXPECT_TRUE(is_bad(batch({11, 0, 3}, {0, 1, 2, 2, 3})));
  EXPECT_TRUE(is_bad(batch({10, 0, 4}, {0, 1, 2, 2, 3})));
  EXPECT_TRUE(is_bad(batch({10, -1, 3}, {0, 1, 2, 2, 3})));
  EXPECT_TRUE(is_bad(batch({10, 0, 3}, {0, 2, 1, 2, 3})));
  EXPECT_TRUE(is_bad(batch({10, 0, 3}, {1, 1, 2, 2, 3})));
  EXPECT_TRUE(is_bad(batch({10, 0, 3}, {0, 1, 2, 2, 2})));
  EXPECT_FALSE(is_bad(batch({}, {0})));
  EXPECT_TRUE(is_bad(batch({3}, {0})));
}

TEST(EmbeddingKernels, UpdateAsTheCpu) {
  for (const OptimizerKind kind : kKinds)
    for (const bool one_each : {false, true}) {
      SCOPED_TRACE(fmt::format("optimizer {}, {}", static_cast<int>(kind), one_each));
      PackedTables cpu(spec_of(kind, RowDtype::kFloat32, one_each)), gpu(cpu.spec());
      for (uint64_t step = 1; step <= 3; ++step) {
        const Jagged batch = random_batch(cpu, 67, step, step % 2 == 0);
        const at::Tensor gradient = normal({67, cpu.columns()}, step);
        std::vector<PooledGradient> parts = {{batch, gradient}};
        if (step > 1)
          parts = {{samples_of(batch, 0, 20), gradient.narrow(0, 0, 20)},
                   {samples_of(batch, 20, 47), gradient.narrow(0, 20, 47)}};
        update(cpu, parts);
        update_by_kernel(gpu, parts);
      }
      for (int64_t t = 0; t < 5; ++t) {
        expect_close(gpu.weight(t), cpu.weight(t).to(at::kDouble), 2e-6, "rows");
        if (kind != OptimizerKind::kSgd)
          expect_close(gpu.packed_state(t), cpu.packed_state(t).to(at::kDouble), 2e-6, "state");
      }
    }
}

TEST(EmbeddingKernels, RoundRowsAsTheCpu) {
  PackedTables cpu(spec_of(OptimizerKind::kAdagrad, RowDtype::kBFloat16, false)), gpu(cpu.spec());
  const Jagged batch = random_batch(cpu, 67, 1, false);
  const at::Tensor gradient = normal({67, cpu.columns()}, 1);
  update(cpu, {{batch, gradient}});
  update_by_kernel(gpu, {{batch, gradient}});
  for (int64_t t = 0; t < 5; ++t) {
    const at::Tensor differ = gpu.stored(t) != cpu.stored(t);
    EXPECT_LT(differ.sum().item<int64_t>(), 1 + differ.numel() / 1000) << "table " << t;
  }
}

TEST(EmbeddingKernels, RowsOfManyOccurrencesAreTheirSum) {
  for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kRowWiseAdagrad}) {
    const int64_t samples = 2000;
    const PackSpec spec{
        .tables = {{"hot", 5, 16}}, .feature_table = {0}, .optimizer = {.kind = kind, .lr = 0.01}};
    PackedTables cpu(spec), gpu(spec);
    const at::Tensor ids = at::arange(samples).remainder(3).mul(at::arange(samples).remainder(2));
    const Jagged batch = {ids, at::arange(samples + 1), {}, 1, samples};
    const at::Tensor gradient = normal({samples, 16}, 1);
    update(cpu, {{batch, gradient}});
    update_by_kernel(gpu, {{batch, gradient}});
    expect_close(gpu.weight(0), cpu.weight(0).to(at::kDouble), 1e-5, "rows");
  }
}

/// Rows come, leave, do both, or become zeros. Widths have each size of words.
TEST(EmbeddingKernels, MoveAsTheCpu) {
  for (const RowDtype dtype : {RowDtype::kFloat32, RowDtype::kBFloat16})
    for (const OptimizerKind kind : kKinds) {
      SCOPED_TRACE(fmt::format("{}, optimizer {}", name(dtype), static_cast<int>(kind)));
      PackedTables cpu(spec_of(kind, dtype, false)), gpu(cpu.spec());
      std::vector<CudaRowMove> moves;
      int64_t in = 0, out = 0;
      for (uint32_t t = 0; t < 5; ++t) {
        const TableSpec& table = cpu.spec().tables[t];
        const int64_t record =
            padded(row_bytes(dtype, table.dim)) + padded(4 * state_per_row(kind, table.dim));
        for (uint32_t slot = 0; slot < table.rows; ++slot) {
          CudaRowMove move = {.out = CudaRowMove::kNone,
                              .in = CudaRowMove::kNone,
                              .table = t,
                              .slot = slot,
                              .row = 1000 * t + slot};
          if (slot % 2 == 0) move.in = std::exchange(in, in + record);
          if (slot % 5 == 1) move.in = CudaRowMove::kZeros;
          if (slot % 3 == 0) move.out = std::exchange(out, out + record);
          moves.push_back(move);
        }
      }
      const at::Tensor coming = at::randint(0, 127, {in}, at::kByte);  // no NaN
      at::Tensor leaving[2], row_of[2];
      for (int i = 0; i < 2; ++i) {
        leaving[i] = at::zeros({out}, at::kByte);
        row_of[i] = at::zeros({97 + 3 + 41 + 50 + 20}, at::kInt);
        CudaMoveProblem problem = {.pack = {},
                                   .moves = moves.data(),
                                   .count = std::ssize(moves),
                                   .in = static_cast<const char*>(coming.const_data_ptr()),
                                   .out = static_cast<char*>(leaving[i].mutable_data_ptr()),
                                   .row_of = static_cast<uint32_t*>(row_of[i].mutable_data_ptr())};
        if (i == 0) {
          move_rows(cpu, problem);
          continue;
        }
        const PackLayout layout(gpu);
        problem.pack = layout.pack;
        cuda::move(problem, nullptr);
      }
      EXPECT_TRUE(at::equal(leaving[0], leaving[1]));
      EXPECT_TRUE(at::equal(row_of[0], row_of[1]));
      for (int64_t t = 0; t < 5; ++t) {
        EXPECT_TRUE(at::equal(cpu.stored(t).view(at::kByte), gpu.stored(t).view(at::kByte)));
        expect_same_bits(gpu.packed_state(t), cpu.packed_state(t));
        EXPECT_EQ(cpu.stored(t)[1].count_nonzero().item<int64_t>(), 0);
      }
    }
}

/// Slots hold rows of a larger table. Rows are rounded by their numbers there.
TEST(EmbeddingKernels, RoundRowsInSlotsAsTheCpu) {
  PackedTables cpu(spec_of(OptimizerKind::kAdagrad, RowDtype::kBFloat16, false)), gpu(cpu.spec()),
      by_slot(cpu.spec());
  std::vector<uint32_t> row_of(97);
  for (uint32_t slot = 0; slot < 97; ++slot) row_of[slot] = 7919 * (slot + 1);
  for (PackedTables* tables : {&cpu, &gpu})
    for (int64_t t = 0; t < 5; ++t) tables->set_rows_held(t, row_of.data());
  const Jagged batch = random_batch(cpu, 67, 1, false);
  const at::Tensor gradient = normal({67, cpu.columns()}, 1);
  update(cpu, {{batch, gradient}});
  update_by_kernel(gpu, {{batch, gradient}});
  update_by_kernel(by_slot, {{batch, gradient}});
  for (int64_t t = 0; t < 5; ++t) {
    const at::Tensor differ = gpu.stored(t) != cpu.stored(t),
                     others = by_slot.stored(t) != cpu.stored(t);
    EXPECT_LT(differ.sum().item<int64_t>(), 1 + differ.numel() / 1000) << "table " << t;
    EXPECT_GT(others.sum().item<int64_t>(), others.numel() / 20) << "table " << t;
  }
}

TEST(EmbeddingKernels, DividersDivide) {
  for (const uint32_t by : {1u, 2u, 3u, 7u, 26u, 64u, 1000u, 65537u, 0x7fffffffu})
    for (const uint32_t x : {0u, 1u, by - 1, by, 3 * (by / 3), 0x7ffffffeu, 0x7fffffffu})
      EXPECT_EQ(cuda::Divider(by).divided(x), x / by) << x << " / " << by;
}

}  // namespace
}  // namespace dovetail::embedding::kernels_test
