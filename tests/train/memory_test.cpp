// ctest-labels: soak
// The memory estimate that is printed before the first step, against the measured high-water mark of training.
#include <gtest/gtest.h>
#include <malloc.h>

#include "dovetail/train/trainer.h"
#include "tests/train/tiny_run.h"

namespace dovetail::memory_test {
namespace {

void expect_estimate_near_peak(const std::function<void(RunConfig&)>& change) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's shadow memory counts as resident";
#endif
  const test::TinyRun run;
  RunConfig config = run.config();
  config.run.threads = 0;
  config.model.layers = 8;
  config.model.width = 512;
  config.model.heads = 8;
  config.model.context = 128;
  config.train.steps = 3;
  config.train.batch = 8;
  change(config);
  malloc_trim(0);  // what an earlier test freed is not to be had for nothing
  train(config, local_groups(1)[0], {.quiet = true});
  const auto memory = nlohmann::json::parse(run.read("run", "machine.json"))["memory"];
  const auto estimate = memory["estimate_bytes"].get<double>(), peak = memory["peak_bytes"].get<double>();
  EXPECT_LT(estimate, 1.25 * peak) << "estimated " << estimate << ", measured " << peak;
  EXPECT_GT(estimate, 0.75 * peak) << "estimated " << estimate << ", measured " << peak;
}

TEST(Memory, TheEstimateIsWithinAQuarterOfTheMeasuredPeak) {
  expect_estimate_near_peak([](RunConfig& config) { config.checkpoint.every_steps = 1; });
}

TEST(Memory, SoItIsWithAccumulation) {
  expect_estimate_near_peak([](RunConfig& config) {
    config.checkpoint.every_steps = 1;
    config.train.micro_batch = 2;
  });
}

}  // namespace
}  // namespace dovetail::memory_test
