#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/types.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/io/checkpoint.h"
#include "tests/io/child.h"

namespace dovetail::io::delta_checkpoint_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kRows = 50, kWidth = 3;

/// Returns the rows that step s changes. Some of them were changed in the previous step.
std::set<int64_t> rows_of_step(int64_t step) {
  return {step % kRows, (step + 1) % kRows, 7 * step % kRows};
}

/// Returns a row's value after `step`: the last step that changed it, or -1.
float value_after(int64_t row, int64_t step) {
  for (int64_t s = step; s >= 0; --s)
    if (rows_of_step(s).contains(row)) return static_cast<float>(s);
  return -1;
}

at::Tensor rows_after(int64_t step, const std::vector<int64_t>& rows) {
  at::Tensor values = at::empty({std::ssize(rows), kWidth});
  for (int64_t i = 0; i < std::ssize(rows); ++i)
    values[i].fill_(value_after(rows[static_cast<size_t>(i)], step));
  return values;
}

/// Returns keys with a row after `step`, each with the last step that changed it. A step changes
/// three keys, often one of them for the first time, and removes two others.
std::map<uint64_t, int64_t> keyed_after(int64_t step) {
  const auto key = [](int64_t i) { return static_cast<uint64_t>(i % 23) * 0xB21642C8590B2165; };
  std::map<uint64_t, int64_t> rows;
  for (int64_t s = 0; s <= step; ++s) {
    for (const int64_t i : {s + 9, 5 * s + 3}) rows.erase(key(i));
    for (const int64_t i : {s, s + 1, 7 * s}) rows[key(i)] = s;
  }
  return rows;
}

at::Tensor numbers_of(const std::vector<uint64_t>& keys) {
  at::Tensor numbers = at::empty({std::ssize(keys)}, at::kLong);
  std::ranges::copy(keys, numbers.mutable_data_ptr<int64_t>());
  return numbers;
}

/// The tensors of `rows`, which ascend by their keys.
std::map<std::string, at::Tensor> keyed_tensors(const std::map<uint64_t, int64_t>& rows) {
  std::vector<uint64_t> keys;
  at::Tensor values = at::empty({std::ssize(rows), kWidth});
  for (const auto& [key, step] : rows) {
    values[std::ssize(keys)].fill_(step);
    keys.push_back(key);
  }
  return {{"k.keys", numbers_of(keys)}, {"k.weight", values}};
}

void add(StreamedTensors& to, const at::Tensor& keys, const at::Tensor& values,
         const at::Tensor& removed) {
  if (!removed.defined()) {
    to.begin({{"k.keys", at::kLong, {keys.size(0)}},
              {"k.weight", at::kFloat, {values.size(0), kWidth}}});
    return to.append({keys, values});
  }
  to.begin({{"k.keys", at::kLong, {keys.size(0)}, "k.removed"},
            {"k.weight", values.scalar_type(), {values.size(0), kWidth}, "k.keys"},
            {"k.removed", at::kLong, {removed.size(0)}}});
  to.append({keys, values, removed});
}

/// `since` as for `save`.
void add_keyed(StreamedTensors& to, int64_t step, int64_t since) {
  std::map<uint64_t, int64_t> rows = keyed_after(step);
  std::vector<uint64_t> removed;
  for (const auto& [key, changed] : keyed_after(since))
    if (!rows.contains(key)) removed.push_back(key);
  std::erase_if(rows, [&](const auto& row) { return row.second <= since; });
  const std::map<std::string, at::Tensor> tensors = keyed_tensors(rows);
  add(to, tensors.at("k.keys"), tensors.at("k.weight"),
      since < 0 ? at::Tensor() : numbers_of(removed));
}

std::vector<int64_t> all_rows() {
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < kRows; ++row) rows.push_back(row);
  return rows;
}

