#include "dovetail/train/planned_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "dovetail/base/error.h"
#include "dovetail/plan/packing.h"
#include "tests/base/temporary_folder.h"
#include "tests/train/planned_training.h"

namespace dovetail {
namespace {

using namespace test;

class PlannedTraining : public testing::TestWithParam<Case> {};

// Against the same training without a plan.
TEST_P(PlannedTraining, GivesTheSameBitsWithinItsBudget) {
  Trained plain(GetParam());
  std::vector<StepOutcome> expected;
  std::vector<nlohmann::ordered_json> told;
  for (int i = 1; i <= kSteps; ++i) {
    expected.push_back(plain.run(i));
    told.push_back(plain.told(i));
  }
  const test::TemporaryFolder folder;
  // Where tensors go does not depend on recipes and experts: to memory, too, in the plain models.
  std::vector<std::filesystem::path> tiers = {folder.path()};
  if (GetParam().recipe == std::string_view("fp32") && GetParam().experts == nullptr) tiers.emplace_back();
  for (const std::filesystem::path& tier : tiers) {
    SCOPED_TRACE(tier.empty() ? "memory" : "disk");
    Trained planned(GetParam());
    planned.step->plan_memory({.budget = GetParam().budget, .folder = tier, .solve_s = 0.5});
    for (int i = 1; i <= kSteps; ++i) {
      const StepOutcome outcome = planned.run(i);
      if (i != 12) {
        EXPECT_EQ(outcome.loss, expected[i - 1].loss) << "step " << i;
        EXPECT_EQ(outcome.grad_norm, expected[i - 1].grad_norm) << "step " << i;
        EXPECT_EQ(outcome.router_loss, expected[i - 1].router_loss) << "step " << i;
      }
      EXPECT_EQ(outcome.tokens, expected[i - 1].tokens) << "step " << i;
      EXPECT_EQ(outcome.skipped, i == 12);
      EXPECT_EQ(outcome.stop, i == 15);
      EXPECT_EQ(planned.told(i), told[static_cast<size_t>(i - 1)]) << "step " << i;
    }
    const auto& report = planned.step->memory_plan()->report();
    ASSERT_TRUE(report.has_value());
    EXPECT_LE(report->step_bytes, report->budget_bytes);
    EXPECT_LT(report->budget_bytes, report->keep_all_bytes);
    const int64_t measured = planned.step->memory_plan()->measured_bytes();
    EXPECT_LT(measured, report->step_bytes + plan::kPage);
    EXPECT_GE(measured, static_cast<int64_t>(0.97 * static_cast<double>(report->step_bytes)));
    EXPECT_GT(report->offloaded_bytes + report->again_bytes + report->compressed_bytes, 0);
    planned.step->memory_plan()->write(folder.path());
    const plan::Graph graph = plan::read_graph(folder / "graph.json");
    EXPECT_LE(plan::check(graph, plan::read_plan(folder / "plan.json", graph)).peak_bytes, report->step_bytes);
    const auto a = plain.tensors(), b = planned.tensors();
    for (const auto& [name, tensor] : a) EXPECT_TRUE(torch::equal(tensor, b.at(name))) << name;
    EXPECT_EQ(planned.optimizer->updates(), kSteps - 1);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, PlannedTraining,
    testing::Values(Case{"llama", llama()}, Case{"gpt2", gpt2()}, Case{"bfloat16", llama(), at::kBFloat16, 4, "0.85x"},
                    Case{"micro_batches", llama(), at::kFloat, 2, "0.8x"},
                    Case{"micro_batches_bfloat16", gpt2(), at::kBFloat16, 1, "0.95x"}, quantized("mxfp8", "mxfp8"),
                    quantized_less("mxfp8_less", "mxfp8"), quantized("mxfp4_stochastic", "mxfp4_stochastic"),
                    quantized_less("mxfp4_stochastic_less", "mxfp4_stochastic"),
                    quantized("fp8_tensor", "fp8_tensor_delayed"),
                    quantized_less("fp8_tensor_less", "fp8_tensor_delayed"), quantized("bf16", "bf16"),
                    quantized_less("bf16_less", "bf16"), mixture("experts", [](auto& moe) { moe.z_loss = 0.01; }),
                    mixture("drawn",
                            [](auto& moe) {
                              moe.second_expert = "random";
                              moe.bias_update_rate = 0.01;
                              moe.score = "sigmoid";
                            }),
                    mixture("noisy",
                            [](auto& moe) {
                              moe.router = "noisy_top_k";
                              moe.importance_loss = moe.smooth_load_loss = 0.01;
                            }),
                    mixture(
                        "whole_batch", [](auto& moe) { moe.load_scope = "global_batch"; }, "fp32", 4),
                    mixture("sinkhorn", [](auto& moe) { moe.router = "sinkhorn"; }),
                    mixture("base", [](auto& moe) { moe.router = "base", moe.k = 1; }),
                    mixture("hash", [](auto& moe) { moe.router = "hash"; }),
                    mixture(
                        "mxfp8_experts", [](auto& moe) { moe.shared_experts = 1; }, "mxfp8"),
                    mixture(
                        "bfloat16_experts", [](auto& moe) { moe.drop = "probability"; }, "bf16", 8)),
    [](const auto& info) { return info.param.name; });

// A plan can then move what each of them needs.
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
    EXPECT_LE(bytes, std::max(parameters / 16, largest) * 3 * static_cast<int64_t>(sizeof(float))) << node.name;
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
        t.step->run(torch::randint(0, 300, {i < 9 ? 4 : last_batch, 65}, torch::kLong), 1e-3, false);
      }
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(message("half", 4), testing::HasSubstr("\"half\" is not a memory budget"));
  EXPECT_THAT(message("0.01x", 4), testing::HasSubstr("below the floor"));
  EXPECT_THAT(message("0.8x", 3), testing::HasSubstr("its plan is for [4, 65]"));
  EXPECT_EQ(message("0.8x", 4), "");
}

}  // namespace
}  // namespace dovetail
