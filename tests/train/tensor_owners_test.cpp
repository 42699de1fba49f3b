// ctest-labels: threads
// Which rank writes which tensors of a checkpoint.
#include "dovetail/io/tensor_owners.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <set>

#include "dovetail/io/checkpoint.h"
#include "dovetail/io/checkpoint_manifest.h"
#include "tests/comm/ranks.h"
#include "tests/train/tiny_run.h"

namespace dovetail::train::tensor_owners_test {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;
using ::testing::Not;

std::vector<int64_t> bytes_of_ranks(const std::vector<io::CheckpointTensor>& tensors, int ranks,
                                    const io::TensorOwners& owners) {
  std::vector<int64_t> bytes(static_cast<size_t>(ranks), 0);
  for (const auto& tensor : tensors)
    bytes[static_cast<size_t>(owners.of(tensor.name))] += tensor.bytes;
  return bytes;
}

TEST(TensorOwners, RanksWithTheSameTensorsDifferByAtMostOneTensor) {
  std::mt19937_64 random(3);
  for (const int ranks : {1, 2, 3, 7, 32}) {
    for (int round = 0; round < 20; ++round) {
      std::vector<io::CheckpointTensor> tensors;
      int64_t largest = 0;
      for (uint64_t i = 0; i < 1 + random() % 100; ++i) {
        tensors.push_back({fmt::format("t{}", i), static_cast<int64_t>(random() % 1000)});
        largest = std::max(largest, tensors.back().bytes);
      }
      const auto bytes = bytes_of_ranks(tensors, ranks, io::TensorOwners(tensors, ranks, "all"));
      EXPECT_LE(std::ranges::max(bytes) - std::ranges::min(bytes), largest);
      std::ranges::shuffle(tensors, random);
      EXPECT_EQ(bytes_of_ranks(tensors, ranks, io::TensorOwners(tensors, ranks, "all")), bytes);
      for (const auto& tensor : tensors)
        EXPECT_EQ(io::TensorOwners(tensors, ranks, "first").of(tensor.name), 0);
    }
  }
}

TEST(TensorOwners, TensorsThatAllHoldFillUpTheRanksWithFewExperts) {
  // Ranks 0 and 1 hold an expert of 60 bytes, rank 1 one of 100, and all ranks hold 12 times 10.
  std::vector<io::CheckpointTensor> tensors = {{"shared", 60, {0, 1}}, {"own", 100, {1}}};
  for (int i = 0; i < 12; ++i) tensors.push_back({fmt::format("dense{}", i), 10});
  const io::TensorOwners owners(tensors, 3, "all");
  EXPECT_EQ(owners.of("own"), 1);
  EXPECT_EQ(owners.of("shared"), 0);
  EXPECT_EQ(bytes_of_ranks(tensors, 3, owners), (std::vector<int64_t>{90, 100, 90}));
}

/// Layout of a run on several ranks.
struct Layout {
  const char* name;
  int ranks;
  ParallelSection parallel;
  bool mixture = false;
};

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {
      {"dense", 3, {}},
      {"optimizer", 3, {.shard = "optimizer"}},
      {"gradients", 4, {.shard = "gradients"}},
      {"experts", 2, {.expert = 2}, true},
      {"replicas", 4, {.expert = 2}, true},
      {"cut", 4, {.expert = 4, .expert_tensor = 2, .r = 2}, true},
      {"cut_replicas", 4, {.expert = 2, .expert_tensor = 2, .r = 2}, true},
  };
  return all;
}

RunConfig config_of(const test::TinyRun& run, const Layout& layout, const std::string& writers,
                    const std::string& recipe) {
  RunConfig config = run.config(fmt::format("{}_{}_{}", layout.name, writers, recipe));
  config.precision.recipe = recipe;
  config.parallel = layout.parallel;
  config.checkpoint.writers = writers;
  config.checkpoint.every_steps = 5;
  config.train.bucket_bytes = 16384;
  if (layout.mixture) {
    config.model.moe.experts = 6;
    config.model.moe.ffn_width = 24;
    config.model.moe.shared_experts = 1;
    config.model.moe.score = "sigmoid";
    config.model.moe.bias_update_rate = 0.001;
  }
  return config;
}

std::filesystem::path trained(const Layout& layout, const RunConfig& config) {
  expect_all_succeed(layout.ranks, [&](std::shared_ptr<comm::Group> group) {
    train(config, std::move(group), {.quiet = true});
  });
  return config.folder() / "checkpoints" / "step-00000012";
}

/// Returns the rank in the name of a file.
int writer_of(const std::string& file) {
  return file.starts_with("rank-") ? std::stoi(file.substr(5, 5)) : 0;
}

TEST(CheckpointsOfAllRanks, HoldTheBitsThatRankZeroAloneWrites) {
  const test::TinyRun run;
  for (const Layout& layout : layouts()) {
    for (const char* recipe : {"fp32", "bf16"}) {
      SCOPED_TRACE(fmt::format("{} {}", layout.name, recipe));
      const auto all = trained(layout, config_of(run, layout, "all", recipe)),
                 first = trained(layout, config_of(run, layout, "first", recipe));
      const io::Snapshot got = io::read_checkpoint(all), want = io::read_checkpoint(first);
      ASSERT_EQ(got.tensors.size(), want.tensors.size());
      for (const auto& [name, tensor] : want.tensors)
        EXPECT_TRUE(at::equal(got.tensors.at(name), tensor)) << name;
      for (const auto& file : io::read_manifest(first).files) EXPECT_EQ(writer_of(file.name), 0);
      EXPECT_EQ(run.read(first.parent_path().parent_path().filename(), "metrics.jsonl"),
                run.read(all.parent_path().parent_path().filename(), "metrics.jsonl"));
    }
  }
}

TEST(CheckpointsOfAllRanks, AreWrittenInEqualParts) {
  const test::TinyRun run;
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(layout.name);
    const auto path = trained(layout, config_of(run, layout, "all", "fp32"));
    std::vector<int64_t> bytes(static_cast<size_t>(layout.ranks), 0);
    std::vector<std::set<std::string>> experts(bytes.size());
    const io::StoredCheckpoint checkpoint(path);
    int64_t largest = 0;
    for (const auto& file : io::read_manifest(path).files) {
      const auto rank = static_cast<size_t>(writer_of(file.name));
      for (const std::string& name : file.tensors) {
        const auto size = static_cast<int64_t>(checkpoint.read(name).nbytes());
        bytes[rank] += size;
        largest = std::max(largest, size);
        if (name.find(".experts.") != std::string::npos) experts[rank].insert(name);
      }
    }
    EXPECT_LE(std::ranges::max(bytes) - std::ranges::min(bytes), largest);
    if (!layout.mixture) continue;
    EXPECT_THAT(experts, Each(Not(IsEmpty())));
    // Holder h of H has experts [6 h / H, 6 (h + 1) / H).
    const auto cut = std::max<size_t>(1, layout.parallel.expert_tensor),
               holders = layout.parallel.expert / cut;
    for (size_t rank = 0; rank < experts.size(); ++rank) {
      const size_t holder = rank % layout.parallel.expert / cut;
      for (const std::string& name : experts[rank]) {
        const size_t expert = std::stoul(name.substr(name.find(".experts.") + 9));
        EXPECT_TRUE(expert >= 6 * holder / holders && expert < 6 * (holder + 1) / holders)
            << name << " on rank " << rank;
      }
    }
  }
}

}  // namespace
}  // namespace dovetail::train::tensor_owners_test