/// A save of `step`, its rows in two blocks; `since` is the step of the save before, of a delta.
void save(CheckpointFolder& checkpoints, int64_t step, int64_t since = -1) {
  const auto kind = since < 0 ? CheckpointKind::kFull : CheckpointKind::kDelta;
  StreamedTensors& to = checkpoints.begin(step, kind);
  std::set<int64_t> changed;
  for (int64_t s = since + 1; s <= step; ++s) changed.merge(rows_of_step(s));
  const std::vector<int64_t> rows =
      since < 0 ? all_rows() : std::vector(changed.begin(), changed.end());
  const at::Tensor values = rows_after(step, rows), numbers = at::tensor(rows, at::kLong);
  const int64_t count = values.size(0), half = count / 2;
  if (since < 0) {
    to.begin({{"t.weight", at::kFloat, {count, kWidth}}});
    to.append({values.narrow(0, 0, half)});
    to.append({values.narrow(0, half, count - half)});
  } else {
    to.begin({{"t.weight", at::kFloat, {count, kWidth}, "t.rows"}, {"t.rows", at::kLong, {count}}});
    to.append({values.narrow(0, 0, half), numbers.narrow(0, 0, half)});
    to.append({values.narrow(0, half, count - half), numbers.narrow(0, half, count - half)});
  }
  add_keyed(to, step, since);
  checkpoints.save(
      {.step = step, .tensors = {{"dense", at::full({4}, step)}}, .state = {{"at", step}}});
  checkpoints.wait();
}

void expect_step(const Snapshot& found, int64_t step) {
  EXPECT_EQ(found.step, step);
  EXPECT_EQ(found.state["at"], step);
  ASSERT_EQ(found.tensors.size(), 4);
  EXPECT_TRUE(torch::equal(found.tensors.at("dense"), at::full({4}, step)));
  EXPECT_TRUE(torch::equal(found.tensors.at("t.weight"), rows_after(step, all_rows()))) << step;
  for (const auto& [name, tensor] : keyed_tensors(keyed_after(step)))
    EXPECT_TRUE(torch::equal(found.tensors.at(name), tensor)) << step << ": " << name;
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const UserError& error) {
    return std::string(error.what()) + " | " + error.help();
  }
  return "no error";
}

class DeltaCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / fmt::format("dovetail-delta-{}", ::getpid());
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  /// A full one of step 2, and deltas of 4, 6 and so on.
  void save_chain(int64_t last, int64_t keep = 100) const {
    CheckpointFolder checkpoints(folder_, {.keep = keep});
    save(checkpoints, 2);
    for (int64_t step = 4; step <= last; step += 2) save(checkpoints, step, step - 2);
  }
  std::vector<int64_t> steps() const { return CheckpointFolder(folder_, {}).steps(); }
  fs::path path_of(int64_t step) const { return CheckpointFolder(folder_, {}).path_of(step); }

  fs::path folder_;
};

TEST_F(DeltaCheckpoint, OfAnyLengthOfChainIsWhatAFullOneWouldHold) {
  save_chain(12);
  for (int64_t step = 2; step <= 12; step += 2) expect_step(read_checkpoint(path_of(step)), step);
  expect_step(read_checkpoint(path_of(8) / ""), 8);
  expect_step(read_latest_checkpoint(folder_), 12);
  const StoredCheckpoint newest(path_of(12));
  EXPECT_EQ(newest.links().size(), 6);
  EXPECT_THAT(newest.names(), ElementsAre("dense", "k.keys", "k.weight", "t.weight"));
  EXPECT_EQ(newest.links()[1].files.at("t.weight")->shape("t.weight")[0], 5)
      << "other rows than changed";
}

TEST_F(DeltaCheckpoint, StreamedTensorsAreTheFilesOfTensorsAtOnce) {
  save_chain(2);
  const std::string whole =
      write_safetensors(folder_ / "whole.safetensors", {{"t.weight", rows_after(2, all_rows())}});
  EXPECT_EQ(sha256_of_file(path_of(2) / "rows-00001.safetensors"), whole);
}

