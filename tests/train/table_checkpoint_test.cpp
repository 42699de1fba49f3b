#include "dovetail/train/embedding_tables/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "dovetail/base/error.h"
#include "dovetail/base/machine.h"
#include "dovetail/train/ranks/checkpoint_writers.h"
#include "tests/comm/ranks.h"
#include "tests/embedding/testing.h"
#include "tests/train/tiny_run.h"

namespace dovetail::train::table_checkpoint_test {
namespace {

using embedding::Changes;
using embedding::DistributedTables;
using embedding::Jagged;
using embedding::OptimizerKind;
using embedding::PackSpec;
using embedding::RowDtype;
using embedding::Sharding;
using embedding::TableContents;
using embedding::TierOptions;
using ::testing::HasSubstr;

/// Distribution and storage format of tables.
struct Layout {
  Sharding sharding = Sharding::kRowWise;
  int ranks = 2;
  int64_t memory_bytes = 0;
  RowDtype row_dtype = RowDtype::kFloat32;
  OptimizerKind optimizer = OptimizerKind::kAdam;
  TableWriters writers = TableWriters::kRankZero;
};

void PrintTo(const Layout& l, std::ostream* out) {
  *out << embedding::name(l.sharding) << " on " << l.ranks << " ranks, memory_bytes "
       << l.memory_bytes << ", " << embedding::name(l.row_dtype)
       << (l.writers == TableWriters::kHolders ? ", each rank writes" : ", rank 0 writes");
}

/// Tables: one of several blocks, one with two features, one with fewer rows than ranks.
PackSpec spec_of(const Layout& layout) {
  return {.tables = {{"large", 150001, 16}, {"shared", 300, 12}, {"few", 2, 16}},
          .feature_table = {1, 0, 2, 1},
          .optimizer = {.kind = layout.optimizer, .lr = 0.05, .eps = 1e-3},
          .seed = 3,
          .row_dtype = layout.row_dtype};
}

std::unique_ptr<DistributedTables> tables_of(const Layout& layout,
                                             const std::shared_ptr<comm::Group>& group,
                                             const std::filesystem::path& folder) {
  const PackSpec spec = spec_of(layout);
  std::optional<TierOptions> tiers;
  if (layout.memory_bytes > 0)
    tiers = {
        .memory_bytes = layout.memory_bytes, .step_rows = 200, .warmup_steps = 2, .folder = folder};
  return std::make_unique<DistributedTables>(
      spec, embedding::place_tables(spec, {.ranks = group->size(), .sharding = layout.sharding}),
      group, comm::Payloads{}, tiers, embedding::HashedOptions{}, Changes::kTracked);
}

/// Opens the checkpoints on the ranks that write.
std::unique_ptr<io::CheckpointFolder> checkpoints_of(TableWriters writers, comm::Group& group,
                                                     const std::filesystem::path& path) {
  const bool all = writers == TableWriters::kHolders;
  if (!all && group.rank() != 0) return nullptr;
  return std::make_unique<io::CheckpointFolder>(
      path, io::CheckpointFolder::Options{.keep = 9,
                                          .writers = all ? checkpoint_writers(group) : nullptr});
}

void save(DistributedTables& tables, TableWriters writers, io::CheckpointFolder* folder,
          int64_t step, io::CheckpointKind kind) {
  save_tables(tables, kind, writers, folder == nullptr ? nullptr : &folder->begin(step, kind));
  tables.forget_changes();
  if (folder == nullptr) return;
  folder->save({.step = step});
  folder->wait();
}

constexpr int64_t kSamples = 8;  // samples of each rank

/// Returns the ids of all ranks in a step: feature by feature, and sample by sample within one.
Jagged batch_of(const embedding::PackedTables& shapes, int ranks, int64_t step) {
  return embedding::testing::random_batch(shapes, kSamples * ranks, static_cast<uint64_t>(step),
                                          false);
}

void step_on(DistributedTables& tables, const Jagged& all, int rank, int64_t number) {
  const Jagged own = embedding::samples_of(all, kSamples * rank, kSamples);
  embedding::TableStep step = tables.start(own, kSamples, 1);
  tables.begin(step);
  tables.gather(step, 0);
  tables.wait(step, 0);
  tables.add_gradient(step, 0,
                      testing::normal({kSamples, tables.columns()}, static_cast<uint64_t>(number)));
  tables.update(step);
}

/// The rows of each table that a batch looks up, from its definition.
void add_rows(const PackSpec& spec, const Jagged& batch, std::vector<std::set<int64_t>>& rows) {
  rows.resize(spec.tables.size());
  for (int64_t f = 0; f < batch.features; ++f)
    for (int64_t i = batch.offsets[f * batch.samples].item<int64_t>();
         i < batch.offsets[(f + 1) * batch.samples].item<int64_t>(); ++i)
      rows[static_cast<size_t>(spec.feature_table[static_cast<size_t>(f)])].insert(
          batch.values[i].item<int64_t>());
}

using Contents = std::vector<TableContents>;

Contents read_all(const DistributedTables& tables) {
  Contents all;
  for (int64_t t = 0; t < 3; ++t) {
    all.push_back(tables.read(t));
    if (all.back().weight.defined()) all.back().weight = all.back().weight.clone();
    if (all.back().state.defined()) all.back().state = all.back().state.clone();
  }
  return all;
}

void expect_same(const Contents& found, const Contents& expected, const std::string& where) {
  for (size_t t = 0; t < expected.size(); ++t) {
    EXPECT_TRUE(at::equal(found[t].weight, expected[t].weight)) << where << ", table " << t;
    EXPECT_TRUE(at::equal(found[t].state, expected[t].state)) << where << ", table " << t;
  }
}

Contents contents_of(const PackSpec& spec, io::Snapshot snapshot) {
  complete_tables(spec, snapshot.tensors);
  Contents all;
  for (const char* table : {"large", "shared", "few"})
    all.push_back({.weight = snapshot.tensors.at(fmt::format("embedding.{}.weight", table)),
                   .state = snapshot.tensors.at(fmt::format("embedding.{}.state", table))});
  return all;
}

std::set<int64_t> numbers_in(const at::Tensor& rows) {
  EXPECT_TRUE(rows.numel() < 2 || (rows.diff() > 0).all().item<bool>()) << "not ascending";
  const auto* data = rows.const_data_ptr<int64_t>();
  return {data, data + rows.numel()};
}

/// Returns the numbers in the tensor `name` of a link, or in all pieces of it.
std::set<int64_t> numbers_in(const io::StoredCheckpoint::Link& link, const std::string& name) {
  std::set<int64_t> numbers;
  for (const auto& [tensor, file] : link.files)
    if (tensor == name || tensor.starts_with(name + "."))
      numbers.merge(numbers_in(file->read(tensor)));
  return numbers;
}

class TableCheckpoint : public ::testing::TestWithParam<Layout> {
 protected:
  std::filesystem::path path_of(int64_t step) const {
    return io::CheckpointFolder(folder_ / "c", {}).path_of(step);
  }
  void expect_loaded(const Layout& layout, int64_t step, const Contents& expected) const;

