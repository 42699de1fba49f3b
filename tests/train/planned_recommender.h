#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "dovetail/base/file.h"
#include "dovetail/plan/model/packing.h"
#include "tests/train/histories.h"
#include "tests/train/tiny_run.h"

namespace dovetail::test {

inline constexpr int64_t kRecommenderSteps = 12;

inline bool reads_events(const std::string& model) {
  return model == "din" || model == "dien" || model == "can";
}

/// Config with wide layers and many samples: activations of the dense part dominate a step's
/// memory.
inline train::RunConfig wide(train::RunConfig config) {
  config.recommender.deep = {128, 128, 128};
  if (config.recommender.model == "dlrm") config.recommender.bottom = {128, 128};
  if (config.recommender.model == "mmoe") config.recommender.expert = {128, 128};
  if (config.recommender.model == "din") config.recommender.attention = {64};
  config.recommender.grain = 512;
  config.train.batch = 1024;
  config.train.steps = kRecommenderSteps;
  config.train.clip = 1;
  config.schedule.decay = "constant";
  config.eval.every_steps = 9;  // on weights where the plan has placed them
  config.memory.solve_s = 0.3;
  return config;
}

inline train::RunConfig config_of(const std::string& model, const Histories& data,
                                  const std::string& name) {
  return wide(reads_events(model) ? data.config(model, name) : data.Clicks::config(model, name));
}

inline nlohmann::json plan_of(const train::RunConfig& config) {
  return nlohmann::json::parse(read_file((config.folder() / "memory_plan.json").string()));
}

inline std::string metrics_of(const train::RunConfig& config) {
  return read_file((config.folder() / "metrics.jsonl").string());
}

inline void expect_within_budget(const train::RunConfig& config) {
  const nlohmann::json plan = plan_of(config);
  const auto budget = plan["budget_bytes"].get<int64_t>();
  EXPECT_LT(budget, plan["keep_all_bytes"].get<int64_t>());
  EXPECT_LE(plan["step_bytes"].get<int64_t>(), budget);
  EXPECT_LE(plan["peak"]["measured_bytes"].get<int64_t>(), budget);
  EXPECT_LT(plan["peak"]["used_bytes"].get<int64_t>(),
            plan["step_bytes"].get<int64_t>() + plan::kPage);
  EXPECT_GT(plan["offloaded_bytes"].get<int64_t>() + plan["again_bytes"].get<int64_t>() +
                plan["on_host_bytes"].get<int64_t>(),
            0);
}

/// Trains both configs and expects bitwise equal results.
inline void expect_the_same_bits(const train::RunConfig& plain, const train::RunConfig& planned) {
  train_alone(plain);
  train_alone(planned);
  EXPECT_EQ(metrics_of(planned), metrics_of(plain));
  expect_same_tensors(last_checkpoint(planned), last_checkpoint(plain));
}

enum class SlowTier { kNone, kDisk };

/// Compares with the same run without a budget. With a disk it also runs in two micro-batches.
inline void gives_the_same_bits_within_its_budget(const std::string& model,
                                                  const std::string& budget, SlowTier tier) {
  const Histories data;
  const train::RunConfig plain = config_of(model, data, "plain");
  train::RunConfig planned = config_of(model, data, "planned");
  planned.memory.budget = budget;
  if (tier == SlowTier::kDisk) {
    planned.memory.folder = data.file("", "").string();
    planned.train.micro_batch = 512;
  }
  expect_the_same_bits(plain, planned);
  expect_within_budget(planned);
}

}  // namespace dovetail::test
