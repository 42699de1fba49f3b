#include "dovetail/io/checkpoint.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <torch/types.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/machine.h"
#include "tests/io/child.h"

namespace dovetail::io::checkpoint_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const UserError& error) {
    return std::string(error.what()) + " | " + error.help();
  }
  return "no error";
}

/// Tensors that differ in every step, of every kind a trainer stores.
Snapshot snapshot_of(int64_t step, int64_t size = 1000) {
  torch::manual_seed(step);
  return {.step = step,
          .tensors = {{"model.w", torch::randn({size})},
                      {"model.half", torch::randn({7, 5}).to(at::kBFloat16)},
                      {"optimizer.m.w", torch::randn({size}).to(at::kDouble)},
                      {"optimizer.v.w", torch::rand({3, size}).t()},
                      {"scalar", torch::tensor(step)},
                      {"empty", torch::empty({0, 3})}},
          .state = {{"seed", 7},
                    {"position", step * 12},
                    {"lr", 0.1 + 1e-17},
                    {"config", {{"a", nullptr}, {"b", "\u00e9"}}}}};
}

void expect_same(const Snapshot& a, const Snapshot& b) {
  EXPECT_EQ(a.step, b.step);
  EXPECT_EQ(a.state, b.state);
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (const auto& [name, tensor] : a.tensors) {
    ASSERT_TRUE(b.tensors.contains(name)) << name;
    EXPECT_EQ(tensor.scalar_type(), b.tensors.at(name).scalar_type()) << name;
    EXPECT_TRUE(torch::equal(tensor, b.tensors.at(name))) << name;
  }
}

std::vector<std::string> hidden_names(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().filename().string().starts_with('.'))
      names.push_back(entry.path().filename().string());
  return names;
}

class Checkpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / fmt::format("dovetail-checkpoint-{}", ::getpid());
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void save(const std::vector<int64_t>& steps, CheckpointFolder::Options options = {}) const {
    CheckpointFolder checkpoints(folder_, options);
    for (const int64_t step : steps) {
      checkpoints.save(snapshot_of(step));
      checkpoints.wait();
    }
  }
  std::vector<int64_t> steps() const { return CheckpointFolder(folder_, {}).steps(); }
  fs::path path_of(int64_t step) const { return CheckpointFolder(folder_, {}).path_of(step); }

  void edit_manifest(int64_t step, const std::function<void(nlohmann::json&)>& edit,
                     bool sign = true) const {
    auto content = nlohmann::json::parse(read_file(path_of(step) / "manifest.json"));
    edit(content);
    content.erase("checksum");
    if (sign) content["checksum"] = sha256_of(content.dump());
    write_file_atomically(path_of(step) / "manifest.json", content.dump());
  }

  fs::path folder_;
};

TEST_F(Checkpoint, GivesBackWhatWasSaved) {
  save({12});
  EXPECT_EQ(path_of(12).filename(), "step-00000012");
  expect_same(read_checkpoint(path_of(12)), snapshot_of(12));
  expect_same(read_checkpoint(path_of(12) / ""), snapshot_of(12));
  expect_same(read_latest_checkpoint(folder_), snapshot_of(12));
  EXPECT_THAT(hidden_names(folder_), ElementsAre());
  EXPECT_THAT(hidden_names(path_of(12)), ElementsAre());
}

TEST_F(Checkpoint, AStepOfNineDigitsIsAStep) {
  save({99999999, 100000000});
  EXPECT_THAT(steps(), ElementsAre(99999999, 100000000));
  EXPECT_EQ(read_latest_checkpoint(folder_).step, 100000000);
}

TEST_F(Checkpoint, WithoutAnyThereIsNoLatest) {
  EXPECT_EQ(read_latest_checkpoint(folder_).step, -1);
  fs::create_directories(folder_ / "step-7");  // not a name of ours
  fs::create_directories(folder_ / "step-000000x7");
  EXPECT_EQ(read_latest_checkpoint(folder_).step, -1);
  EXPECT_THAT(steps(), ElementsAre());
}

TEST_F(Checkpoint, AnEmptySnapshotIsOne) {
  CheckpointFolder checkpoints(folder_, {});
  checkpoints.save({.step = 0});
  checkpoints.wait();
  EXPECT_TRUE(read_checkpoint(checkpoints.path_of(0)).tensors.empty());
}

TEST_F(Checkpoint, ShardsHoldAtMostTheirSizeAndTogetherEverything) {
  // In order of names: empty 0, model.half 70, model.w 4000, optimizer.m.w 8000, optimizer.v.w
  // 12000, scalar 8 bytes.
  for (const auto& [shard_bytes, expected] :
       std::map<int64_t, size_t>{{1, 6}, {5000, 4}, {12070, 2}, {1 << 30, 1}}) {
    save({3}, {.shard_bytes = shard_bytes});
    expect_same(read_checkpoint(path_of(3)), snapshot_of(3));
    size_t files = 0;
    for (const auto& entry : fs::directory_iterator(path_of(3)))
      files += entry.path().extension() == ".safetensors";
    EXPECT_EQ(files, expected) << shard_bytes;
  }
}

