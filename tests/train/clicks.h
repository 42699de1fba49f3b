#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "dovetail/base/file.h"
#include "dovetail/base/rng.h"
#include "dovetail/io/checkpoint.h"
#include "dovetail/train/config/run_config.h"
#include "dovetail/train/embedding_tables/checkpoint.h"
#include "dovetail/train/embedding_tables/lookups.h"
#include "tests/base/temporary_folder.h"

namespace dovetail::test {

constexpr int64_t kUsers = 40, kItems = 30;

/// Generates rows of clicks. A click is likely if a hidden number of the user and one of the item
/// have the same sign. Neither user, item nor the dense column alone predicts a click.
inline std::string clicks(int rows) {
  const auto draw = [](uint64_t key, uint64_t i, uint64_t below) {
    return random_below(key, RandomStream::kTest, i, below);
  };
  std::string text = "user\titem\tsize\tclicked\n";
  for (int i = 0; i < rows; ++i) {
    const auto at = static_cast<uint64_t>(i);
    const uint64_t user = draw(1, at, kUsers), item = draw(2, at, kItems);
    const bool likes = draw(3, user, 2) == draw(4, item, 2);
    const bool clicked = draw(5, at, 10) < (likes ? 9 : 1);
    text += fmt::format("u{}\ti{}\t{}\t{:d}\n", user, item, draw(6, at, 100), clicked);
  }
  return text;
}

class Clicks {
 public:
  Clicks() { write_file_atomically(folder_ / "clicks.tsv", clicks(6000)); }

  train::RunConfig config(const std::string& model, const std::string& name = "run") const {
    train::RunConfig config;
    config.run.name = name;
    config.run.folder = (folder_ / name).string();
    config.run.device = "cpu";
    config.run.threads = 1;
    config.recommender.model = model;
    config.recommender.dim = 8;
    config.recommender.deep = {16};
    config.rows.files = {(folder_ / "clicks.tsv").string()};
    config.rows.label = {"clicked"};
    config.rows.dense = {{.columns = {"size"}, .transform = "standard"}};
    config.rows.sparse = {{.columns = {"user"}, .num_rows = 50},
                          {.columns = {"item"}, .num_rows = 60}};
    config.rows.shuffle_window = 1000;
    config.embedding.lr = 0.1;
    config.optimizer.lr = 1e-2;
    config.optimizer.weight_decay = 0;
    config.train.steps = 200;
    config.train.batch = 128;
    config.precision.recipe = "fp32";
    config.checkpoint.every_steps = train::CheckpointSection::kEnd;
    config.eval.every_steps = 100;
    config.log.tensorboard = false;
    return config;
  }

  std::vector<nlohmann::json> metrics(const std::string& run) const {
    std::vector<nlohmann::json> lines;
    std::istringstream in(read_file((folder_ / run / "metrics.jsonl").string()));
    for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }
  std::filesystem::path file(const std::string& run, const char* name) const {
    return folder_ / run / name;
  }

 private:
  TemporaryFolder folder_;
};

/// Reads the last checkpoint and completes its tables by initial rows.
inline io::Snapshot last_checkpoint(const train::RunConfig& config) {
  io::Snapshot found = io::read_latest_checkpoint(config.folder() / "checkpoints");
  train::complete_tables(train::RecommenderLookups(config).pack(), found.tensors);
  return found;
}

inline void expect_same_tensors(const io::Snapshot& a, const io::Snapshot& b) {
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (const auto& [name, tensor] : a.tensors)
    EXPECT_TRUE(at::equal(tensor, b.tensors.at(name))) << name;
}

}  // namespace dovetail::test
