#include "dovetail/train/metrics/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/rng.h"
#include "tests/base/temporary_folder.h"

namespace dovetail::train::metrics_test {
namespace {

StepMetrics numbers(int64_t step) {
  const auto draw = [&](uint64_t k) {
    return std::exp(
        40 * random_uniform(3, RandomStream::kTest, static_cast<uint64_t>(step) * 8 + k) - 20);
  };
  StepMetrics m = {
      .step = step, .loss = draw(0), .lr = draw(1), .grad_norm = draw(2), .tokens = step * 77};
  if (step % 3 == 0)
    m.validation = Validation{.loss = draw(3), .nats_per_byte = draw(4), .tokens = 5};
  return m;
}

std::string write_steps(const std::filesystem::path& path, int64_t steps) {
  StepLog log(path, 0);
  for (int64_t step = 1; step <= steps; ++step) log.append(to_json(numbers(step)));
  return read_file(path);
}

TEST(StepMetrics, ReadBackWithTheSameBits) {
  for (int64_t step = 1; step < 200; ++step) {
    const StepMetrics m = numbers(step),
                      back = step_metrics_from_json(nlohmann::json::parse(to_json(m).dump()));
    EXPECT_EQ(m.loss, back.loss);
    EXPECT_EQ(m.lr, back.lr);
    EXPECT_EQ(m.grad_norm, back.grad_norm);
    EXPECT_EQ(m.tokens, back.tokens);
    ASSERT_EQ(m.validation.has_value(), back.validation.has_value());
    if (m.validation) {
      EXPECT_EQ(m.validation->loss, back.validation->loss);
    }
  }
}

TEST(StepMetrics, RankingsOfOneTaskAndOfSeveralReadBack) {
  const TaskRanking late = {.name = "delay > 15",
                            .metrics = {.rows = 7,
                                        .auc = 0.75,
                                        .log_loss = 0.5,
                                        .normalized_entropy = 0.9,
                                        .calibration = 1.25},
                            .gauc = 0.6};
  TaskRanking other = {.name = "cancelled", .metrics = late.metrics, .gauc = std::nullopt};
  other.metrics.auc = NAN;
  StepMetrics m = {.step = 1,
                   .samples = true,
                   .validation = Validation{.loss = 2, .tokens = 9, .tasks = {late}}};
  m.auxiliary_loss = 0.125;
  const auto read = [](const StepMetrics& metrics) {
    return step_metrics_from_json(nlohmann::json::parse(to_json(metrics).dump()));
  };
  const auto one = to_json(m);
  EXPECT_EQ(one["auc"], 0.75);
  EXPECT_EQ(one["gauc"], 0.6);
  EXPECT_FALSE(one.contains("auc_error"));  // exact
  EXPECT_EQ(one["auxiliary_loss"], 0.125);
  EXPECT_FALSE(one.contains("tasks"));
  EXPECT_EQ(read(m).validation->tasks[0].metrics.calibration, 1.25);
  EXPECT_EQ(read(m).auxiliary_loss, 0.125);
  m.validation->tasks[0].metrics.auc_error = 0x1p-9;
  EXPECT_EQ(to_json(m)["auc_error"], 0x1p-9);
  EXPECT_EQ(read(m).validation->tasks[0].metrics.auc_error, 0x1p-9);
  m.validation->tasks.push_back(other);
  const auto two = to_json(m);
  EXPECT_FALSE(two.contains("auc"));
  EXPECT_EQ(two["tasks"]["delay > 15"]["auc"], 0.75);
  EXPECT_TRUE(two["tasks"]["cancelled"]["auc"].is_null());
  EXPECT_EQ(two["tasks"]["cancelled"]["samples"], 7);
  EXPECT_EQ(to_json(read(m))["tasks"]["delay > 15"], two["tasks"]["delay > 15"]);
  EXPECT_EQ(to_json(read(m))["tasks"]["cancelled"], two["tasks"]["cancelled"]);
}

TEST(StepMetrics, WhatIsNotFiniteIsNullAndReadsAsNaN) {
  const auto line = to_json(StepMetrics{.step = 1,
                                        .loss = std::numeric_limits<double>::infinity(),
                                        .grad_norm = NAN,
                                        .skipped = true});
  EXPECT_TRUE(line["loss"].is_null() && line["grad_norm"].is_null() && line["skipped"].get<bool>());
  EXPECT_TRUE(std::isnan(step_metrics_from_json(nlohmann::json::parse(line.dump())).loss));
}

// A log file of a killed process may be cut at any byte. Resuming from any earlier step gives the
// same bytes.
TEST(StepLog, EveryCutResumesToTheSameBytes) {
  test::TemporaryFolder folder;
  const std::string whole = write_steps(folder / "whole.jsonl", 7);
  for (size_t cut = 0; cut <= whole.size(); cut += 13) {
    for (const int64_t checkpoint : {0, 2, 7}) {
      const auto path = folder / "metrics.jsonl";
      std::ofstream(path, std::ios::binary) << whole.substr(0, cut);
      const auto whole_lines = static_cast<int64_t>(
          std::count(whole.begin(), whole.begin() + static_cast<long>(cut), '\n'));
      StepLog log(path, checkpoint);
      EXPECT_EQ(log.last_kept(), std::min(whole_lines, checkpoint));
      for (int64_t step = log.last_kept() + 1; step <= 7; ++step)
        log.append(to_json(numbers(step)));
      EXPECT_EQ(read_file(path), whole) << "cut at " << cut << ", checkpoint " << checkpoint;
    }
  }
}

TEST(StepLog, LinesThatAreNoStepsEndWhatIsKept) {
  test::TemporaryFolder folder;
  const std::string line = R"({"step":1})"
                           "\n";
  for (const std::string bad : {"not json\n", "[1]\n",
                                R"({"step":"2"})"
                                "\n",
                                R"({"step":1})"
                                "\n",
                                "{}\n", "\n"}) {
    std::ofstream(folder / "log.jsonl", std::ios::binary) << line << bad << R"({"step":3})" << "\n";
    EXPECT_EQ(StepLog(folder / "log.jsonl", 9).last_kept(), 1) << bad;
    EXPECT_EQ(read_file(folder / "log.jsonl"), line);
  }
}

TEST(StepLog, RefusesAFileItCannotWrite) {
  test::TemporaryFolder folder;
  EXPECT_THROW(StepLog(folder / "absent" / "log.jsonl", 0), UserError);
}

TEST(StepTimings, LeaveOutWhatWasNotMeasured) {
  const auto line = to_json(StepTimings{.step = 3, .step_ms = 1.5});
  EXPECT_FALSE(line.contains("utilization") || line.contains("evaluation_ms") ||
               line.contains("checkpoint_ms"));
  EXPECT_TRUE(to_json(StepTimings{.utilization = 0.5}).contains("utilization"));
}

}  // namespace
}  // namespace dovetail::train::metrics_test