TEST_F(Checkpoint, TrainingMayGoOnWhileItIsWritten) {
  CheckpointFolder checkpoints(folder_, {});
  auto snapshot = snapshot_of(1, 300000);
  checkpoints.save(snapshot);
  for (auto& [name, tensor] : snapshot.tensors) tensor.zero_();
  checkpoints.wait();
  expect_same(read_checkpoint(checkpoints.path_of(1)), snapshot_of(1, 300000));
}

TEST_F(Checkpoint, KeepsTheNewestOfTheStepsUpToTheLastSaved) {
  save({10, 20, 30, 40}, {.keep = 2});
  EXPECT_THAT(steps(), ElementsAre(30, 40));
  save({35}, {.keep = 2});  // the run went back to 30: 40 is another future, and 35 must not be the
                            // one that goes
  EXPECT_THAT(steps(), ElementsAre(30, 35, 40));
  save({41}, {.keep = 1});
  EXPECT_THAT(steps(), ElementsAre(41));
  EXPECT_THROW(save({50}, {.keep = 0}), UserError);
}

TEST_F(Checkpoint, ASecondSaveOfAStepReplacesTheFirst) {
  save({5});
  auto other = snapshot_of(6);
  other.step = 5;
  CheckpointFolder checkpoints(folder_, {});
  checkpoints.save(other);
  checkpoints.wait();
  expect_same(read_checkpoint(path_of(5)), other);
  EXPECT_THAT(hidden_names(folder_), ElementsAre());
}

TEST_F(Checkpoint, ALeftoverOfTheSameStepDoesNotGetIntoIt) {
  fs::create_directories(folder_ / ".step-00000005.partial");
  write_file_atomically(folder_ / ".step-00000005.partial" / "old", "half");
  save({5});
  EXPECT_FALSE(fs::exists(path_of(5) / "old"));
  expect_same(read_checkpoint(path_of(5)), snapshot_of(5));
}

TEST_F(Checkpoint, RefusesNonFiniteTensorsByName) {
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity(),
                           -std::numeric_limits<double>::infinity()})
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kFloat8_e5m2}) {
      auto snapshot = snapshot_of(1);
      auto tensor = torch::zeros({1000});
      tensor[777] = bad;
      snapshot.tensors["model.bad"] = tensor.to(dtype);
      CheckpointFolder checkpoints(folder_, {});
      EXPECT_THAT(message_of([&] { checkpoints.save(snapshot); }),
                  AllOf(HasSubstr("'model.bad'"), HasSubstr("step 1")));
      checkpoints.wait();
      EXPECT_THAT(steps(), ElementsAre());
    }
}

TEST_F(Checkpoint, RefusesAStateThatJsonCannotHold) {
  CheckpointFolder checkpoints(folder_, {});
  auto snapshot = snapshot_of(1);
  snapshot.state["loss"] = std::nan("");
  EXPECT_THAT(message_of([&] { checkpoints.save(snapshot); }), HasSubstr("NaN"));
  snapshot.state["loss"] = "\xff";
  EXPECT_THAT(message_of([&] { checkpoints.save(snapshot); }), HasSubstr("UTF-8"));
}

TEST_F(Checkpoint, RefusesADamagedFileAndOffersTheEarlierOne) {
  save({1, 2, 3}, {.shard_bytes = 5000});
  const auto file = path_of(3) / "tensors-00002-of-00004.safetensors";
  const auto whole = read_file(file);
  const auto refused = [&] { return message_of([&] { read_checkpoint(path_of(3)); }); };

  auto flipped = whole;
  flipped[flipped.size() - 5] ^= 1;
  write_file_atomically(file, flipped);
  EXPECT_THAT(refused(), AllOf(HasSubstr("tensors-00002-of-00004.safetensors is damaged"),
                               HasSubstr("step-00000002 verifies")));
  write_file_atomically(file, whole.substr(0, whole.size() - 1));
  EXPECT_THAT(refused(), HasSubstr("cut short"));
  write_file_atomically(file, whole + "x");
  EXPECT_THAT(refused(), HasSubstr("too long"));
  fs::remove(file);
  EXPECT_THAT(refused(), HasSubstr("is missing"));
  expect_same(read_latest_checkpoint(folder_), snapshot_of(2));

  fs::remove(path_of(2) / "manifest.json");
  EXPECT_THAT(refused(), HasSubstr("step-00000001 verifies"));
  fs::remove_all(path_of(1));
  EXPECT_THAT(refused(), HasSubstr("no earlier checkpoint"));
  EXPECT_THAT(message_of([&] { read_latest_checkpoint(folder_); }),
              HasSubstr("none of the 2 checkpoints"));
}

