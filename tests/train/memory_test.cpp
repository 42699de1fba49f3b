// The memory estimate that is printed before the first step, against the measured high-water mark of training.
#include <gtest/gtest.h>

#include "dovetail/base/kept_memory.h"
#include "dovetail/train/trainer.h"
#include "tests/train/tiny_run.h"

namespace dovetail {
namespace {

void expect_estimate_near_peak(const std::function<void(RunConfig&)>& change) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's shadow memory counts as resident";
#endif
  keep_freed_memory();  // as `dovetail train`
  const test::TinyRun run;
  RunConfig config = run.config();
  config.model.layers = 4;
  config.model.width = 192;
  config.model.heads = 6;
  config.model.context = 128;
  config.train.steps = 3;
  config.train.batch = 16;
  change(config);
  train(config, local_groups(1)[0], {.quiet = true});
  const auto memory = nlohmann::json::parse(run.read("run", "machine.json"))["memory"];
  const auto estimate = memory["estimate_bytes"].get<double>(), peak = memory["peak_bytes"].get<double>();
  EXPECT_NEAR(estimate / peak, 1, 0.15) << "estimated " << estimate << ", measured " << peak;
}

TEST(Memory, TheEstimateIsNearTheMeasuredPeak) {
  expect_estimate_near_peak([](RunConfig&) {});
}

TEST(Memory, SoItIsWithAccumulation) {
  expect_estimate_near_peak([](RunConfig& config) { config.train.micro_batch = 4; });
}

TEST(Memory, SoItIsOfAMixture) {
  expect_estimate_near_peak([](RunConfig& config) {
    config.model.moe.experts = 8;
    config.model.moe.k = 2;
    config.model.moe.ffn_width = 128;
  });
}

}  // namespace
}  // namespace dovetail
