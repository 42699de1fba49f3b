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
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <span>

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

/// Lists the occurrences of all micro-batches in the order of samples, features and places in the
/// bag.
void list_by_definition(const CudaUpdateProblem& p) {
  size_t next = 0;
  for (const CudaGradient& part : std::span(p.parts, static_cast<size_t>(p.num_parts))) {
    const CudaBatch& in = part.batch;
    for (int64_t sample = 0; sample < in.samples; ++sample)
      for (int64_t f = 0; f < p.pack.num_features; ++f) {
        const CudaFeature& feature = p.pack.features[f];
        const int64_t begin = in.offsets[f * in.samples + sample],
                      end = in.offsets[f * in.samples + sample + 1];
        const float mean = feature.mean && end > begin ? 1.0f / static_cast<float>(end - begin) : 1;
        for (int64_t i = begin; i < end; ++i) {
          p.keys[next] =
              static_cast<uint32_t>(p.pack.tables[feature.table].first_row + in.values[i]);
          p.occurrences[next++] = {
              static_cast<uint32_t>(part.first_bag + sample * p.pack.num_features + f),
              (in.weights == nullptr ? 1 : in.weights[i]) * mean};
        }
      }
  }
}

/// Does the first half of an update by its definition. Lists the occurrences unless the caller has
/// listed them, and sorts them by row. The kernels do the second half.
void update_by_definition(const CudaUpdateProblem& p) {
  const auto count = static_cast<size_t>(p.count);
  const std::span parts(p.parts, static_cast<size_t>(p.num_parts));
  if (std::ranges::any_of(parts, [](const CudaGradient& part) { return part.batch.samples > 0; }))
    list_by_definition(p);
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return p.keys[i]; });
  for (size_t i = 0; i < count; ++i) {
    p.sorted_keys[i] = p.keys[order[i]];
    p.sorted_occurrences[i] = p.occurrences[order[i]];
    if (i == 0 || p.sorted_keys[i] != p.sorted_keys[i - 1])
      p.row_begins[p.counts[0]++] = static_cast<uint32_t>(i);
  }
  cuda::update_rows(p, nullptr);
}

constexpr CudaKernels kOnTheCpu = {
    .check = nullptr,
    .pool = nullptr,
    .update_scratch = [](int64_t, int64_t, int) { return size_t{0}; },
    .update = update_by_definition,
    .move = nullptr};

void update_by_kernel(PackedTables& tables, const std::vector<PooledGradient>& micro_batches) {
  update_on_gpu(tables, micro_batches, kOnTheCpu);
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

/// Gradients of single rows from two ranks, as RowTransfer reads them. Rows occur more than once.
/// The last table has none.
std::vector<RowGradients> single_rows(const PackSpec& spec, uint64_t seed) {
  std::vector<RowGradients> ranks(2);
  auto generator = at::detail::createCPUGenerator(seed);
  for (int64_t r = 0; r < 2; ++r) {
    for (size_t t = 0; t < spec.tables.size(); ++t) {
      const int64_t count = t + 1 == spec.tables.size() ? 0 : 20 * r + 7;
      auto& [rows, gradients] = ranks[static_cast<size_t>(r)];
      rows.push_back(at::randint(spec.tables[t].rows, {count}, generator, at::kLong));
      gradients.push_back(normal({count, spec.tables[t].dim}, 10 * seed + t));
    }
  }
  return ranks;
}

/// Dims with divisors 1 and 4, and equal dims.
TEST(EmbeddingKernels, UpdateSingleRowsAsTheCpu) {
  for (const OptimizerKind kind : kKinds)
    for (const std::vector<int64_t>& dims :
         {std::vector<int64_t>{16, 5, 64, 260, 1024}, {16, 4, 64, 260, 8}, {32, 32, 32, 32, 32}})
      for (const RowDtype dtype : {RowDtype::kFloat32, RowDtype::kBFloat16}) {
        SCOPED_TRACE(fmt::format("optimizer {}, dims {}, {}", static_cast<int>(kind),
                                 fmt::join(dims, " "), name(dtype)));
        PackSpec spec = spec_of(kind, dtype, true);
        for (size_t t = 0; t < dims.size(); ++t) spec.tables[t].dim = dims[t];
        PackedTables cpu(spec), gpu(spec);
        for (uint64_t step = 1; step <= (dtype == RowDtype::kFloat32 ? 3 : 1); ++step) {
          const std::vector<RowGradients> ranks = single_rows(spec, step);
          update_single_rows(cpu, ranks);
          update_single_rows_on_gpu(gpu, ranks, kOnTheCpu);
          gpu.set_steps(gpu.steps() + 1);
        }
        const double tolerance = dtype == RowDtype::kFloat32 ? 2e-6 : 0x1p-7;
        for (int64_t t = 0; t < 5; ++t) {
          expect_close(gpu.weight(t), cpu.weight(t).to(at::kDouble), tolerance, "rows");
          if (kind != OptimizerKind::kSgd)
            expect_close(gpu.packed_state(t), cpu.packed_state(t).to(at::kDouble), 2e-6, "state");
        }
      }
}

TEST(EmbeddingKernels, UpdateOfNoSingleRowsChangesNothing) {
  const PackSpec spec = spec_of(OptimizerKind::kAdam, RowDtype::kFloat32, true);
  PackedTables tables(spec);
  const at::Tensor before = tables.weight(0).clone();
  RowGradients none;
  for (const TableSpec& table : spec.tables) {
    none.rows.push_back(at::empty({0}, at::kLong));
    none.gradient.push_back(at::empty({0, table.dim}));
  }
  update_single_rows_on_gpu(tables, {none, none}, kOnTheCpu);
  update_single_rows_on_gpu(tables, {}, kOnTheCpu);
  EXPECT_TRUE(at::equal(tables.weight(0), before));
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
