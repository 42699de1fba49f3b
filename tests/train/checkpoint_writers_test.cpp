// ctest-labels: threads
// Ranks that write one checkpoint together, and failures of one of them.
#include "dovetail/train/ranks/checkpoint_writers.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/comm/collective.h"
#include "dovetail/io/checkpoint.h"
#include "dovetail/io/checkpoint_manifest.h"
#include "tests/base/temporary_folder.h"
#include "tests/comm/ranks.h"
#include "tests/train/tiny_run.h"

namespace dovetail::train::checkpoint_writers_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int kRanks = 3;

at::Tensor values(int64_t step, int rank, int64_t size = 1000) {
  return at::arange(size, at::kFloat).add_(static_cast<double>(10 * step + rank));
}

/// Saves of several ranks into one folder. Rank r writes the tensor "model.r".
class Writers : public ::testing::TestWithParam<bool> {
 protected:
  io::CheckpointFolder::Options options(comm::Group& group) const {
    return {.keep = 2, .beside_training = GetParam(), .writers = checkpoint_writers(group)};
  }
  static void save(io::CheckpointFolder& checkpoints, const comm::Group& group, int64_t step) {
    checkpoints.begin(step, io::CheckpointKind::kFull);
    save_begun(checkpoints, group, step, values(step, group.rank()));
  }
  static void save_begun(io::CheckpointFolder& checkpoints, const comm::Group& group, int64_t step,
                         const at::Tensor& tensor) {
    checkpoints.save({.step = step,
                      .tensors = {{fmt::format("model.{}", group.rank()), tensor}},
                      .state = {{"step", step}}});
  }
  void expect_saved(int64_t step) const {
    const io::Snapshot found = io::read_latest_checkpoint(folder_.path());
    EXPECT_EQ(found.step, step);
    EXPECT_EQ(found.state["step"], step);
    ASSERT_EQ(found.tensors.size(), kRanks);
    for (int rank = 0; rank < kRanks; ++rank)
      EXPECT_TRUE(at::equal(found.tensors.at(fmt::format("model.{}", rank)), values(step, rank)));
  }
  std::vector<std::string> hidden() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_.path()))
      if (entry.path().filename().string().starts_with("."))
        names.push_back(entry.path().filename());
    return names;
  }

  test::TemporaryFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(BesideTraining, Writers, ::testing::Bool());

TEST_P(Writers, EachRankWritesItsOwnFiles) {
  expect_all_succeed(kRanks, [&](const std::shared_ptr<comm::Group>& group) {
    io::CheckpointFolder checkpoints(folder_.path(), options(*group));
    for (int64_t step = 1; step <= 4; ++step) {
      save(checkpoints, *group, step);
      group->barrier();  // training goes on with collectives of its own
    }
    checkpoints.wait();
  });
  EXPECT_THAT(io::CheckpointFolder(folder_.path(), {}).steps(), ElementsAre(3, 4));
  expect_saved(4);
  std::vector<std::string> files;
  for (const auto& file : io::read_manifest(folder_ / "step-00000004").files) {
    files.push_back(file.name);
    EXPECT_THAT(file.tensors, ElementsAre(fmt::format("model.{}", files.size() - 1)));
  }
  EXPECT_THAT(files, ElementsAre("tensors-00001-of-00001.safetensors",
                                 "rank-00001-tensors-00001-of-00001.safetensors",
                                 "rank-00002-tensors-00001-of-00001.safetensors"));
  EXPECT_THAT(hidden(), IsEmpty());
}

/// Law of a failed save: all ranks throw an error that names the rank and the reason. Earlier
/// checkpoints remain, and the next save succeeds.
TEST_P(Writers, AFaultOfOneRanksDiskFailsTheSaveOnAll) {
  expect_all_succeed(kRanks, [&](const std::shared_ptr<comm::Group>& group) {
    io::CheckpointFolder checkpoints(folder_.path(), options(*group));
    save(checkpoints, *group, 1);
    checkpoints.begin(2, io::CheckpointKind::kFull);
    if (group->rank() == 1)  // a folder stands where its file is to be
      fs::create_directories(folder_ / ".step-00000002.partial" /
                             "rank-00001-tensors-00001-of-00001.safetensors" / "deep");
    std::string message;
    try {
      save_begun(checkpoints, *group, 2, values(2, group->rank()));
      checkpoints.wait();
    } catch (const UserError& error) {
      message = error.what();
      EXPECT_THAT(error.help(), HasSubstr("the newest is step-00000001"));
    }
    EXPECT_THAT(message, AllOf(HasSubstr("step 2 was not written: rank 1: "),
                               HasSubstr("rank-00001-tensors"), Not(HasSubstr("rank 0:")),
                               Not(HasSubstr("rank 2:"))));
    group->barrier();
    EXPECT_THAT(hidden(), IsEmpty());
    group->barrier();
    save(checkpoints, *group, 3);
    checkpoints.wait();
    EXPECT_THAT(checkpoints.steps(), ElementsAre(1, 3));
  });
  expect_saved(3);
}

