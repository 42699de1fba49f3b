// ctest-labels: threads
// Ranks that write the rows of tables that they hold.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "dovetail/base/error.h"
#include "dovetail/io/checkpoint_manifest.h"
#include "dovetail/train/embedding_tables/checkpoint.h"
#include "dovetail/train/embedding_tables/hashed.h"
#include "dovetail/train/ranks/checkpoint_writers.h"
#include "dovetail/train/trainer.h"
#include "tests/comm/ranks.h"
#include "tests/train/clicks.h"

namespace dovetail::train::table_writers_test {
namespace {

namespace fs = std::filesystem;
using embedding::DistributedTables;
using embedding::PackSpec;
using embedding::Sharding;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kRanks = 3;
constexpr int64_t kRows = 900, kKeys = 300;

/// Tables with a fixed vocabulary, then hashed ones unless they would be cut by columns.
PackSpec spec_of(Sharding sharding) {
  PackSpec spec = {.tables = {{"a", kRows, 16}, {"b", kRows, 24}, {"c", kRows, 16}},
                   .feature_table = {0, 1, 2},
                   .optimizer = {.kind = embedding::OptimizerKind::kAdam, .lr = 0.05},
                   .seed = 3};
  if (sharding == Sharding::kColumnWise) return spec;
  for (const char* name : {"d", "e"}) {
    spec.feature_table.push_back(std::ssize(spec.tables));
    spec.tables.push_back({.name = name, .rows = kRows, .dim = 8, .hashed = true});
  }
  return spec;
}

/// Values of row or key i in a table: i + 0.5 * table in each element.
at::Tensor values(const at::Tensor& ids, int64_t table, int64_t width) {
  return (ids.to(at::kFloat) + 0.5 * static_cast<double>(table)).view({-1, 1}).repeat({1, width});
}

/// Sets all rows and kKeys keys on the ranks that hold them.
void fill(DistributedTables& tables) {
  for (int64_t t = 0; t < std::ssize(tables.spec().tables); ++t) {
    const int64_t dim = tables.spec().tables[static_cast<size_t>(t)].dim,
                  state = embedding::state_per_row(tables.spec(), t);
    const at::Tensor ids = at::arange(tables.is_hashed(t) ? kKeys : kRows, at::kLong);
    if (tables.is_hashed(t)) {
      const at::Tensor none = at::empty({0}, at::kLong);
      tables.write_keys(t, {.known = {ids, at::ones_like(ids), at::ones_like(ids), none},
                            .weight = values(ids, t, dim),
                            .state = values(ids, t, state),
                            .candidates = {none, none, none, none}});
    } else {
      tables.write_rows(
          t, {.rows = ids,
              .contents = {.weight = values(ids, t, dim), .state = values(ids, t, state)}});
    }
  }
}

class TableFiles : public ::testing::TestWithParam<std::tuple<Sharding, int64_t>> {
 protected:
  Sharding sharding() const { return std::get<0>(GetParam()); }
  std::unique_ptr<DistributedTables> filled(const std::shared_ptr<comm::Group>& group) const {
    const PackSpec spec = spec_of(sharding());
    std::optional<embedding::TierOptions> tiers;
    if (const int64_t memory_bytes = std::get<1>(GetParam()); memory_bytes > 0)
      tiers = {.memory_bytes = memory_bytes, .step_rows = 50};
    auto tables = std::make_unique<DistributedTables>(
        spec, embedding::place_tables(spec, {.ranks = group->size(), .sharding = sharding()}),
        group, comm::Payloads{}, tiers, embedding::HashedOptions{}, embedding::Changes::kTracked);
    fill(*tables);
    return tables;
  }
  /// Saves like a training loop. `before`: called on each rank after the save has begun.
  void save(
      const DistributedTables& tables, comm::Group& group, io::CheckpointFolder& folder,
      int64_t step, const std::function<void()>& before = [] {}) const {
    io::StreamedTensors& to = folder.begin(step, io::CheckpointKind::kFull);
    before();
    group.barrier();
    save_tables(tables, io::CheckpointKind::kFull, TableWriters::kHolders, &to);
    save_hashed_tables(tables, io::CheckpointKind::kFull, TableWriters::kHolders, &to);
    folder.save({.step = step});
    folder.wait();
  }