TEST_F(Checkpoint, RefusesADamagedForeignOrNewerManifest) {
  save({1, 2});
  const auto manifest = path_of(2) / "manifest.json";
  const auto whole = read_file(manifest);
  const auto refused_with = [&](const std::string& text) {
    write_file_atomically(manifest, text);
    const auto message = message_of([&] { read_checkpoint(path_of(2)); });
    EXPECT_THAT(message, HasSubstr("step-00000001 verifies"));
    EXPECT_EQ(read_latest_checkpoint(folder_).step, 1);
    return message;
  };
  const auto edited = [&](const std::function<void(nlohmann::json&)>& edit, bool sign = true) {
    write_file_atomically(manifest, whole);
    edit_manifest(2, edit, sign);
    return refused_with(read_file(manifest));
  };
  EXPECT_THAT(refused_with(""), HasSubstr("damaged"));
  EXPECT_THAT(refused_with(whole.substr(0, whole.size() / 2)), HasSubstr("damaged"));
  EXPECT_THAT(refused_with("[]"), HasSubstr("not a Dovetail checkpoint"));
  EXPECT_THAT(refused_with(R"({"architectures": ["LlamaForCausalLM"]})"),
              HasSubstr("not a Dovetail checkpoint"));
  EXPECT_THAT(edited([](auto& m) { m["version"] = 5; }), HasSubstr("newer Dovetail"));
  EXPECT_THAT(edited([](auto& m) { m["version"] = "1"; }), HasSubstr("damaged"));
  EXPECT_THAT(edited([](auto& m) { m["state"]["seed"] = 8; }, /*sign=*/false),
              HasSubstr("checksum"));
  EXPECT_THAT(edited([](auto& m) { m.erase("state"); }), HasSubstr("incomplete"));
  EXPECT_THAT(edited([](auto& m) { m["files"][0].erase("sha256"); }), HasSubstr("incomplete"));
  EXPECT_THAT(edited([](auto& m) { m["step"] = 3; }), HasSubstr("holds step 3"));
  EXPECT_THAT(edited([](auto& m) { m["files"][0]["name"] = "../x"; }),
              HasSubstr("leaves the folder"));
  EXPECT_THAT(edited([](auto& m) { m["files"][0]["tensors"].erase(0); }),
              HasSubstr("other tensors"));
  write_file_atomically(manifest, whole);
  EXPECT_EQ(read_checkpoint(path_of(2)).step, 2);

  std::string flipped = whole;
  flipped[flipped.find("position") + 1] ^= 1;
  EXPECT_THAT(refused_with(flipped), HasSubstr("checksum"));
}

TEST_F(Checkpoint, SaysWhenThePathIsNoCheckpoint) {
  fs::create_directories(folder_ / "model");
  EXPECT_THAT(message_of([&] { read_checkpoint(folder_ / "absent"); }),
              HasSubstr("no such checkpoint"));
  EXPECT_THAT(message_of([&] { read_checkpoint(folder_ / "model"); }),
              HasSubstr("no manifest.json"));
  save({4});
  fs::rename(path_of(4), folder_ / "best");  // a copy under a name of the user's own is fine
  EXPECT_EQ(read_checkpoint(folder_ / "best").step, 4);
  fs::rename(folder_ / "best", path_of(5));
  EXPECT_THAT(message_of([&] { read_checkpoint(path_of(5)); }), HasSubstr("holds step 4"));
}

TEST_F(Checkpoint, CleanRemovesLeftoversOnly) {
  save({1});
  fs::create_directories(folder_ / ".step-00000002.partial" / "deep");
  write_file_atomically(folder_ / ".step-00000002.partial" / "tensors-00001-of-00001.safetensors",
                        "half");
  fs::create_directories(folder_ / ".step-00000001.old.partial");
  write_file_atomically(folder_ / "notes.txt", "mine");
  CheckpointFolder(folder_, {}).clean();
  EXPECT_THAT(hidden_names(folder_), ElementsAre());
  EXPECT_TRUE(fs::exists(folder_ / "notes.txt"));
  expect_same(read_latest_checkpoint(folder_), snapshot_of(1));
}