/// Blocks are views of one tensor, which changes while a thread writes them.
TEST_F(DeltaCheckpoint, TrainingMayChangeRowsWhileTheyAreWritten) {
  for (const bool beside_training : {true, false}) {
    CheckpointFolder checkpoints(folder_, {.beside_training = beside_training});
    StreamedTensors& to = checkpoints.begin(2, CheckpointKind::kFull);
    constexpr int64_t kBlocks = 200, kBlockRows = 5000;
    to.begin({{"t.weight", at::kFloat, {kBlocks * kBlockRows, 4}}});
    at::Tensor rows = at::empty({kBlockRows, 4});
    for (int64_t block = 0; block < kBlocks; ++block) to.append({rows.fill_(block)});
    rows.fill_(-1);
    checkpoints.save({.step = 2});
    checkpoints.wait();
    const at::Tensor expected = at::arange(kBlocks)
                                    .repeat_interleave(kBlockRows)
                                    .to(at::kFloat)
                                    .unsqueeze(1)
                                    .expand({-1, 4});
    EXPECT_TRUE(at::equal(read_checkpoint(path_of(2)).tensors.at("t.weight"), expected))
        << beside_training;
  }
}

TEST_F(DeltaCheckpoint, KeepsWhatAKeptOneBuildsOn) {
  CheckpointFolder checkpoints(folder_, {.keep = 1});
  save(checkpoints, 2);
  save(checkpoints, 4, 2);
  save(checkpoints, 6, 4);
  EXPECT_THAT(steps(), ElementsAre(2, 4, 6));
  save(checkpoints, 8);
  EXPECT_THAT(steps(), ElementsAre(8));
  save(checkpoints, 10, 8);
  EXPECT_THAT(steps(), ElementsAre(8, 10));
  expect_step(read_latest_checkpoint(folder_), 10);
}

TEST_F(DeltaCheckpoint, KeepsWhatLaterOnesOfARunThatWentBackBuildOn) {
  save_chain(6);
  CheckpointFolder checkpoints(folder_, {.keep = 1});
  save(checkpoints, 5);
  EXPECT_THAT(steps(), ElementsAre(2, 4, 5, 6));
  expect_step(read_checkpoint(path_of(6)), 6);
}

TEST_F(DeltaCheckpoint, NamesTheLinkThatIsMissing) {
  save_chain(8);
  fs::remove_all(path_of(4));
  for (const int64_t step : {6, 8})
    EXPECT_THAT(message_of([&] { read_checkpoint(path_of(step)); }),
                AllOf(HasSubstr("builds on step-00000004, which cannot be used"),
                      HasSubstr("no such checkpoint folder"),
                      HasSubstr("the earlier " + path_of(2).string() + " verifies")));
  expect_step(read_latest_checkpoint(folder_), 2);
}

TEST_F(DeltaCheckpoint, NamesTheFileOfALinkThatIsDamaged) {
  save_chain(8);
  const fs::path file = path_of(6) / "rows-00001.safetensors";
  std::string content = read_file(file);
  content.back() ^= 1;
  write_file_atomically(file, content);
  EXPECT_THAT(
      message_of([&] { read_checkpoint(path_of(8)); }),
      AllOf(HasSubstr("builds on step-00000006"), HasSubstr("rows-00001.safetensors is damaged")));
  expect_step(read_latest_checkpoint(folder_), 4);
}

TEST_F(DeltaCheckpoint, RefusesALinkThatWasReplaced) {
  save_chain(6);
  CheckpointFolder checkpoints(folder_, {.keep = 100});
  save(checkpoints, 4);
  EXPECT_THAT(message_of([&] { read_checkpoint(path_of(6)); }),
              HasSubstr("another one than when the delta was written"));
}

TEST_F(DeltaCheckpoint, AnOlderProgramRefusesIt) {
  save_chain(4);
  EXPECT_EQ(nlohmann::json::parse(read_file(path_of(2) / "manifest.json"))["version"], 1);
  EXPECT_EQ(nlohmann::json::parse(read_file(path_of(4) / "manifest.json"))["version"], 3);
  CheckpointFolder checkpoints(folder_, {});
  for (const auto kind : {CheckpointKind::kFull, CheckpointKind::kDelta}) {
    const int64_t step = kind == CheckpointKind::kFull ? 6 : 8;
    checkpoints.begin(step, kind);
    checkpoints.save({.step = step});
    checkpoints.wait();
  }
  EXPECT_EQ(nlohmann::json::parse(read_file(path_of(8) / "manifest.json"))["version"], 2)
      << "without keys";
}

