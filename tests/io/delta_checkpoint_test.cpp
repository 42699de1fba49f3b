#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/io/checkpoint.h"
#include "tests/io/child.h"

namespace dovetail {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kRows = 50, kWidth = 3;

/// Step s changes these rows, of which some are those of the step before.
std::set<int64_t> rows_of_step(int64_t step) { return {step % kRows, (step + 1) % kRows, 7 * step % kRows}; }

/// What a row is after `step`: the last step that changed it, or -1.
float value_after(int64_t row, int64_t step) {
  for (int64_t s = step; s >= 0; --s)
    if (rows_of_step(s).contains(row)) return static_cast<float>(s);
  return -1;
}

at::Tensor rows_after(int64_t step, const std::vector<int64_t>& rows) {
  at::Tensor values = at::empty({std::ssize(rows), kWidth});
  for (int64_t i = 0; i < std::ssize(rows); ++i) values[i].fill_(value_after(rows[static_cast<size_t>(i)], step));
  return values;
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
  const std::vector<int64_t> rows = since < 0 ? all_rows() : std::vector(changed.begin(), changed.end());
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
  checkpoints.save_async({.step = step, .tensors = {{"dense", at::full({4}, step)}}, .state = {{"at", step}}});
  checkpoints.wait();
}

void expect_step(const Snapshot& found, int64_t step) {
  EXPECT_EQ(found.step, step);
  EXPECT_EQ(found.state["at"], step);
  ASSERT_EQ(found.tensors.size(), 2);
  EXPECT_TRUE(torch::equal(found.tensors.at("dense"), at::full({4}, step)));
  EXPECT_TRUE(torch::equal(found.tensors.at("t.weight"), rows_after(step, all_rows()))) << step;
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const UserError& error) {
    return std::string(error.what()) + " | " + error.help();
  }
  return "no error";
}

class DeltaCheckpoint : public testing::Test {
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
  EXPECT_THAT(newest.names(), ElementsAre("dense", "t.weight"));
  EXPECT_EQ(newest.links()[1].files.at("t.weight")->shape("t.weight")[0], 5) << "other rows than changed";
}

TEST_F(DeltaCheckpoint, StreamedTensorsAreTheFilesOfTensorsAtOnce) {
  save_chain(2);
  const std::string whole = write_safetensors(folder_ / "whole.safetensors", {{"t.weight", rows_after(2, all_rows())}});
  EXPECT_EQ(sha256_of_file(path_of(2) / "rows-00001.safetensors"), whole);
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
    EXPECT_THAT(
        message_of([&] { read_checkpoint(path_of(step)); }),
        AllOf(HasSubstr("builds on step-00000004, which cannot be used"), HasSubstr("no such checkpoint folder"),
              HasSubstr("the earlier " + path_of(2).string() + " verifies")));
  expect_step(read_latest_checkpoint(folder_), 2);
}

TEST_F(DeltaCheckpoint, NamesTheFileOfALinkThatIsDamaged) {
  save_chain(8);
  const fs::path file = path_of(6) / "rows-00001.safetensors";
  std::string content = read_file(file);
  content.back() ^= 1;
  write_file_atomically(file, content);
  EXPECT_THAT(message_of([&] { read_checkpoint(path_of(8)); }),
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
  EXPECT_EQ(nlohmann::json::parse(read_file(path_of(4) / "manifest.json"))["version"], 2);
}

TEST_F(DeltaCheckpoint, RefusesNaNInABlockAndLeavesNothing) {
  save_chain(2);
  CheckpointFolder checkpoints(folder_, {});
  StreamedTensors& to = checkpoints.begin(4, CheckpointKind::kFull);
  to.begin({{"t.weight", at::kFloat, {2, 1}}});
  to.append({at::full({1, 1}, std::numeric_limits<float>::quiet_NaN())});
  to.append({at::zeros({1, 1})});
  EXPECT_THAT(message_of([&] { checkpoints.save_async({.step = 4}); }),
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
  checkpoints.save_async({.step = 6});
  const std::string message = message_of([&] { checkpoints.wait(); });
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_THAT(message, AllOf(HasSubstr("the checkpoint of step 6 was not written"), HasSubstr("File too large"),
                             HasSubstr("the newest is step-00000004")));
  EXPECT_FALSE(fs::exists(folder_ / ".step-00000006.partial"));
  expect_step(read_latest_checkpoint(folder_), 4);
}

/// Not a test of its own: the process that the next test kills. Saves from the newest step on, for ever.
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
  test::kill_at_random_moments("DeltaChild.*", folder_, rounds, std::chrono::milliseconds(60), check);
}

}  // namespace
}  // namespace dovetail