/// Law of a failed save: its error names the reason, and previous checkpoints remain. Nothing is
/// left over, and the next save succeeds.
void expect_a_failed_save_to_lose_nothing(const fs::path& folder,
                                          const std::function<void()>& restrict,
                                          const std::function<void()>& release) {
  CheckpointFolder checkpoints(folder, {});
  for (const int64_t step : {1, 2}) {
    checkpoints.save(snapshot_of(step));
    checkpoints.wait();
  }
  restrict();
  checkpoints.save(snapshot_of(3, 100000));
  const auto message = message_of([&] { checkpoints.wait(); });
  checkpoints.save(snapshot_of(4, 100000));
  const auto seen_by_next_save = message_of([&] { checkpoints.save(snapshot_of(5)); });
  release();
  EXPECT_THAT(message,
              AllOf(HasSubstr("step 3 was not written"), HasSubstr("the newest is step-00000002")));
  EXPECT_THAT(seen_by_next_save, HasSubstr("step 4 was not written"));
  EXPECT_THAT(hidden_names(folder), ElementsAre());
  EXPECT_THAT(checkpoints.steps(), ElementsAre(1, 2));
  expect_same(read_checkpoint(checkpoints.path_of(1)), snapshot_of(1));
  expect_same(read_latest_checkpoint(folder), snapshot_of(2));
  checkpoints.save(snapshot_of(6));
  checkpoints.wait();
  expect_same(read_latest_checkpoint(folder), snapshot_of(6));
}

TEST_F(Checkpoint, AFileSizeLimitLosesNoEarlierCheckpoint) {
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  expect_a_failed_save_to_lose_nothing(
      folder_,
      [&] {
        const rlimit limit{.rlim_cur = 100000, .rlim_max = old.rlim_max};
        ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
      },
      [&] { ::setrlimit(RLIMIT_FSIZE, &old); });
  std::signal(SIGXFSZ, old_handler);
}

TEST_F(Checkpoint, AFullDiskLosesNoEarlierCheckpoint) {
  fs::create_directories(folder_);
  std::string skipped;
  // A mount namespace belongs to a thread: the tmpfs goes away with this one, whatever happens.
  std::thread([&] {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", folder_.c_str(), "tmpfs", 0, "size=512k") != 0) {
      skipped = std::strerror(errno);
      return;
    }
    expect_a_failed_save_to_lose_nothing(folder_, [] {}, [] {});
    ::umount(folder_.c_str());
  }).join();
  if (!skipped.empty()) GTEST_SKIP() << "a tmpfs cannot be mounted here: " << skipped;
}

/// Not a test of its own: the process that the next test kills. Saves from the newest step on, for
/// ever.
TEST(CheckpointChild, SavesUntilKilled) {
  const char* folder = std::getenv(test::kChildFolder);
  if (!folder) GTEST_SKIP() << "runs only as the child of Checkpoint.KilledAtAnyMoment...";
  CheckpointFolder checkpoints(folder, {.keep = 2, .shard_bytes = 10000});
  checkpoints.clean();
  ASSERT_TRUE(hidden_names(folder).empty());
  for (int64_t step = read_latest_checkpoint(folder).step;; ++step) {
    checkpoints.save(snapshot_of(std::max<int64_t>(step, 0)));  // the newest is replaced first
    checkpoints.wait();
    ASSERT_EQ(::write(test::kSavesFd, "s", 1), 1);
  }
}

TEST_F(Checkpoint, KilledAtAnyMomentLeavesOnlyWholeCheckpoints) {
  fs::create_directories(folder_);
  const int rounds = std::getenv("DOVETAIL_ALL") ? 100 : 10;
  int64_t newest = -1;
  int interrupted = 0;
  const auto check = [&](const std::vector<int64_t>& found) {
    interrupted += !hidden_names(folder_).empty();
    for (const int64_t step : found) expect_same(read_checkpoint(path_of(step)), snapshot_of(step));
    newest = found.back();
  };
  test::kill_at_random_moments("CheckpointChild.*", folder_, rounds, std::chrono::milliseconds(30),
                               check);
  if (HasFatalFailure()) return;
  std::printf("%d of %d kills met a save\n", interrupted, rounds);
  EXPECT_GT(interrupted, 0) << "no kill met a save: the test proved nothing";
  CheckpointFolder(folder_, {}).clean();
  EXPECT_THAT(hidden_names(folder_), ElementsAre());
  expect_same(read_latest_checkpoint(folder_), snapshot_of(newest));
}

TEST_F(Checkpoint, ASaveThatIsNotBesideTrainingCopiesNothingAndReturnsWhenItIsWritten) {
  CheckpointFolder checkpoints(folder_, {.beside_training = false});
  const at::Tensor weights = torch::randn({1 << 24});  // 64 MiB
  reset_peak_resident();
  const uint64_t before = resident_bytes();
  checkpoints.save({.step = 3, .tensors = {{"w", weights}}, .state = {{"a", 1}}});
  EXPECT_LT(peak_resident_bytes(), before + (uint64_t{16} << 20));
  const at::Tensor saved = weights.clone();
  weights.zero_();
  EXPECT_TRUE(read_latest_checkpoint(folder_).tensors.at("w").equal(saved));
}

}  // namespace
}  // namespace dovetail::io::checkpoint_test
