#include "dovetail/plan/step/planned_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "dovetail/base/error.h"
#include "tests/train/planned_training.h"

namespace dovetail::train::planned_step_test {
namespace {

using namespace test;

class PlannedTraining : public ::testing::TestWithParam<Case> {};

TEST_P(PlannedTraining, GivesTheSameBitsWithinItsBudget) {
  gives_the_same_bits_within_its_budget(GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Models, PlannedTraining,
    ::testing::Values(Case{"llama", llama()}, Case{"micro_batches", llama(), at::kFloat, 2, "0.8x"},
                      Case{"micro_batches_bfloat16", gpt2(), at::kBFloat16, 1, "0.95x"},
                      quantized("mxfp8", "mxfp8"),
                      quantized_less("mxfp4_stochastic_less", "mxfp4_stochastic"),
                      quantized("fp8_tensor", "fp8_tensor_delayed"),
                      quantized_less("bf16_less", "bf16")),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    MoreModels, PlannedTraining,
    ::testing::ValuesIn(with_all(
        {Case{"gpt2", gpt2()}, Case{"bfloat16", llama(), at::kBFloat16, 4, "0.85x"},
         quantized_less("mxfp8_less", "mxfp8"), quantized("mxfp4_stochastic", "mxfp4_stochastic"),
         quantized_less("fp8_tensor_less", "fp8_tensor_delayed"), quantized("bf16", "bf16")})),
    [](const auto& info) { return info.param.name; });

// A plan can then offload the tensors of each update.
TEST(PlannedStep, AnUpdateIsOfOneLargeParameterOrOfFewSmallOnes) {
  const Case of{"gpt2", gpt2()};
  Trained t(of);
  t.step->plan_memory({.budget = "1x", .solve_s = 0.1});
  for (int i = 1; i <= 3; ++i) t.run(i);
  int64_t parameters = 0, largest = 0, state = 0;
  for (const auto& item : t.model->named_parameters()) {
    parameters += item.value().numel();
    largest = std::max(largest, item.value().numel());
  }
  const plan::Graph& graph = t.step->memory_plan()->graph();
  for (const plan::GraphNode& node : graph.nodes) {
    if (!node.name.starts_with("dovetail::adamw")) continue;
    int64_t bytes = 0;
    for (const int tensor : node.mutates) bytes += graph.tensors[tensor].bytes;
    EXPECT_LE(bytes, std::max(parameters / 16, largest) * 3 * static_cast<int64_t>(sizeof(float)))
        << node.name;
    state += bytes;
  }
  EXPECT_GE(state, parameters * 3 * static_cast<int64_t>(sizeof(float)));
}

TEST(PlannedStep, SaysWhatItCannotDo) {
  const Case of{"llama", llama()};
  const auto message = [&](const std::string& budget, int64_t last_batch) {
    Trained t(of);
    try {
      t.step->plan_memory({.budget = budget, .solve_s = 1});
      for (int i = 1; i <= 9; ++i) {
        torch::manual_seed(i);
        t.step->run(torch::randint(0, 300, {i < 9 ? 4 : last_batch, 65}, torch::kLong), 1e-3,
                    false);
      }
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(message("half", 4), ::testing::HasSubstr("\"half\" is not a memory budget"));
  EXPECT_THAT(message("0.01x", 4), ::testing::HasSubstr("below the floor"));
  EXPECT_THAT(message("0.8x", 3), ::testing::HasSubstr("its plan is for [4, 65]"));
  EXPECT_EQ(message("0.8x", 4), "");
}

}  // namespace
}  // namespace dovetail::train::planned_step_test