  test::TemporaryFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(Shardings, TableFiles,
                         ::testing::Values(std::tuple(Sharding::kRowWise, 0),
                                           std::tuple(Sharding::kTableWise, 0),
                                           std::tuple(Sharding::kReplicated, 0),
                                           std::tuple(Sharding::kColumnWise, 0),
                                           std::tuple(Sharding::kRowWise, 1 << 20)));

/// Returns the rank in the name of a file.
int64_t writer_of(const std::string& file) {
  return file.starts_with("rank-") ? std::stoll(file.substr(5, 5)) : 0;
}

/// Law: each row or key is in a file of a rank that holds it, and travels to no other rank.
TEST_P(TableFiles, HoldRowsOfTheirRankAndNoRowTravels) {
  const PackSpec spec = spec_of(sharding());
  const embedding::TablePlacement plan =
      embedding::place_tables(spec, {.ranks = kRanks, .sharding = sharding()});
  const int64_t table_bytes = kRows * 3 * 16 * static_cast<int64_t>(sizeof(float));
  expect_all_succeed(kRanks, [&](const std::shared_ptr<comm::Group>& group) {
    const auto tables = filled(group);
    io::CheckpointFolder folder(folder_.path(), {.writers = checkpoint_writers(*group)});
    const comm::Group::Traffic before = group->all_to_all_traffic();
    save(*tables, *group, folder, 1);
    const comm::Group::Traffic after = group->all_to_all_traffic();
    if (sharding() != Sharding::kColumnWise) {
      EXPECT_EQ(after.calls, before.calls);
      EXPECT_EQ(after.bytes_sent, before.bytes_sent);
      return;
    }
    // Each rank saves one table. It gets at least half of the columns from the others, and the
    // numbers of their rows.
    const int64_t own = group->rank() == 1 ? table_bytes * 3 / 2 : table_bytes;
    EXPECT_GE(after.bytes_received - before.bytes_received, own / 2);
    EXPECT_LE(after.bytes_received - before.bytes_received, own);
  });
  const io::StoredCheckpoint stored(folder_ / "step-00000001");
  size_t checked = 0;
  for (const auto& file : io::read_manifest(folder_ / "step-00000001").files) {
    for (const std::string& name : file.tensors) {
      const int64_t t = name.at(std::string("embedding.").size()) - 'a';
      const embedding::PlacedTable& placed = plan.tables[static_cast<size_t>(t)];
      const int64_t holder = placed.sharding == Sharding::kTableWise ? placed.rank : t % kRanks;
      if (sharding() != Sharding::kRowWise) {
        EXPECT_EQ(writer_of(file.name), holder) << name;
      } else if (name.find(".rows.") != std::string::npos ||
                 name.find(".keys.") != std::string::npos) {
        const at::Tensor ids = stored.read(name);
        EXPECT_EQ(ids.numel(), (name.find(".rows.") != std::string::npos ? kRows : kKeys) / kRanks);
        EXPECT_TRUE((ids.remainder(kRanks) == writer_of(file.name)).all().item<bool>()) << name;
        const std::string suffix = fmt::format(".{}-of-{}", writer_of(file.name), kRanks);
        EXPECT_TRUE(name.ends_with(suffix)) << name << " in " << file.name;
        const at::Tensor rows =
            stored.read(table_tensor(spec.tables[static_cast<size_t>(t)].name, "weight") + suffix);
        EXPECT_TRUE(at::equal(rows, values(ids, t, rows.size(1)))) << name;
      }
      ++checked;
    }
  }
  EXPECT_GE(checked, 6);
  std::map<std::string, at::Tensor> whole = stored.snapshot().tensors;
  complete_tables(spec, whole);
  for (int64_t t = 0; t < std::ssize(spec.tables); ++t) {
    const std::string& table = spec.tables[static_cast<size_t>(t)].name;
    const at::Tensor ids = at::arange(t < 3 ? kRows : kKeys, at::kLong);
    for (const char* part : {"weight", "state"}) {
      const at::Tensor& found = whole.at(table_tensor(table, part));
      EXPECT_TRUE(at::equal(found, values(ids, t, found.size(1)))) << table << ' ' << part;
    }
  }
}

/// Saves twice. Something goes wrong on rank 1 in the second save.
TEST_P(TableFiles, AFaultOfARanksDiskFailsTheSaveOnAll) {
  if (sharding() == Sharding::kTableWise) GTEST_SKIP() << "rank 1 may have no table";
  expect_all_succeed(kRanks, [&](const std::shared_ptr<comm::Group>& group) {
    const auto tables = filled(group);
    io::CheckpointFolder folder(folder_.path(), {.writers = checkpoint_writers(*group)});
    save(*tables, *group, folder, 1);
    std::string message;
    try {
      save(*tables, *group, folder, 2, [&] {
        if (group->rank() == 1)  // a folder stands where its file is to be
          fs::create_directories(folder_ / ".step-00000002.partial" /
                                 "rank-00001-rows-00001.safetensors" / "deep");
      });
    } catch (const UserError& error) {
      message = error.what();
      EXPECT_THAT(error.help(), HasSubstr("the newest is step-00000001"));
    }
    EXPECT_THAT(message,
                AllOf(HasSubstr("step 2 was not written: rank 1: "), HasSubstr("rank-00001-rows"),
                      Not(HasSubstr("rank 0:")), Not(HasSubstr("rank 2:"))));
    group->barrier();
    save(*tables, *group, folder, 3);
    EXPECT_THAT(folder.steps(), ::testing::ElementsAre(1, 3));
  });
}

TEST_P(TableFiles, ANaNInARowOfOneRankFailsTheSaveOnAll) {
  expect_all_succeed(kRanks, [&](const std::shared_ptr<comm::Group>& group) {
    const auto tables = filled(group);
    io::CheckpointFolder folder(folder_.path(), {.writers = checkpoint_writers(*group)});
    save(*tables, *group, folder, 1);
    const at::Tensor row = at::full({1}, 301, at::kLong);  // 301 mod 3 = 1
    tables->write_rows(
        1, {.rows = row,
            .contents = {.weight = at::full({1, 24}, std::nan("")), .state = at::zeros({1, 48})}});
    std::string message;
    try {
      save(*tables, *group, folder, 2);
    } catch (const UserError& error) {
      message = error.what();
    }
    const int64_t writer = sharding() == Sharding::kRowWise ? 1 : tables->saving_rank(1);
    EXPECT_THAT(message, AllOf(HasSubstr(fmt::format("rank {}: ", writer)),
                               HasSubstr("'embedding.b.weight"), HasSubstr("has a NaN")));
    group->barrier();
    EXPECT_THAT(folder.steps(), ::testing::ElementsAre(1));
  });
}

/// A run with tables cut by rows, one of them hashed.
RunConfig run_of(const test::Clicks& clicks, const std::string& name, const std::string& writers) {
  RunConfig config = clicks.config("wide_deep", name);
  config.rows.sparse[0] = {.columns = {"user"}, .max_rows = 60};
  config.embedding.sharding = "row";
  config.checkpoint.writers = writers;
  config.train.steps = 20;
  config.eval.every_steps = 0;
  return config;
}

void train_on(int ranks, const RunConfig& config) {
  expect_all_succeed(ranks, [&](std::shared_ptr<comm::Group> group) {
    train(config, std::move(group), {.quiet = true});
  });
}

TEST(CheckpointsOfTables, HoldTheBitsThatRankZeroAloneWrites) {
  const test::Clicks clicks;
  train_on(2, run_of(clicks, "all", "all"));
  train_on(2, run_of(clicks, "first", "first"));
  test::expect_same_tensors(test::last_checkpoint(run_of(clicks, "all", "all")),
                            test::last_checkpoint(run_of(clicks, "first", "first")));
  for (const char* run : {"all", "first"}) {
    std::set<int64_t> writers;
    for (const auto& file :
         io::read_manifest(clicks.file(run, "checkpoints") / "step-00000020").files)
      for (const std::string& name : file.tensors)
        if (is_of_table(name)) writers.insert(writer_of(file.name));
    EXPECT_EQ(writers.size(), std::string(run) == "all" ? 2 : 1) << run;
  }
}

}  // namespace
}  // namespace dovetail::train::table_writers_test