TEST_F(DeltaCheckpoint, TakesRowsOfRemovedKeysAway) {
  save_chain(12);
  const StoredCheckpoint newest(path_of(12));
  int64_t removed = 0, rows = 0;
  for (const auto& link : newest.links()) {
    if (link.step > 2) removed += link.files.at("k.removed")->shape("k.removed")[0];
    if (link.step > 2) rows += link.files.at("k.keys")->shape("k.keys")[0];
  }
  EXPECT_GT(removed, 4);
  EXPECT_LT(rows, 5 * 6 + 1) << "more rows than changed";
}

TEST_F(DeltaCheckpoint, RefusesKeysThatFitNothing) {
  const auto error_of = [&](const at::Tensor& keys, const at::Tensor& values,
                            const at::Tensor& removed) {
    CheckpointFolder checkpoints(folder_, {});
    save(checkpoints, 2);
    StreamedTensors& to = checkpoints.begin(4, CheckpointKind::kDelta);
    to.begin({{"t.weight", at::kFloat, {0, kWidth}, "t.rows"}, {"t.rows", at::kLong, {0}}});
    add(to, keys, values, removed);
    checkpoints.save({.step = 4});
    checkpoints.wait();
    return message_of([&] { read_checkpoint(path_of(4)); });
  };
  const at::Tensor none = numbers_of({}), one = numbers_of({5}), two = numbers_of({5, 7});
  const auto values = [](int64_t rows) { return at::ones({rows, kWidth}); };
  EXPECT_EQ(error_of(two, values(2), none), "no error");
  EXPECT_THAT(
      error_of(two, values(2), one),
      AllOf(HasSubstr("step-00000004: 'k.removed' has keys that step-00000002 does not have")));
  EXPECT_THAT(error_of(two.flip(0), values(2), none), HasSubstr("the keys 'k.keys' do not ascend"));
  EXPECT_THAT(error_of(two, values(1), none), HasSubstr("rows of 'k.weight' do not fit"));
  EXPECT_THAT(error_of(two, values(2).to(at::kDouble), none),
              HasSubstr("rows of 'k.weight' do not fit"));
}

/// Saves rows with their numbers: a full checkpoint that leaves the others out, or a delta.
void save_rows(CheckpointFolder& checkpoints, int64_t step, CheckpointKind kind,
               const std::vector<int64_t>& rows) {
  StreamedTensors& to = checkpoints.begin(step, kind);
  const int64_t count = std::ssize(rows);
  to.begin({{"t.weight", at::kFloat, {count, kWidth}, "t.rows"}, {"t.rows", at::kLong, {count}}});
  to.append({at::full({count, kWidth}, step, at::kFloat), at::tensor(rows, at::kLong)});
  checkpoints.save({.step = step});
  checkpoints.wait();
}

TEST_F(DeltaCheckpoint, AFullOneMayHoldSomeRowsToWhichDeltasAddOthers) {
  CheckpointFolder checkpoints(folder_, {});
  save_rows(checkpoints, 2, CheckpointKind::kFull, {3, 7, 9});
  save_rows(checkpoints, 4, CheckpointKind::kDelta, {1, 7});
  save_rows(checkpoints, 6, CheckpointKind::kDelta, {});
  save_rows(checkpoints, 8, CheckpointKind::kDelta, {9, 40});
  const auto expect = [&](int64_t step, const std::vector<int64_t>& rows,
                          const std::vector<float>& values) {
    const StoredCheckpoint stored(path_of(step));
    EXPECT_THAT(stored.names(), ElementsAre("t.rows", "t.weight"));
    EXPECT_TRUE(at::equal(stored.read("t.rows"), at::tensor(rows, at::kLong))) << step;
    EXPECT_TRUE(at::equal(stored.read("t.weight").select(1, 0), at::tensor(values))) << step;
  };
  expect(2, {3, 7, 9}, {2, 2, 2});
  expect(4, {1, 3, 7, 9}, {4, 2, 4, 2});
  expect(6, {1, 3, 7, 9}, {4, 2, 4, 2});
  expect(8, {1, 3, 7, 9, 40}, {4, 2, 4, 8, 8});
  const auto version = [&](int64_t step) {
    return nlohmann::json::parse(read_file(path_of(step) / "manifest.json"))["version"]
        .get<int64_t>();
  };
  EXPECT_EQ(version(2), 4) << "a program that knows whole tensors alone refuses it";
  EXPECT_EQ(version(4), 2);
  save_rows(checkpoints, 10, CheckpointKind::kFull, {7, 3});
  EXPECT_THAT(message_of([&] { read_checkpoint(path_of(10)); }),
              HasSubstr("the keys 't.rows' do not ascend"));
}