TEST_P(Writers, ANaNOfOneRankFailsTheSaveOnAll) {
  expect_all_succeed(kRanks, [&](const std::shared_ptr<comm::Group>& group) {
    io::CheckpointFolder checkpoints(folder_.path(), options(*group));
    save(checkpoints, *group, 1);
    checkpoints.begin(2, io::CheckpointKind::kFull);
    at::Tensor tensor = values(2, group->rank());
    if (group->rank() == 2) tensor[5] = std::nan("");
    std::string message;
    try {
      save_begun(checkpoints, *group, 2, tensor);
    } catch (const UserError& error) {
      message = error.what();
      EXPECT_THAT(error.help(), HasSubstr("diverged"));
    }
    EXPECT_THAT(message, AllOf(HasSubstr("rank 2: "), HasSubstr("'model.2' has a NaN")));
    group->barrier();
    EXPECT_THAT(hidden(), IsEmpty());
    group->barrier();
    save(checkpoints, *group, 3);
    checkpoints.wait();
  });
  expect_saved(3);
}

TEST_P(Writers, TheOthersEndIfARankDiesDuringASave) {
  const auto errors = run_ranks(kRanks, [&](const std::shared_ptr<comm::Group>& group) {
    std::optional<io::CheckpointFolder> checkpoints(std::in_place, folder_.path(), options(*group));
    save(*checkpoints, *group, 1);
    checkpoints->begin(2, io::CheckpointKind::kFull);
    if (group->rank() == 2) return;  // its connections close
    try {
      save_begun(*checkpoints, *group, 2, values(2, group->rank()));
      checkpoints->wait();
    } catch (const UserError&) {
      throw std::logic_error("the death of a rank is no fault of the disk");
    }
  });
  EXPECT_EQ(errors[2], "");
  for (const int rank : {0, 1})
    EXPECT_THAT(errors[static_cast<size_t>(rank)], HasSubstr("rank 2 stopped answering"));
  EXPECT_EQ(io::CheckpointFolder(folder_.path(), {}).steps(), std::vector<int64_t>{1});
  expect_saved(1);
}

TEST(CheckpointWriters, OneRankHasNone) {
  EXPECT_EQ(checkpoint_writers(*comm::local_groups(1)[0]), nullptr);
}

TEST(SharedFolder, TheErrorNamesTheRanksThatDoNotSeeIt) {
  const test::TemporaryFolder shared, other;
  expect_all_succeed(kRanks, [&](const std::shared_ptr<comm::Group>& group) {
    check_shared_folder(shared.path(), *group);
  });
  EXPECT_TRUE(fs::is_empty(shared.path()));
  expect_all_succeed(kRanks, [&](const std::shared_ptr<comm::Group>& group) {
    std::string message;
    try {
      check_shared_folder(group->rank() == 0 ? shared.path() : other.path(), *group);
    } catch (const UserError& error) {
      message = error.what();
      EXPECT_THAT(error.help(),
                  AllOf(HasSubstr("run.folder"), HasSubstr("checkpoint.writers = \"first\"")));
    }
    EXPECT_THAT(message, HasSubstr("ranks 1, 2 do not see the folder"));
  });
  EXPECT_TRUE(fs::is_empty(shared.path()));
  EXPECT_TRUE(fs::is_empty(other.path()));
}

/// Trains ranks whose folders differ.
std::vector<std::string> errors_of_apart(const test::TinyRun& run, const std::string& writers) {
  return run_ranks(2, [&](std::shared_ptr<comm::Group> group) {
    RunConfig config = run.config("run");
    if (group->rank() == 1) config.run.folder += "-elsewhere";
    config.checkpoint.writers = writers;
    train(config, std::move(group), {.quiet = true});
  });
}

TEST(SharedFolder, ARunWithoutOneStopsBeforeItsFirstStep) {
  const test::TinyRun run;
  EXPECT_THAT(errors_of_apart(run, "all"), Each(HasSubstr("rank 1 does not see the folder")));
  EXPECT_FALSE(fs::exists(run.file("run", "metrics.jsonl")));
  EXPECT_THAT(errors_of_apart(run, "first"), Each(""));
  EXPECT_FALSE(fs::exists(run.file("run-elsewhere", "")));
  EXPECT_EQ(io::read_latest_checkpoint(run.file("run", "checkpoints")).step, 12);
}

TEST(OnAllRanks, EachRankHearsOfAFailure) {
  const auto errors = run_ranks(3, [](const std::shared_ptr<comm::Group>& group) {
    comm::on_all_ranks(*group, "writing", [&] {
      if (group->rank() == 1) throw UserError("the disk is full");
    });
  });
  EXPECT_EQ(errors[1], "the disk is full");
  for (const int rank : {0, 2})
    EXPECT_EQ(errors[static_cast<size_t>(rank)], "writing: rank 1: the disk is full");
}

TEST(OnAllRanks, WaitsForTheLastRankLongerThanTheGroupsTimeout) {
  std::atomic<int> done = 0;
  const auto errors =
      run_ranks(3,
                [&](const std::shared_ptr<comm::Group>& group) {
                  comm::on_all_ranks(*group, "sleeping", [&] {
                    std::this_thread::sleep_for(std::chrono::seconds(group->rank() == 2 ? 5 : 0));
                    ++done;
                  });
                  EXPECT_EQ(done, 3);
                },
                {.timeout_s = 3});
  EXPECT_THAT(errors, Each(""));
}

}  // namespace
}  // namespace dovetail::train::checkpoint_writers_test
