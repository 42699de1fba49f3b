// ctest-labels: threads
#include "dovetail/embedding/ranks/row_transfer.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "dovetail/base/rng.h"
#include "dovetail/embedding/ranks/distributed.h"
#include "tests/comm/ranks.h"
#include "tests/embedding/testing.h"

namespace dovetail::embedding::row_transfer_test {
namespace {

using dovetail::testing::expect_close;
using dovetail::testing::expect_same_bits;
using dovetail::testing::normal;
using testing::ids_from;

constexpr auto kRow = Sharding::kRowWise, kTable = Sharding::kTableWise,
               kColumn = Sharding::kColumnWise, kReplicated = Sharding::kReplicated;
constexpr int64_t kDim = 16, kWord = 4;

/// Returns the pooled rows of a step with one micro-batch.
at::Tensor train_step(DistributedTables& tables, const Jagged& batch, const at::Tensor& gradient) {
  TableStep step = tables.start(batch, 100, 1);
  tables.begin(step);
  tables.gather(step, 0);
  at::Tensor pooled = tables.wait(step, 0);
  tables.add_gradient(step, 0, gradient);
  tables.update(step);
  return pooled;
}

/// A user, and a candidate and a sequence of `length` places that share the table "item".
PackSpec sequences(int64_t length, int64_t rows = 500) {
  PackSpec spec{.tables = {{"item", rows, kDim}, {"user", 300, kDim}},
                .feature_table = {1, 0},
                .optimizer = {.kind = OptimizerKind::kAdagrad, .lr = 0.05, .eps = 1e-3},
                .seed = 3};
  for (int64_t event = 0; event < length; ++event) spec.feature_table.push_back(0);
  return spec;
}

/// Each sample has a user, a candidate and up to 5 events. Ids are drawn from few rows.
Jagged history(const PackSpec& spec, int64_t samples, uint64_t seed) {
  std::vector<int64_t> values, offsets = {0};
  for (size_t f = 0; f < spec.feature_table.size(); ++f) {
    for (int64_t b = 0; b < samples; ++b) {
      const auto place = static_cast<uint64_t>(b) * 1000 + f;
      const auto events =
          static_cast<size_t>(random_below(seed, RandomStream::kTest, static_cast<uint64_t>(b), 6));
      if (f < 2 + events)
        values.push_back(static_cast<int64_t>(random_below(seed, RandomStream::kTest, place, 40)));
      offsets.push_back(std::ssize(values));
    }
  }
  return {.values = ids_from(values),
          .offsets = ids_from(offsets),
          .weights = {},
          .features = std::ssize(spec.feature_table),
          .samples = samples};
}

/// Bytes that `rank` sends to the others in a step, by the definition of Transfer::kRows. `sent[r]`
/// are the batches of the ranks.
int64_t expected_bytes(const PackSpec& spec, const TablePlacement& plan,
                       const std::vector<Jagged>& batches, int64_t rank, int64_t float_bytes = 4) {
  const auto ranks = static_cast<int64_t>(batches.size());
  int64_t bytes = (ranks - 1) * std::ssize(plan.packs) * 8;  // counts of the messages
  for (size_t t = 0; t < spec.tables.size(); ++t) {
    const TableSpec& table = spec.tables[t];
    const Sharding sharding = plan.tables[t].sharding;
    const int64_t id_bytes = table.hashed ? 2 * kWord + kWord : kWord;
    const int64_t features = std::ranges::count(spec.feature_table, static_cast<int64_t>(t));
    // distinct[r]: distinct ids of rank r
    std::vector<std::set<int64_t>> distinct(batches.size());
    for (size_t r = 0; r < batches.size(); ++r)
      for (int64_t f = 0; f < batches[r].features; ++f)
        for (int64_t i = batches[r].offsets[f * batches[r].samples].item<int64_t>();
             spec.feature_table[static_cast<size_t>(f)] == static_cast<int64_t>(t) &&
             i < batches[r].offsets[(f + 1) * batches[r].samples].item<int64_t>();
             ++i)
          distinct[r].insert(batches[r].values[i].item<int64_t>());
    const auto held = [&](size_t of, int64_t by) {  // ids of `of` whose rows are on `by`
      return std::ranges::count_if(distinct[of], [&](int64_t id) {
        if (sharding == kRow)
          return static_cast<int64_t>(static_cast<uint64_t>(id) % static_cast<uint64_t>(ranks)) ==
                 by;
        return sharding != kTable || plan.tables[t].rank == by;
      });
    };
    for (int64_t other = 0; other < ranks; ++other) {
      if (other == rank) continue;
      const auto dim = [&](int64_t of) {
        return local_table(spec, plan, static_cast<int64_t>(t), of).dim;
      };
      const bool asks = sharding != kTable || plan.tables[t].rank == other,
                 answers = sharding != kTable || plan.tables[t].rank == rank;
      // Ids to the other, and gradients of its rows.
      if (asks)
        bytes += kWord * features +
                 held(static_cast<size_t>(rank), other) * (id_bytes + float_bytes * dim(other));
      // Rows for the other.
      if (answers && sharding != kReplicated)
        bytes += held(static_cast<size_t>(other), rank) * float_bytes * dim(rank);
    }
  }
  return bytes;
}

TEST(RowTransfer, SendsEachDistinctRowOnceEachWay) {
  for (const Sharding sharding : {kRow, kTable, kColumn, kReplicated}) {
    for (const int ranks : {2, 3}) {
      for (const bool hashed : {false, true}) {
        if (hashed && sharding == kColumn) continue;
        PackSpec spec = sequences(20);
        for (TableSpec& table : spec.tables) table.hashed = hashed;
        const TablePlacement plan =
            place_tables(spec, {.ranks = ranks, .sharding = sharding, .transfer = Transfer::kRows});
        std::vector<Jagged> batches;
        batches.reserve(static_cast<size_t>(ranks));
        for (int r = 0; r < ranks; ++r)
          batches.push_back(history(spec, 10 + r, static_cast<uint64_t>(r) + 1));
        expect_all_succeed(ranks, [&](const std::shared_ptr<comm::Group>& group) {
          DistributedTables tables(spec, plan, group);
          const Jagged& own = batches[static_cast<size_t>(group->rank())];
          TableStep step = tables.start(own, 20, 1);
          tables.begin(step);
          tables.gather(step, 0);
          const at::Tensor pooled = tables.wait(step, 0);
          tables.add_gradient(step, 0, at::ones_like(pooled));
          tables.update(step);
          EXPECT_EQ(tables.traffic().bytes_sent, expected_bytes(spec, plan, batches, group->rank()))
              << name(sharding) << ", " << ranks << " ranks, hashed " << hashed;
        });
      }
    }
  }
}

TEST(RowTransfer, EventsThatDoNotExistCostALengthOfTheirFeature) {
  std::map<int64_t, int64_t> bytes;
  for (const int64_t length : {5, 20, 200}) {
    const PackSpec spec = sequences(length);
    expect_all_succeed(2, [&](const std::shared_ptr<comm::Group>& group) {
      DistributedTables tables(
          spec, place_tables(spec, {.ranks = 2, .sharding = kRow, .transfer = Transfer::kRows}),
          group);
      const Jagged batch = history(spec, 32, static_cast<uint64_t>(group->rank()) + 1);
      train_step(tables, batch, at::ones({32, tables.columns()}));
      if (group->rank() == 0) bytes[length] = tables.traffic().bytes_sent;
    });
  }
  EXPECT_EQ(bytes[20] - bytes[5], 15 * kWord);
  EXPECT_EQ(bytes[200] - bytes[5], 195 * kWord);
}

/// The rows after two steps are compared with a float64 update by the definition.
TEST(RowTransfer, TrainsTheRowsOfTheDefinition) {
  const PackSpec spec = sequences(8);
  const PackedTables shapes(spec);
  for (const Sharding sharding : {kRow, kTable, kColumn, kReplicated}) {
    testing::Reference reference(shapes);
    std::vector<at::Tensor> pooled(2);
    for (uint64_t step = 1; step <= 2; ++step)
      reference.update(history(spec, 24, step), normal({24, shapes.columns()}, step));
    std::vector<at::Tensor> weights;
    expect_all_succeed(2, [&](const std::shared_ptr<comm::Group>& group) {
      DistributedTables tables(
          spec, place_tables(spec, {.ranks = 2, .sharding = sharding, .transfer = Transfer::kRows}),
          group);
      const int64_t first = group->rank() == 0 ? 0 : 10, count = group->rank() == 0 ? 10 : 14;
      for (uint64_t step = 1; step <= 2; ++step)
        train_step(tables, samples_of(history(spec, 24, step), first, count),
                   normal({24, shapes.columns()}, step).narrow(0, first, count));
      for (int64_t t = 0; t < 2; ++t) {
        const TableContents contents = tables.read(t);
        if (group->rank() == 0) weights.push_back(contents.weight.clone());
      }
    });
    for (size_t t = 0; t < 2; ++t) expect_close(weights[t], reference.weight[t], 1e-5, "weight");
  }
}

TEST(RowTransfer, SendsInTheFormatThatIsAsked) {
  const PackSpec spec = sequences(8);
  const PackedTables before(spec);
  const TablePlacement plan =
      place_tables(spec, {.ranks = 2, .sharding = kTable, .transfer = Transfer::kRows});
  std::vector<Jagged> batches = {history(spec, 12, 1), history(spec, 12, 2)};
  for (const comm::Payload payload : {comm::Payload::kBFloat16, comm::Payload::kMXFP8}) {
    const bool bf16 = payload == comm::Payload::kBFloat16;
    expect_all_succeed(2, [&](const std::shared_ptr<comm::Group>& group) {
      DistributedTables tables(spec, plan, group, {payload, payload});
      const Jagged& own = batches[static_cast<size_t>(group->rank())];
      const at::Tensor exact = pool(before, own),
                       pooled = train_step(tables, own, normal(exact.sizes(), 3)),
                       error = (pooled - exact).norm() / exact.norm();
      EXPECT_LT(error.item<double>(), bf16 ? 5e-3 : 7e-2);
      EXPECT_GT(error.item<double>(), bf16 ? 2e-4 : 3e-3);
      // A row of 16 elements has 2 bytes for each, or 1 for each and one scale.
      if (bf16) {
        EXPECT_EQ(tables.traffic().bytes_sent,
                  expected_bytes(spec, plan, batches, group->rank(), 2));
      }
    });
  }
}

TEST(RowTransfer, RowsOfTiersAreTheSameInTrainingAndEvaluation) {
  for (const RowDtype dtype : {RowDtype::kFloat32, RowDtype::kBFloat16, RowDtype::kMXFP8}) {
    PackSpec spec = sequences(8, 4000);
    spec.row_dtype = dtype;
    const TierOptions tiers{.policy = TierPolicy::kLru, .memory_bytes = 60000, .step_rows = 100};
    for (const Sharding sharding : {kRow, kTable}) {
      const TablePlacement plan =
          place_tables(spec, {.ranks = 2, .sharding = sharding, .transfer = Transfer::kRows});
      expect_all_succeed(2, [&](const std::shared_ptr<comm::Group>& group) {
        DistributedTables in_memory(spec, plan, group->split({{0, 1}})),
            tiered(spec, plan, group, {}, tiers);
        const auto rank = static_cast<uint64_t>(group->rank());
        int64_t ids = 0;
        for (uint64_t step = 1; step <= 4; ++step) {
          const Jagged batch = history(spec, 16, 2 * step + rank);
          ids += batch.values.numel();
          const at::Tensor gradient = normal({16, tiered.columns()}, step);
          expect_same_bits(train_step(tiered, batch, gradient),
                           train_step(in_memory, batch, gradient), "pooled");
          const Jagged held_out = history(spec, 16, 100 + step);
          expect_same_bits(tiered.lookup(held_out), in_memory.lookup(held_out), "held out");
        }
        // Every occurrence is an access, on one of the ranks.
        const TierCounters counters = *tiered.tier_counters();
        at::Tensor sums = at::tensor({counters.hits + counters.misses - ids}, at::kLong);
        EXPECT_GT(counters.hits, 0);
        const at::Tensor all =
            comm::Exchange(group, {{1, 1}, {1, 1}}).start(at::cat({sums, sums})).wait();
        EXPECT_EQ(all.sum().item<int64_t>(), 0);
      });
    }
  }
}

}  // namespace
}  // namespace dovetail::embedding::row_transfer_test
