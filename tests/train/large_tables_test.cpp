// ctest-labels: threads
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <vector>

#include "dovetail/base/rng.h"
#include "dovetail/io/checkpoint.h"
#include "dovetail/train/trainer.h"
#include "tests/base/temporary_folder.h"
#include "tests/train/tiny_run.h"

namespace dovetail::train::large_tables_test {
namespace {

namespace fs = std::filesystem;
using test::train_alone;

/// Rows of the large table: 50 million, and 500 million under `./dev test --all`.
int64_t table_rows() { return std::getenv("DOVETAIL_ALL") == nullptr ? 50000000 : 500000000; }

constexpr int64_t kSteps = 12, kBatch = 512;

/// Runs of a model with one table that does not fit in memory. Few of its rows are read.
class LargeTables : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string text = "item\tuser\tclicked\n";
    for (uint64_t i = 0; i < kSteps * kBatch; ++i) {
      const double u = random_uniform(1, RandomStream::kTest, i);
      items_.push_back(static_cast<int64_t>(std::pow(u, 6) * static_cast<double>(table_rows())));
      text += fmt::format("{}\t{}\t{}\n", items_.back(),
                          random_below(2, RandomStream::kTest, i, 1000), items_.back() % 7 < 3);
    }
    write_file_atomically(folder_ / "rows.tsv", text);
  }

  RunConfig config(const std::string& name) const {
    RunConfig config;
    config.run.name = name;
    config.run.folder = (folder_ / name).string();
    config.run.device = "cpu";
    config.run.threads = 1;
    config.recommender.model = "wide_deep";
    config.recommender.dim = 16;
    config.rows.files = {(folder_ / "rows.tsv").string()};
    config.rows.label = {"clicked"};
    config.rows.sparse = {{.columns = {"item"}, .ids = "integer", .num_rows = table_rows()},
                          {.columns = {"user"}, .ids = "integer", .num_rows = 1000}};
    config.rows.validation_fraction = 0;
    config.embedding.memory_bytes = 8 * table_rows();
    config.embedding.step_rows = 4096;
    config.embedding.warmup_steps = 4;
    config.embedding.refresh_steps = 4;
    config.schedule.decay = "constant";
    config.train.steps = kSteps;
    config.train.batch = kBatch;
    config.precision.recipe = "fp32";
    config.checkpoint.every_steps = CheckpointSection::kEnd;
    config.log.tensorboard = false;
    return config;
  }

  std::vector<nlohmann::json> timings(const std::string& run) const {
    std::vector<nlohmann::json> lines;
    std::istringstream in(read_file((folder_ / run / "timings.jsonl").string()));
    for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }

  test::TemporaryFolder folder_;
  std::vector<int64_t> items_;
};

uint64_t bytes_below(const fs::path& folder) {
  uint64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) bytes += entry.file_size();
  return bytes;
}

TEST_F(LargeTables, ACheckpointHoldsTouchedRowsAndIsWrittenBesideTraining) {
  RunConfig whole = config("whole"), cut = config("cut");
  whole.checkpoint.every_steps = cut.checkpoint.every_steps = 6;
  train_alone(whole);
  for (const auto& line : timings("whole")) {
    if (line["step"] == 6 || line["step"] == kSteps) {
      EXPECT_LT(line["checkpoint_ms"], 2000);
    }
  }
  EXPECT_LT(bytes_below(folder_ / "whole" / "checkpoints"), 2 * 200e6);
  const io::Snapshot end = io::read_latest_checkpoint(folder_ / "whole" / "checkpoints");
  const at::Tensor rows = end.tensors.at("embedding.item.rows");
  const auto* first = rows.const_data_ptr<int64_t>();
  EXPECT_EQ(std::set(first, first + rows.numel()), std::set(items_.begin(), items_.end()));
  // A resumed run has the same rows.
  RunConfig begun = cut;
  begun.train.steps = 6;
  train_alone(begun);
  train_alone(cut);
  const io::Snapshot resumed = io::read_latest_checkpoint(folder_ / "cut" / "checkpoints");
  ASSERT_EQ(resumed.step, kSteps);
  ASSERT_EQ(resumed.tensors.size(), end.tensors.size());
  for (const auto& [name, tensor] : end.tensors)
    EXPECT_TRUE(at::equal(tensor, resumed.tensors.at(name))) << name;
}

TEST_F(LargeTables, ARunWithoutCheckpointsWritesNone) {
  RunConfig none = config("none");
  none.rows.sparse[0].num_rows = none.rows.sparse[1].num_rows;
  none.rows.sparse[0].ids = "hash";
  none.embedding = {};
  none.checkpoint.every_steps = 0;
  train_alone(none);
  EXPECT_TRUE(!fs::exists(folder_ / "none" / "checkpoints") ||
              fs::is_empty(folder_ / "none" / "checkpoints"));
  EXPECT_EQ(timings("none").size(), kSteps);
}

/// Returns the largest time relative to the median.
double worst_over_median(std::vector<double> step_ms) {
  std::ranges::sort(step_ms);
  return step_ms.back() / step_ms[step_ms.size() / 2];
}

/// Takes each step's minimum over some runs, since other processes delay single steps.
TEST_F(LargeTables, AChoiceOfHotRowsAddsLittleToAStep) {
  constexpr int kRuns = 30;
  std::vector<double> step_ms(kSteps - 1, std::numeric_limits<double>::infinity());
  for (int run = 0; run < kRuns && (run < 3 || worst_over_median(step_ms) > 1.5); ++run) {
    RunConfig once = config("timed");
    once.checkpoint.every_steps = 0;
    train_alone(once, {.resume = false});
    const auto lines = timings("timed");
    ASSERT_EQ(lines.size(), kSteps);
    for (size_t i = 0; i < step_ms.size(); ++i)  // leaves out the first step, which warms up
      step_ms[i] = std::min(step_ms[i], lines[i + 1]["step_ms"].get<double>());
  }
  EXPECT_LE(worst_over_median(step_ms), 1.5) << ::testing::PrintToString(step_ms);
}

}  // namespace
}  // namespace dovetail::train::large_tables_test
