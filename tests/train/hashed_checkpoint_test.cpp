// ctest-labels: threads
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <set>

#include "dovetail/base/rng.h"
#include "dovetail/train/embedding_tables/checkpoint.h"
#include "dovetail/train/embedding_tables/hashed.h"
#include "dovetail/train/ranks/checkpoint_writers.h"
#include "tests/comm/ranks.h"
#include "tests/embedding/testing.h"
#include "tests/train/tiny_run.h"

namespace dovetail::train::hashed_checkpoint_test {
namespace {

using embedding::Admission;
using embedding::Changes;
using embedding::DistributedTables;
using embedding::Eviction;
using embedding::HashedOptions;
using embedding::Jagged;
using embedding::KeyedRows;
using embedding::OptimizerKind;
using embedding::PackSpec;
using embedding::RowDtype;
using embedding::Sharding;
using embedding::testing::ids_from;

constexpr int64_t kSamples = 12, kFull = 2, kLast = 13;
constexpr std::array<int64_t, 5> kSaves = {kFull, 5, 6, 9, kLast};

const HashedOptions kAged = {.eviction = Eviction::kAge, .evict_steps = 2, .max_age = 3};
const HashedOptions kCounted = {.admission = Admission::kCount,
                                .min_count = 3,
                                .max_candidates = 40,
                                .eviction = Eviction::kAge,
                                .evict_steps = 2,
                                .max_age = 3};
const HashedOptions kRarest = {.eviction = Eviction::kFrequency, .evict_steps = 3, .keep_rows = 20};

struct Layout {
  HashedOptions options;
  int ranks = 1;
  Sharding sharding = Sharding::kTableWise;
  OptimizerKind optimizer = OptimizerKind::kAdam;
  RowDtype row_dtype = RowDtype::kFloat32;
  int64_t memory_bytes = 0;  ///< 0: all rows are in memory
  int64_t dim = 8;           ///< elements of a row of table "users"
  TableWriters writers = TableWriters::kRankZero;
};

PackSpec spec_of(const Layout& layout) {
  return {.tables = {{.name = "users", .rows = 200, .dim = layout.dim, .hashed = true},
                     {.name = "items", .rows = 120, .dim = 5, .hashed = true}},
          .feature_table = {1, 0, 1},
          .optimizer = {.kind = layout.optimizer, .lr = 0.05, .eps = 1e-3},
          .seed = 3,
          .row_dtype = layout.row_dtype};
}

/// Returns bags with one key of 64 bits each. The set of keys drifts, so that some keys return
/// after they were evicted.
Jagged batch_of(int64_t step) {
  std::vector<int64_t> values;
  for (uint64_t i = 0; i < 3 * kSamples; ++i) {
    const uint64_t place = static_cast<uint64_t>(step) * 3 * kSamples + i;
    const uint64_t key =
        random_below(2, RandomStream::kTest, place, 25) + static_cast<uint64_t>(step % 5) * 6;
    values.push_back(static_cast<int64_t>(mix_seed(key, i / kSamples == 1 ? 1 : 0)));
  }
  return {ids_from(values), at::arange(3 * kSamples + 1), {}, 3, kSamples};
}

std::unique_ptr<DistributedTables> tables_of(const Layout& layout,
                                             const std::shared_ptr<comm::Group>& group) {
  const PackSpec spec = spec_of(layout);
  std::optional<embedding::TierOptions> tiers;
  if (layout.memory_bytes > 0)
    tiers = {.policy = embedding::TierPolicy::kLru,
             .memory_bytes = layout.memory_bytes,
             .step_rows = 30};
  return std::make_unique<DistributedTables>(
      spec, embedding::place_tables(spec, {.ranks = group->size(), .sharding = layout.sharding}),
      group, comm::Payloads{}, tiers, layout.options, Changes::kTracked);
}

void train_step(DistributedTables& tables, const comm::Group& group, int64_t number) {
  const int64_t first = kSamples * group.rank() / group.size(),
                count = kSamples * (group.rank() + 1) / group.size() - first;
  embedding::TableStep step = tables.start(embedding::samples_of(batch_of(number), first, count),
                                           kSamples, /*micro_batches=*/1);
  tables.begin(step);
  tables.gather(step, 0);
  tables.wait(step, 0);
  const at::Tensor gradient =
      testing::normal({kSamples, tables.columns()}, static_cast<uint64_t>(number));
  tables.add_gradient(step, 0, gradient.narrow(0, first, count));
  if (number == kLast) return tables.discard(step);  // still admits and counts its keys
  tables.update(step);
}

using Contents = std::vector<KeyedRows>;

Contents read_all(const DistributedTables& tables) {
  return {tables.read_keys(0), tables.read_keys(1)};
}

std::map<std::string, at::Tensor> tensors_of(const Contents& contents) {
  std::map<std::string, at::Tensor> tensors;
  for (size_t t = 0; t < 2; ++t) {
    const KeyedRows& rows = contents[t];
    const std::string table = t == 0 ? "users" : "items";
    const auto add = [&](const char* part, const at::Tensor& tensor) {
      tensors[table_tensor(table, part)] = tensor;
    };
    add("keys", rows.known.keys);
    add("occurrences", rows.known.occurrences);
    add("last_step", rows.known.last_step);
    add("weight", rows.weight);
    if (rows.state.size(1) > 0) add("state", rows.state);
    add("candidate_keys", rows.candidates.keys);
    add("candidate_occurrences", rows.candidates.occurrences);
    add("candidate_last_step", rows.candidates.last_step);
  }
  return tensors;
}

std::set<int64_t> numbers_in(const at::Tensor& tensor) {
  const auto* first = tensor.const_data_ptr<int64_t>();
  return {first, first + tensor.numel()};
}

/// Keys that occurred after step `since`.
std::set<int64_t> keys_since(const embedding::KeyCounts& counts, int64_t since) {
  return numbers_in(counts.keys.masked_select(counts.last_step > since));
}

std::set<int64_t> keys_lost(const embedding::KeyCounts& before, const embedding::KeyCounts& now) {
  std::set<int64_t> lost = numbers_in(before.keys);
  for (const int64_t key : numbers_in(now.keys)) lost.erase(key);
  return lost;
}

class HashedCheckpoint : public ::testing::Test {
 protected:
  /// Saves a full checkpoint and deltas. Returns the contents at each of them.
  std::map<int64_t, Contents> train_and_save(const Layout& layout) const {
    std::map<int64_t, Contents> contents;
    expect_all_succeed(layout.ranks, [&](const std::shared_ptr<comm::Group>& group) {
      const auto tables = tables_of(layout, group);
      std::optional<io::CheckpointFolder> folder;
      const bool all = layout.writers == TableWriters::kHolders;
      if (all || group->rank() == 0)
        folder.emplace(folder_ / "c",
                       io::CheckpointFolder::Options{
                           .keep = 9, .writers = all ? checkpoint_writers(*group) : nullptr});
      for (int64_t step = 1; step <= kLast; ++step) {
        train_step(*tables, *group, step);
        tables->lookup(batch_of(100 + step));  // changes nothing
        if (std::ranges::find(kSaves, step) == kSaves.end()) continue;
        const auto kind = step == kFull ? io::CheckpointKind::kFull : io::CheckpointKind::kDelta;
        save_hashed_tables(*tables, kind, layout.writers,
                           folder ? &folder->begin(step, kind) : nullptr);
        tables->forget_changes();
        if (folder) folder->save({.step = step});
        if (folder) folder->wait();
        Contents now = read_all(*tables);
        if (group->rank() == 0) contents[step] = std::move(now);
      }
    });
    return contents;
  }

