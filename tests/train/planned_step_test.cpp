#include "dovetail/train/planned_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "dovetail/base/error.h"
#include "dovetail/plan/packing.h"
#include "dovetail/train/step.h"
#include "tests/base/temporary_folder.h"

namespace dovetail {
namespace {

constexpr int kSteps = 20;

struct Case {
  const char* name;
  ModelConfig model;
  at::ScalarType dtype = at::kFloat;
  int64_t micro_batch = 4;
  const char* budget = "0.7x";
};

ModelConfig llama() { return {.layers = 3, .width = 128, .heads = 4, .context = 64}; }
ModelConfig gpt2() {
  ModelConfig config = llama();
  config.positions = "learned";
  config.norm = "layernorm";
  config.activation = "gelu";
  config.bias = true;
  config.tied = true;
  return config;
}

struct Trained {
  std::shared_ptr<GPT> model;
  std::optional<Optimizer> optimizer;
  std::optional<TrainStep> step;

  explicit Trained(const Case& of) {
    model = std::make_shared<GPT>(resolve_model_config(of.model, 300));
    initialize(*model, 3);
    optimizer.emplace(*model, OptimizerSection{});
    model->set_compute_dtype(of.dtype);
    optimizer->bind(*model);
    step.emplace(model, *optimizer, local_groups(1)[0], StepOptions{.micro_batch = of.micro_batch, .clip = 0.5});
  }

  /// Other tokens, another number of targets and another rate in each step; step 12 is not finite.
  StepOutcome run(int64_t number) {
    torch::manual_seed(number);
    at::Tensor tokens = torch::randint(0, 300, {4, 65}, torch::kLong);
    tokens.narrow(1, 60 - number, 3).fill_(-100);
    at::Tensor norm = model->named_parameters()["norm.weight"].detach();
    const at::Tensor good = norm.clone();
    if (number == 12) norm.fill_(std::nan(""));
    const StepOutcome outcome = step->run(tokens, 1e-3 / static_cast<double>(number), number == 15);
    if (number == 12) norm.copy_(good);
    return outcome;
  }
};

class PlannedTraining : public testing::TestWithParam<Case> {};

// Against the same training without a plan.
TEST_P(PlannedTraining, GivesTheSameBitsWithinItsBudget) {
  Trained plain(GetParam());
  std::vector<StepOutcome> expected;
  for (int i = 1; i <= kSteps; ++i) expected.push_back(plain.run(i));
  const test::TemporaryFolder folder;
  for (const std::filesystem::path& tier : {std::filesystem::path(), folder.path()}) {
    SCOPED_TRACE(tier.empty() ? "memory" : "disk");
    Trained planned(GetParam());
    planned.step->plan_memory({.budget = GetParam().budget, .folder = tier, .solve_s = 0.5});
    for (int i = 1; i <= kSteps; ++i) {
      const StepOutcome outcome = planned.run(i);
      if (i != 12) {
        EXPECT_EQ(outcome.loss, expected[i - 1].loss) << "step " << i;
        EXPECT_EQ(outcome.grad_norm, expected[i - 1].grad_norm) << "step " << i;
      }
      EXPECT_EQ(outcome.tokens, expected[i - 1].tokens) << "step " << i;
      EXPECT_EQ(outcome.skipped, i == 12);
      EXPECT_EQ(outcome.stop, i == 15);
    }
    const auto& report = planned.step->memory_plan()->report();
    ASSERT_TRUE(report.has_value());
    EXPECT_LE(report->step_bytes, report->budget_bytes);
    EXPECT_LT(report->budget_bytes, report->keep_all_bytes);
    const int64_t measured = planned.step->memory_plan()->measured_bytes();
    EXPECT_LE(measured, (report->step_bytes + plan::kPage - 1) / plan::kPage * plan::kPage);
    EXPECT_GE(measured, static_cast<int64_t>(0.97 * static_cast<double>(report->step_bytes)));
    EXPECT_GT(report->offloaded_bytes + report->again_bytes, 0);
    planned.step->memory_plan()->write(folder.path());
    const plan::Graph graph = plan::read_graph(folder / "graph.json");
    EXPECT_LE(plan::check(graph, plan::read_plan(folder / "plan.json", graph)).peak_bytes, report->step_bytes);
    const auto a = plain.optimizer->tensors(), b = planned.optimizer->tensors();
    for (const auto& [name, tensor] : a) EXPECT_TRUE(torch::equal(tensor, b.at(name))) << name;
    EXPECT_EQ(planned.optimizer->updates(), kSteps - 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PlannedTraining,
                         testing::Values(Case{"llama", llama()}, Case{"gpt2", gpt2()},
                                         Case{"bfloat16", llama(), at::kBFloat16, 4, "0.85x"},
                                         Case{"micro_batches", llama(), at::kFloat, 2, "0.8x"},
                                         Case{"micro_batches_bfloat16", gpt2(), at::kBFloat16, 1, "0.95x"}),
                         [](const auto& info) { return info.param.name; });

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
