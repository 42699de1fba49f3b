// ctest-labels: threads
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dovetail/base/error.h"
#include "tests/embedding/layouts.h"

namespace dovetail::embedding::distributed_test {
namespace {

using dovetail::testing::expect_close;
using dovetail::testing::expect_same_bits;
using dovetail::testing::normal;
using testing::batch_of;
using testing::gradient_of;
using ::testing::HasSubstr;
using testing::kSteps;
using testing::Layout;
using testing::options_of;
using testing::spec_of;
using testing::step_on_rank;
using ::testing::ThrowsMessage;
using testing::train_distributed;
using testing::train_packed;
using testing::Trained;

class EveryLayout : public ::testing::TestWithParam<Layout> {};

TEST_P(EveryLayout, IsOnePackOnOneRank) {
  const Layout& layout = GetParam();
  const Trained expected = train_packed(layout), found = train_distributed(layout);
  // Bags with rows on several ranks are summed in another order. Bags within one rank are not.
  const bool bags = layout.transfer == Transfer::kBags;
  const bool same_bits =
      layout.ranks() == 1 || (bags && layout.sharding && *layout.sharding != Sharding::kRowWise);
  // Single rows are pooled by the samples' rank, but their gradients are summed by ranks.
  if (!bags) expect_same_bits(found.pooled[0], expected.pooled[0], "first pooled rows");
  const auto compare = [&](const at::Tensor& a, const at::Tensor& b, const char* what) {
    if (same_bits) {
      expect_same_bits(a, b, what);
    } else {
      expect_close(a, b.to(at::kDouble), 1e-6, what);
    }
  };
  for (size_t i = 0; i < kSteps; ++i) compare(found.pooled[i], expected.pooled[i], "pooled");
  for (size_t t = 0; t < expected.weights.size(); ++t) {
    compare(found.weights[t], expected.weights[t], "weight");
    if (expected.states[t].numel() > 0) compare(found.states[t], expected.states[t], "state");
  }
}

constexpr auto kRow = Sharding::kRowWise, kTable = Sharding::kTableWise,
               kColumn = Sharding::kColumnWise, kReplicated = Sharding::kReplicated;

INSTANTIATE_TEST_SUITE_P(
    Embedding, EveryLayout,
    ::testing::Values(
        Layout{.sharding = {}, .samples = {12}, .groups = 2, .micro_batches = 3},
        Layout{.sharding = {},
               .samples = {12},
               .packing = false,
               .weighted = true,
               .pooling = Pooling::kMean},
        Layout{.sharding = {},
               .samples = {12},
               .packing = false,
               .groups = 3,
               .optimizer = OptimizerKind::kSgd},
        Layout{.sharding = kRow, .samples = {12}, .pooling = Pooling::kMean},
        Layout{.sharding = kColumn, .samples = {12}, .pooling = Pooling::kMean},
        Layout{.sharding = kReplicated, .samples = {12}, .pooling = Pooling::kMean},
        Layout{.sharding = kRow, .samples = {7, 5}},
        Layout{
            .sharding = kRow, .samples = {7, 5}, .groups = 2, .micro_batches = 2, .weighted = true},
        Layout{.sharding = kRow,
               .samples = {4, 0, 5, 3},
               .pooling = Pooling::kMean,
               .optimizer = OptimizerKind::kRowWiseAdagrad},
        Layout{.sharding = kRow,
               .samples = {4, 0, 5},
               .packing = false,
               .micro_batches = 3,
               .weighted = true,
               .pooling = Pooling::kMean,
               .optimizer = OptimizerKind::kRowWiseAdagrad},
        Layout{.sharding = kTable, .samples = {7, 5}},
        Layout{.sharding = kTable,
               .samples = {7, 5, 1, 6, 2},
               .micro_batches = 2,
               .weighted = true,
               .pooling = Pooling::kMean,
               .optimizer = OptimizerKind::kRowWiseAdagrad},
        Layout{.sharding = kTable,
               .samples = {7, 5},
               .packing = false,
               .groups = 4,
               .micro_batches = 4},
        Layout{.sharding = kColumn, .samples = {7, 5}, .pooling = Pooling::kMean},
        Layout{.sharding = kColumn,
               .samples = {4, 3, 0, 5},
               .groups = 2,
               .micro_batches = 2,
               .weighted = true},
        Layout{.sharding = kColumn, .samples = {5, 6, 7}, .optimizer = OptimizerKind::kAdagrad},
        Layout{.sharding = kReplicated, .samples = {7, 5}, .micro_batches = 2},
        Layout{.sharding = kReplicated,
               .samples = {3, 0, 5},
               .groups = 3,
               .weighted = true,
               .pooling = Pooling::kMean},
        Layout{.sharding = {}, .samples = {7, 5}},
        Layout{.sharding = {},
               .samples = {4, 3, 5, 0},
               .groups = 3,
               .micro_batches = 2,
               .weighted = true,
               .optimizer = OptimizerKind::kRowWiseAdagrad}));

constexpr auto kRows = Transfer::kRows;

INSTANTIATE_TEST_SUITE_P(
    SingleRows, EveryLayout,
    ::testing::Values(
        Layout{.sharding = kRow, .samples = {12}, .transfer = kRows},
        Layout{.sharding = kRow, .samples = {7, 5}, .pooling = Pooling::kMean, .transfer = kRows},
        Layout{.sharding = kRow,
               .samples = {4, 0, 5, 3},
               .packing = false,
               .groups = 2,
               .micro_batches = 3,
               .weighted = true,
               .pooling = Pooling::kMean,
               .optimizer = OptimizerKind::kRowWiseAdagrad,
               .transfer = kRows},
        Layout{.sharding = kTable, .samples = {7, 5}, .transfer = kRows},
        Layout{.sharding = kTable,
               .samples = {7, 5, 1, 6, 2},
               .groups = 3,
               .micro_batches = 2,
               .weighted = true,
               .pooling = Pooling::kMean,
               .optimizer = OptimizerKind::kRowWiseAdagrad,
               .transfer = kRows},
        Layout{.sharding = kColumn, .samples = {7, 5}, .weighted = true, .transfer = kRows},
        Layout{.sharding = kColumn,
               .samples = {4, 3, 0, 5},
               .micro_batches = 2,
               .pooling = Pooling::kMean,
               .transfer = kRows},
        Layout{.sharding = kReplicated,
               .samples = {3, 0, 5},
               .micro_batches = 2,
               .weighted = true,
               .transfer = kRows},
        Layout{.sharding = {}, .samples = {4, 3, 5, 0}, .groups = 3, .transfer = kRows}));

TEST(DistributedTables, SingleRowsHaveTheSameBitsInAnyCut) {
  for (const Sharding sharding : {kRow, kTable, kColumn, kReplicated}) {
    const auto layout = [&](bool packing, int64_t groups, int64_t micro_batches) {
      return Layout{.sharding = sharding,
                    .samples = {7, 5},
                    .packing = packing,
                    .groups = groups,
                    .micro_batches = micro_batches,
                    .weighted = true,
                    .transfer = kRows};
    };
    const Trained once = train_distributed(layout(true, 1, 1));
    for (const Layout& cut : {layout(true, 1, 3), layout(false, 4, 1), layout(true, 2, 7)}) {
      const Trained found = train_distributed(cut);
      for (size_t i = 0; i < kSteps; ++i)
        expect_same_bits(found.pooled[i], once.pooled[i], ::testing::PrintToString(cut));
      for (size_t t = 0; t < once.weights.size(); ++t)
        expect_same_bits(found.weights[t], once.weights[t], ::testing::PrintToString(cut));
    }
  }
}

TEST(DistributedTables, RowsOfLowPrecisionHaveTheBitsOfOneRank) {
  constexpr auto kBFloat16 = RowDtype::kBFloat16, kMXFP8 = RowDtype::kMXFP8;
  for (const Layout& layout :
       {Layout{.sharding = {},
               .samples = {12},
               .packing = false,
               .micro_batches = 3,
               .row_dtype = kMXFP8},
        Layout{.sharding = kRow, .samples = {7, 5}, .micro_batches = 2, .row_dtype = kBFloat16},
        Layout{.sharding = kRow,
               .samples = {4, 0, 5, 3},
               .groups = 2,
               .weighted = true,
               .row_dtype = kBFloat16},
        Layout{.sharding = kRow, .samples = {7, 5}, .row_dtype = kMXFP8},
        Layout{.sharding = kRow,
               .samples = {4, 0, 5, 3},
               .optimizer = OptimizerKind::kRowWiseAdagrad,
               .row_dtype = kMXFP8},
        Layout{
            .sharding = kTable, .samples = {7, 5}, .pooling = Pooling::kMean, .row_dtype = kMXFP8},
        Layout{.sharding = kColumn, .samples = {7, 2, 1, 2}, .row_dtype = kBFloat16},
        Layout{
            .sharding = kReplicated, .samples = {3, 0, 5}, .micro_batches = 2, .row_dtype = kMXFP8},
        Layout{.sharding = {}, .samples = {4, 3, 5, 0}, .groups = 3, .row_dtype = kMXFP8}}) {
    const Trained expected = train_packed(layout), found = train_distributed(layout);
    for (size_t t = 0; t < expected.weights.size(); ++t) {
      expect_same_bits(found.weights[t], expected.weights[t], ::testing::PrintToString(layout));
      expect_same_bits(found.states[t], expected.states[t], ::testing::PrintToString(layout));
    }
  }
}

TEST(DistributedTables, RepeatTheirBits) {
  const Layout layout{
      .sharding = kRow, .samples = {4, 0, 5, 3}, .weighted = true, .pooling = Pooling::kMean};
  const Trained once = train_distributed(layout), again = train_distributed(layout);
  for (size_t t = 0; t < once.weights.size(); ++t)
    expect_same_bits(once.weights[t], again.weights[t], "weight");
}

TEST(DistributedTables, AreReadAndWrittenWhole) {
  for (const Sharding sharding : {kRow, kTable, kColumn, kReplicated}) {
    const Layout layout{.sharding = sharding, .samples = {1, 1, 1}};
    const PackSpec spec = spec_of(layout);
    expect_all_succeed(3, [&](const std::shared_ptr<comm::Group>& group) {
      DistributedTables tables(spec, place_tables(spec, options_of(layout)), group);
      for (int64_t t = 0; t < 4; ++t) {
        const TableSpec& table = spec.tables[static_cast<size_t>(t)];
        const TableContents given{.weight = normal({table.rows, table.dim}, 1),
                                  .state = normal({table.rows, 2 * table.dim}, 2)};
        tables.write(t, group->rank() == 0 ? given : TableContents());
        const TableContents found = tables.read(t);
        if (group->rank() != 0) continue;
        expect_same_bits(found.weight, given.weight, table.name);
        expect_same_bits(found.state, given.state, table.name);
      }
    });
  }
}

TEST(DistributedTables, WhereNothingChangedThereAreNoRows) {
  for (const Sharding sharding : {kRow, kTable, kColumn, kReplicated}) {
    const Layout layout{.sharding = sharding, .samples = {1, 1, 1}};
    const PackSpec spec = spec_of(layout);
    expect_all_succeed(3, [&](const std::shared_ptr<comm::Group>& group) {
      DistributedTables tables(spec, place_tables(spec, options_of(layout)), group, {}, {}, {},
                               Changes::kTracked);
      const TableRows found = tables.read_rows(0, 0, 90, RowSet::kChanged);
      if (group->rank() != 0) return;
      EXPECT_EQ(found.rows.numel(), 0) << name(sharding);
      EXPECT_EQ(found.contents.weight.sizes(), at::IntArrayRef({0, 24})) << name(sharding);
      EXPECT_EQ(found.contents.state.sizes(), at::IntArrayRef({0, 48})) << name(sharding);
    });
  }
}

TEST(DistributedTables, SendsRowsInTheDtypeThatIsAsked) {
  const Layout layout{.sharding = kRow, .samples = {6, 6}};
  const PackSpec spec = spec_of(layout);
  const PackedTables packed(spec);
  const Jagged batch = batch_of(packed, layout, 1);
  const at::Tensor exact = pool(packed, batch);
  std::vector<int64_t> bytes;
  for (const comm::Payload payload :
       {comm::Payload::kUnchanged, comm::Payload::kBFloat16, comm::Payload::kMXFP8}) {
    expect_all_succeed(2, [&](const std::shared_ptr<comm::Group>& group) {
      DistributedTables tables(spec, place_tables(spec, options_of(layout)), group,
                               {payload, payload});
      const at::Tensor own = exact.narrow(0, 6 * group->rank(), 6);
      const at::Tensor found = tables.lookup(samples_of(batch, 6 * group->rank(), 6));
      const double tolerance = payload == comm::Payload::kUnchanged  ? 1e-6
                               : payload == comm::Payload::kBFloat16 ? 5e-3
                                                                     : 7e-2;
      const double error = (found - own).norm().item<double>() / own.norm().item<double>();
      EXPECT_LT(error, tolerance);
      if (payload != comm::Payload::kUnchanged) {
        EXPECT_GT(error, tolerance / 20);
      }
      if (group->rank() == 0) bytes.push_back(tables.traffic().bytes_sent);
    });
  }
  // Six samples of 90 columns; the rest is ids.
  EXPECT_EQ(bytes[0] - bytes[1], 6 * 90 * 2);
  EXPECT_EQ(bytes[1] - bytes[2], 6 * (90 * 2 - (90 + 3)));
}

TEST(DistributedTables, SendGradientsInTheDtypeThatIsAsked) {
  const Layout layout{.sharding = kRow, .samples = {6, 6}, .optimizer = OptimizerKind::kSgd};
  const PackSpec spec = spec_of(layout);
  const PackedTables before(spec);
  const Jagged batch = batch_of(before, layout, 1);
  std::vector<int64_t> bytes;
  std::vector<at::Tensor> moved;  // change of the first table by the step
  for (const comm::Payload payload :
       {comm::Payload::kUnchanged, comm::Payload::kBFloat16, comm::Payload::kMXFP8}) {
    expect_all_succeed(2, [&](const std::shared_ptr<comm::Group>& group) {
      DistributedTables tables(spec, place_tables(spec, options_of(layout)), group,
                               {comm::Payload::kUnchanged, payload});
      const int64_t first = 6 * group->rank();
      step_on_rank(tables, samples_of(batch, first, 6),
                   gradient_of(12, tables.columns(), 1).narrow(0, first, 6), 1, 6);
      if (group->rank() == 0) bytes.push_back(tables.traffic().bytes_sent);
      const TableContents found = tables.read(0);
      if (group->rank() == 0) moved.push_back(found.weight - before.weight(0));
    });
  }
  EXPECT_EQ(bytes[0] - bytes[1], 6 * 90 * 2);
  EXPECT_EQ(bytes[1] - bytes[2], 6 * (90 * 2 - (90 + 3)));
  const auto error = [&](size_t i) {
    return (moved[i] - moved[0]).norm().item<double>() / moved[0].norm().item<double>();
  };
  EXPECT_LT(error(1), 5e-3);
  EXPECT_GT(error(1), 2e-4);
  EXPECT_LT(error(2), 7e-2);
  EXPECT_GT(error(2), 3e-3);
}

/// Messages of a step: one with all counts, then one of ids for each pack. Each micro-batch adds
/// one of pooled rows and one of gradients for each pack.
TEST(DistributedTables, APackIsOneExchangeEachWay) {
  for (const bool packing : {true, false}) {
    for (const int64_t parts : {1, 3}) {
      const Layout layout{
          .sharding = kRow, .samples = {6, 6}, .packing = packing, .micro_batches = parts};
      const PackSpec spec = spec_of(layout);
      const TablePlacement plan = place_tables(spec, options_of(layout));
      ASSERT_EQ(plan.packs.size(), packing ? 1 : 4);
      const PackedTables shapes(spec);
      expect_all_succeed(2, [&](const std::shared_ptr<comm::Group>& group) {
        DistributedTables tables(spec, plan, group);
        const int64_t before = tables.traffic().calls;
        step_on_rank(tables, samples_of(batch_of(shapes, layout, 1), 6 * group->rank(), 6),
                     gradient_of(6, tables.columns(), 1), parts, 6);
        EXPECT_EQ(tables.traffic().calls - before, 1 + std::ssize(plan.packs) * (1 + 2 * parts));
      });
    }
  }
}

TEST(DistributedTables, NameTheIdThatIsOutside) {
  const Layout layout{.sharding = kRow, .samples = {1}};
  const PackSpec spec = spec_of(layout);
  DistributedTables tables(spec, place_tables(spec, options_of(layout)), comm::local_groups(1)[0]);
  Jagged batch = batch_of(PackedTables(spec), layout, 1);
  batch.values.fill_(1000);
  EXPECT_THAT([&] { tables.lookup(batch); },
              ThrowsMessage<UserError>(HasSubstr("is outside of its table")));
}

}  // namespace
}  // namespace dovetail::embedding::distributed_test