  std::filesystem::path path_of(int64_t step) const {
    return io::CheckpointFolder(folder_ / "c", {}).path_of(step);
  }

  void expect_loaded(const Layout& layout, const Contents& expected) const {
    expect_all_succeed(layout.ranks, [&](const std::shared_ptr<comm::Group>& group) {
      const auto tables = tables_of(layout, group);
      std::optional<io::StoredCheckpoint> from;
      if (group->rank() == 0) from.emplace(path_of(kLast));
      load_tables(*tables, from ? &*from : nullptr, *group);
      const Contents found = read_all(*tables);
      if (group->rank() == 0) expect_same(tensors_of(found), tensors_of(expected));
    });
  }

  static void expect_same(const std::map<std::string, at::Tensor>& found,
                          const std::map<std::string, at::Tensor>& expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (const auto& [name, tensor] : expected)
      EXPECT_TRUE(at::equal(found.at(name), tensor)) << name;
  }

  void expect_deltas(const Layout& layout);

  test::TemporaryFolder folder_;
};

void HashedCheckpoint::expect_deltas(const Layout& layout) {
  const std::map<int64_t, Contents> expected = train_and_save(layout);
  size_t removed = 0, unchanged = 0;
  for (auto now = expected.begin(); now != expected.end(); ++now) {
    SCOPED_TRACE(fmt::format("step {}", now->first));
    std::map<std::string, at::Tensor> whole = io::read_checkpoint(path_of(now->first)).tensors;
    complete_tables(spec_of(layout), whole);
    expect_same(whole, tensors_of(now->second));
    if (now == expected.begin()) continue;
    const auto& [since, before] = *std::prev(now);
    const io::StoredCheckpoint stored(path_of(now->first));
    const auto numbers = [&](size_t t, const char* part) {
      const std::string name = table_tensor(t == 0 ? "users" : "items", part);
      std::set<int64_t> numbers;
      for (const auto& [tensor, file] : stored.links().back().files)
        if (tensor == name || tensor.starts_with(name + "."))
          numbers.merge(numbers_in(file->read(tensor)));
      return numbers;
    };
    for (size_t t = 0; t < 2; ++t) {
      const KeyedRows &was = before[t], &is = now->second[t];
      EXPECT_EQ(numbers(t, "keys"), keys_since(is.known, since));
      EXPECT_EQ(numbers(t, "removed_keys"), keys_lost(was.known, is.known));
      EXPECT_EQ(numbers(t, "candidate_keys"), keys_since(is.candidates, since));
      EXPECT_EQ(numbers(t, "removed_candidate_keys"), keys_lost(was.candidates, is.candidates));
      removed += keys_lost(was.known, is.known).size();
      unchanged += static_cast<size_t>(is.known.keys.numel()) - keys_since(is.known, since).size();
    }
  }
  EXPECT_GT(removed, 10) << "too few tombstones to test their law";
  EXPECT_GT(unchanged, 10) << "too few unchanged rows to test the law of changed rows";
  for (const int ranks : {1, 3}) {
    Layout other = layout;
    other.ranks = ranks;
    for (const Sharding sharding : {Sharding::kTableWise, Sharding::kRowWise}) {
      other.sharding = sharding;
      expect_loaded(other, expected.at(kLast));
    }
  }
}

TEST_F(HashedCheckpoint, DeltasHoldKeysThatOccurredAndThoseThatLeft) {
  expect_deltas({.options = kAged});
}

TEST_F(HashedCheckpoint, DeltasHoldCandidates) {
  expect_deltas({.options = kCounted, .ranks = 2, .optimizer = OptimizerKind::kSgd});
}

TEST_F(HashedCheckpoint, HalvingCountsChangesNoRow) {
  expect_deltas({.options = kRarest, .ranks = 3, .row_dtype = RowDtype::kBFloat16});
}

TEST_F(HashedCheckpoint, DeltasOfTablesThatAreCutByRows) {
  expect_deltas({.options = kCounted,
                 .ranks = 3,
                 .sharding = Sharding::kRowWise,
                 .row_dtype = RowDtype::kMXFP8});
}

TEST_F(HashedCheckpoint, DeltasOfReplicatedTables) {
  expect_deltas({.options = kAged,
                 .ranks = 2,
                 .sharding = Sharding::kReplicated,
                 .optimizer = OptimizerKind::kRowWiseAdagrad});
}

/// A block of these rows has 21 keys.
TEST_F(HashedCheckpoint, BlocksOfRowsInTiers) {
  expect_deltas({.options = kAged, .memory_bytes = int64_t{10} << 20, .dim = 16384});
}

TEST_F(HashedCheckpoint, BlocksOfTablesThatAreCutByRows) {
  expect_deltas({.options = kAged,
                 .ranks = 2,
                 .sharding = Sharding::kRowWise,
                 .memory_bytes = int64_t{10} << 20,
                 .dim = 16384});
}

TEST_F(HashedCheckpoint, PiecesOfTablesThatAreCutByRows) {
  expect_deltas({.options = kCounted,
                 .ranks = 3,
                 .sharding = Sharding::kRowWise,
                 .row_dtype = RowDtype::kMXFP8,
                 .writers = TableWriters::kHolders});
}

TEST_F(HashedCheckpoint, PiecesOfBlocksInTiers) {
  expect_deltas({.options = kAged,
                 .ranks = 2,
                 .sharding = Sharding::kRowWise,
                 .memory_bytes = int64_t{10} << 20,
                 .dim = 16384,
                 .writers = TableWriters::kHolders});
}

TEST_F(HashedCheckpoint, WholeTablesOfTheRanksThatHoldThem) {
  expect_deltas({.options = kRarest, .ranks = 3, .writers = TableWriters::kHolders});
}

TEST_F(HashedCheckpoint, ReplicasThatOneRankOfEachTableWrites) {
  expect_deltas({.options = kAged,
                 .ranks = 2,
                 .sharding = Sharding::kReplicated,
                 .optimizer = OptimizerKind::kSgd,
                 .writers = TableWriters::kHolders});
}

}  // namespace
}  // namespace dovetail::train::hashed_checkpoint_test