TEST_F(DeltaCheckpoint, RefusesNaNInABlockAndLeavesNothing) {
  save_chain(2);
  CheckpointFolder checkpoints(folder_, {});
  StreamedTensors& to = checkpoints.begin(4, CheckpointKind::kFull);
  to.begin({{"t.weight", at::kFloat, {2, 1}}});
  to.append({at::full({1, 1}, std::numeric_limits<float>::quiet_NaN())});
  to.append({at::zeros({1, 1})});
  EXPECT_THAT(message_of([&] { checkpoints.save({.step = 4}); }),
              HasSubstr("checkpoint of step 4 refused: 't.weight' has a NaN"));
  for (const auto& entry : fs::directory_iterator(folder_)) EXPECT_EQ(entry.path(), path_of(2));
  save(checkpoints, 6);
  expect_step(read_latest_checkpoint(folder_), 6);
}

TEST_F(DeltaCheckpoint, ADiskThatTakesNoMoreLosesNoEarlierCheckpoint) {
  save_chain(4);
  CheckpointFolder checkpoints(folder_, {});
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{.rlim_cur = 100000, .rlim_max = old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  StreamedTensors& to = checkpoints.begin(6, CheckpointKind::kFull);
  to.begin({{"t.weight", at::kFloat, {100000, 1}}});
  for (int block = 0; block < 10; ++block) to.append({at::zeros({10000, 1})});
  checkpoints.save({.step = 6});
  const std::string message = message_of([&] { checkpoints.wait(); });
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_THAT(message,
              AllOf(HasSubstr("the checkpoint of step 6 was not written"),
                    HasSubstr("File too large"), HasSubstr("the newest is step-00000004")));
  EXPECT_FALSE(fs::exists(folder_ / ".step-00000006.partial"));
  expect_step(read_latest_checkpoint(folder_), 4);
}

/// Not a test of its own: the process that the next test kills. Saves from the newest step on, for
/// ever.
TEST(DeltaChild, SavesUntilKilled) {
  const char* folder = std::getenv(test::kChildFolder);
  if (!folder) GTEST_SKIP() << "runs only as the child of DeltaCheckpoint.KilledAtAnyMoment...";
  CheckpointFolder checkpoints(folder, {.keep = 2});
  checkpoints.clean();
  const int64_t first = std::max<int64_t>(0, read_latest_checkpoint(folder).step);
  for (int64_t step = first;; ++step) {
    save(checkpoints, step, (step - first) % 3 == 0 ? -1 : step - 1);
    ASSERT_EQ(::write(test::kSavesFd, "s", 1), 1);
  }
}

TEST_F(DeltaCheckpoint, KilledAtAnyMomentLeavesOnlyWholeChains) {
  fs::create_directories(folder_);
  const int rounds = std::getenv("DOVETAIL_ALL") ? 100 : 8;
  const auto check = [&](const std::vector<int64_t>& found) {
    for (const int64_t step : found) expect_step(read_checkpoint(path_of(step)), step);
  };
  test::kill_at_random_moments("DeltaChild.*", folder_, rounds, std::chrono::milliseconds(60),
                               check);
}

}  // namespace
}  // namespace dovetail::io::delta_checkpoint_test