  test::TemporaryFolder folder_;
};

void TableCheckpoint::expect_loaded(const Layout& layout, int64_t step,
                                    const Contents& expected) const {
  expect_all_succeed(layout.ranks, [&](const std::shared_ptr<comm::Group>& group) {
    const auto tables = tables_of(layout, group, folder_ / "");
    std::optional<io::StoredCheckpoint> from;
    if (group->rank() == 0) from.emplace(path_of(step));
    load_tables(*tables, from ? &*from : nullptr, *group);
    const Contents found = read_all(*tables);
    if (group->rank() == 0) expect_same(found, expected, ::testing::PrintToString(layout));
  });
}

TEST_P(TableCheckpoint, DeltasHoldTheRowsThatChangedAndNoOthers) {
  const Layout layout = GetParam();
  const PackSpec spec = spec_of(layout);
  const embedding::PackedTables shapes(spec);
  std::map<int64_t, Contents> expected;
  std::map<int64_t, std::vector<std::set<int64_t>>> changed;
  expect_all_succeed(layout.ranks, [&](const std::shared_ptr<comm::Group>& group) {
    const auto tables = tables_of(layout, group, folder_ / "");
    const auto folder = checkpoints_of(layout.writers, *group, folder_ / "c");
    for (int64_t step = 1; step <= 7; ++step) {
      const Jagged batch = batch_of(shapes, layout.ranks, step);
      step_on(*tables, batch, group->rank(), step);
      tables->lookup(embedding::samples_of(batch_of(shapes, layout.ranks, 100 + step), 0,
                                           3));  // changes nothing
      if (group->rank() == 0) add_rows(spec, batch, changed[(step + 1) / 2 * 2]);
      if (step % 2 == 1 && step < 7) continue;
      save(*tables, layout.writers, folder.get(), (step + 1) / 2 * 2,
           step == 2 ? io::CheckpointKind::kFull : io::CheckpointKind::kDelta);
      Contents now = read_all(*tables);
      if (group->rank() == 0) expected[(step + 1) / 2 * 2] = std::move(now);
    }
  });
  for (const auto& [step, contents] : expected) {
    expect_same(contents_of(spec, io::read_checkpoint(path_of(step))), contents,
                fmt::format("step {}", step));
    if (step == 2) continue;
    const io::StoredCheckpoint stored(path_of(step));
    for (size_t t = 0; t < 3; ++t) {
      const std::string name = fmt::format("embedding.{}.rows", spec.tables[t].name);
      EXPECT_EQ(numbers_in(stored.links().back(), name), changed[step][t]) << name;
    }
  }
  for (const int ranks : {1, 3}) {
    Layout other = layout;
    other.ranks = ranks;
    expect_loaded(other, 8, expected[8]);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Train, TableCheckpoint,
    ::testing::Values(
        Layout{.ranks = 1}, Layout{.ranks = 1, .memory_bytes = 2000000}, Layout{},
        Layout{.ranks = 3, .memory_bytes = 2000000}, Layout{.sharding = Sharding::kColumnWise},
        Layout{.sharding = Sharding::kTableWise}, Layout{.sharding = Sharding::kReplicated},
        Layout{.memory_bytes = 2000000, .row_dtype = RowDtype::kBFloat16},
        Layout{.row_dtype = RowDtype::kMXFP8, .optimizer = OptimizerKind::kRowWiseAdagrad},
        Layout{.writers = TableWriters::kHolders},
        Layout{.ranks = 3, .memory_bytes = 2000000, .writers = TableWriters::kHolders},
        Layout{.sharding = Sharding::kColumnWise, .ranks = 3, .writers = TableWriters::kHolders},
        Layout{.sharding = Sharding::kTableWise, .ranks = 3, .writers = TableWriters::kHolders},
        Layout{.sharding = Sharding::kReplicated, .ranks = 3, .writers = TableWriters::kHolders},
        Layout{.row_dtype = RowDtype::kMXFP8,
               .optimizer = OptimizerKind::kRowWiseAdagrad,
               .writers = TableWriters::kHolders}));

/// Two of three tables are large and mostly unread. The checkpoint has only rows that were read.
TEST_P(TableCheckpoint, AFullOneHoldsUpdatedRowsAndTheOthersAreInitial) {
  const Layout layout = GetParam();
  const PackSpec spec = spec_of(layout);
  const embedding::PackedTables shapes(spec);
  std::vector<std::set<int64_t>> updated;
  std::map<int64_t, Contents> expected;
  for (const int64_t last :
       {2, 3}) {  // the second run resumes from the first's checkpoint, and also saves a full one
    if (last == 2) add_rows(spec, batch_of(shapes, layout.ranks, 1), updated);
    add_rows(spec, batch_of(shapes, layout.ranks, last), updated);
    expect_all_succeed(layout.ranks, [&](const std::shared_ptr<comm::Group>& group) {
      const auto tables = tables_of(layout, group, folder_ / "");
      const auto folder = checkpoints_of(layout.writers, *group, folder_ / "c");
      std::optional<io::StoredCheckpoint> from;
      if (last == 3 && group->rank() == 0) from.emplace(path_of(2));
      if (last == 3) {
        load_tables(*tables, from ? &*from : nullptr, *group);
        tables->set_steps(2, 2);
      }
      for (int64_t step = last == 2 ? 1 : 3; step <= last; ++step)
        step_on(*tables, batch_of(shapes, layout.ranks, step), group->rank(), step);
      save(*tables, layout.writers, folder.get(), last, io::CheckpointKind::kFull);
      Contents now = read_all(*tables);
      if (group->rank() == 0) expected[last] = std::move(now);
    });
    const io::StoredCheckpoint stored(path_of(last));
    const io::StoredCheckpoint::Link& link = stored.links().back();
    EXPECT_EQ(numbers_in(link, "embedding.large.rows"), updated[0]);
    if (link.files.contains("embedding.few.weight")) {
      EXPECT_EQ(stored.read("embedding.large.weight").size(0), std::ssize(updated[0]));
      EXPECT_EQ(stored.read("embedding.few.weight").size(0), 2)
          << "a table with half of its rows updated is whole";
    } else {
      EXPECT_EQ(numbers_in(link, "embedding.few.rows"), updated[2]) << "pieces have numbers";
    }
    expect_same(contents_of(spec, stored.snapshot()), expected[last], fmt::format("step {}", last));
  }
  // Reference: all steps on tables that are never saved.
  expect_all_succeed(layout.ranks, [&](const std::shared_ptr<comm::Group>& group) {
    const auto tables = tables_of(layout, group, folder_ / "");
    for (int64_t step = 1; step <= 3; ++step)
      step_on(*tables, batch_of(shapes, layout.ranks, step), group->rank(), step);
    const Contents whole = read_all(*tables);
    if (group->rank() == 0) expect_same(whole, expected[3], "a run without a checkpoint");
  });
  for (const int ranks : {1, 3}) {
    Layout other = layout;
    other.ranks = ranks;
    expect_loaded(other, 3, expected[3]);
  }
}

TEST(TableCheckpointMemory, SavingAndLoadingTakeABlockAndNotTheTable) {
  test::TemporaryFolder folder;
  const PackSpec spec = {.tables = {{"t", 1000000, 32}},
                         .feature_table = {0},
                         .optimizer = {.kind = OptimizerKind::kRowWiseAdagrad}};
  constexpr uint64_t kTableBytes = 132000000;
  expect_all_succeed(1, [&](const std::shared_ptr<comm::Group>& group) {
    DistributedTables tables(
        spec, embedding::place_tables(spec, {.ranks = 1}), group, {},
        TierOptions{.memory_bytes = 16 << 20, .step_rows = 100, .folder = folder / ""});
    io::CheckpointFolder checkpoints(folder / "c", {});
    for (int64_t first = 0; first < 1000000;
         first += 20000)  // rows that nothing set would not be saved
      tables.write_rows(
          0, {.rows = at::arange(first, first + 20000),
              .contents = {.weight = at::ones({20000, 32}), .state = at::ones({20000, 1})}});
    const auto growth_of = [](const std::function<void()>& work) {
      const uint64_t before = resident_bytes();
      reset_peak_resident();
      work();
      return peak_resident_bytes() - before;
    };
    const uint64_t saving = growth_of(
        [&] { save(tables, TableWriters::kRankZero, &checkpoints, 1, io::CheckpointKind::kFull); });
    const uint64_t loading = growth_of([&] {
      const io::StoredCheckpoint from(checkpoints.path_of(1));
      load_tables(tables, &from, *group);
    });
    std::printf("a table of %.0f MB: saving took %.0f MB, loading %.0f MB\n",
                1e-6 * double(kTableBytes), 1e-6 * double(saving), 1e-6 * double(loading));
    // A thread writes while rows are read, so the peak differs between runs.
    EXPECT_LT(saving, kTableBytes / 2);
    EXPECT_LT(loading, kTableBytes / 3);
  });
}

TEST(TableCheckpointErrors, ATableThatIsNotThatOfTheModelIsRefused) {
  test::TemporaryFolder folder;
  const Layout layout{.ranks = 1};
  expect_all_succeed(1, [&](const std::shared_ptr<comm::Group>& group) {
    const auto tables = tables_of(layout, group, folder / "");
    io::CheckpointFolder checkpoints(folder / "c", {});
    save(*tables, TableWriters::kRankZero, &checkpoints, 1, io::CheckpointKind::kFull);
    const io::StoredCheckpoint from(checkpoints.path_of(1));
    EXPECT_EQ(from.read("embedding.large.weight").size(0), 0) << "no row was updated";
    const auto load_into = [&](const Layout& other) {
      load_tables(*tables_of(other, group, folder / ""), &from, *group);
    };
    EXPECT_THAT([&] { load_into({.ranks = 1, .row_dtype = RowDtype::kBFloat16}); },
                ::testing::ThrowsMessage<UserError>(HasSubstr("embedding.row_dtype = \"bf16\"")));
    EXPECT_THAT([&] { load_into({.ranks = 1, .optimizer = OptimizerKind::kSgd}); },
                ::testing::ThrowsMessage<UserError>(
                    HasSubstr("\"embedding.few.state\" is not a table of this model")));
  });
}

}  // namespace
}  // namespace dovetail::train::table_checkpoint_test
