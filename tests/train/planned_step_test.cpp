#include "dovetail/train/planned_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "dovetail/base/error.h"
#include "dovetail/plan/fit.h"
#include "dovetail/plan/packing.h"
#include "dovetail/train/expert_load.h"
#include "dovetail/train/quantization.h"
#include "dovetail/train/router_bias.h"
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
  const char* recipe = "fp32";
  int64_t batch = 4;
  void (*experts)(moe::Config&) = nullptr;  ///< what is special about them; null: a dense model
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

/// Of small weights and many tokens: what is kept for backward is most of a step.
ModelConfig narrow() { return {.layers = 4, .width = 64, .heads = 2, .context = 64}; }
Case quantized(const char* name, const char* recipe) { return {name, narrow(), at::kBFloat16, 16, "0.5x", recipe, 16}; }
/// Of more tokens: nearer to the floor, which is the gradients of the largest product with their quantized operands.
Case quantized_less(const char* name, const char* recipe) {
  return {name, narrow(), at::kBFloat16, 32, "0.45x", recipe, 32};
}

Case mixture(const char* name, void (*experts)(moe::Config&), const char* recipe = "fp32", int64_t micro_batch = 16) {
  const bool quantizes = std::string_view(recipe) != "fp32";
  return {name, narrow(), quantizes ? at::kBFloat16 : at::kFloat, micro_batch, "0.7x", recipe, 16, experts};
}

ModelConfig model_of(const Case& of) {
  ModelConfig config = of.model;
  if (of.experts != nullptr) {
    config.moe = {.experts = 6, .k = 2, .ffn_width = 64, .every = 2, .drop = "position", .pad_to_capacity = true};
    of.experts(config.moe);
  }
  return resolve_model_config(config, 300);
}

struct Trained {
  int64_t batch;
  std::shared_ptr<Group> group = local_groups(1)[0];
  std::shared_ptr<GPT> model;
  std::optional<Optimizer> optimizer;
  std::optional<Quantization> quantization;
  std::optional<ExpertLoad> load;
  std::optional<RouterBias> bias;
  std::optional<TrainStep> step;

  explicit Trained(const Case& of) : batch(of.batch) {
    model = std::make_shared<GPT>(model_of(of));
    initialize(*model, 3);
    optimizer.emplace(*model, OptimizerSection{});
    model->set_compute_dtype(of.dtype);
    quantization.emplace(*model, PrecisionSection{.recipe = of.recipe}, of.recipe);
    optimizer->bind(*model);
    load.emplace(*model);
    bias.emplace(*model);
    step.emplace(model, *optimizer, group, StepOptions{.micro_batch = of.micro_batch, .clip = 0.5});
  }

  /// Other tokens, another number of targets and another rate in each step; step 12 is not finite.
  StepOutcome run(int64_t number) {
    torch::manual_seed(number);
    at::Tensor tokens = torch::randint(0, 300, {batch, 65}, torch::kLong);
    tokens.narrow(1, 60 - number, 3).fill_(-100);
    at::Tensor norm = model->named_parameters()["norm.weight"].detach();
    const at::Tensor good = norm.clone();
    if (number == 12) norm.fill_(std::nan(""));
    const auto seed = static_cast<uint64_t>(number);
    quantization->begin_step(seed);
    load->begin_step();
    const StepOutcome outcome = step->run(tokens, 1e-3 / static_cast<double>(number), number == 15, {.seed = seed});
    if (number == 12) norm.copy_(good);
    if (!outcome.skipped) {
      quantization->end_step(*group);
      bias->end_step(*group);
    }
    return outcome;
  }

  /// What a step tells beside its outcome.
  nlohmann::ordered_json told(int64_t number) {
    return {quantization->statistics(number), load->statistics(number, *group)};
  }
  std::map<std::string, at::Tensor> tensors() const {
    std::map<std::string, at::Tensor> all = optimizer->tensors();
    all.merge(quantization->tensors());
    all.merge(bias->tensors());
    return all;
  }
};

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

/// Options that allow these techniques alone.
PlannedStep::Options allowing(const std::vector<std::string_view>& names) {
  PlannedStep::Options out{.solve_s = 0.5, .curve_budgets = 0};
  for (const auto& [name, allowed] : PlannedStep::kTechniques)
    out.*allowed = std::find(names.begin(), names.end(), name) != names.end();
  return out;
}

/// The options with a budget some of the way from their floor, which plans seldom reach, to everything kept.
PlannedStep::Options with_budget(const Case& of, PlannedStep::Options options, double share) {
  options.budget = "1x";
  Trained looked(of);
  looked.step->plan_memory(options);
  for (int i = 1; i <= 3; ++i) looked.run(i);
  const plan::Graph& graph = looked.step->memory_plan()->graph();
  const int64_t floor = plan::floor_of(graph, PlannedStep::solve_options(options)).bytes;
  const int64_t kept = plan::keep_all_bytes(graph);
  options.budget = std::to_string(floor + static_cast<int64_t>(share * static_cast<double>(kept - floor)));
  return options;
}

/// Of the techniques that show in actions: how often a plan has one.
std::map<std::string_view, int> used(const PlannedStep& step) {
  std::map<std::string_view, int> out = {{"offload", 0}, {"recompute", 0}, {"compress_mxfp8", 0}};
  std::vector<int> runs(step.graph().nodes.size());
  for (const plan::Action& action : step.view().plan.actions) {
    out["offload"] += action.op == plan::Op::kOffload || action.op == plan::Op::kPrefetch;
    out["compress_mxfp8"] += action.op == plan::Op::kCompress;
    if (action.op == plan::Op::kCompute) out["recompute"] += runs[action.node]++ > 0;
  }
  return out;
}

TEST(PlannedStep, DoesWhatItIsAllowedAndNothingElse) {
  const Case of{"llama", llama()};
  for (const std::string_view only : {"offload", "recompute", "compress_mxfp8"}) {
    SCOPED_TRACE(only);
    Trained trained(of);
    trained.step->plan_memory(with_budget(of, allowing({only}), 0.75));
    for (int i = 1; i <= 8; ++i) trained.run(i);
    for (const auto& [technique, times] : used(*trained.step->memory_plan()))
      EXPECT_EQ(times > 0, technique == only) << technique << ": " << times;
  }
}

TEST(PlannedStep, SaysWhichTechniquesWouldLowerTheFloor) {
  const Case of{"llama", llama()};
  const auto said = [&](const std::vector<std::string_view>& names) {
    Trained trained(of);
    PlannedStep::Options options = allowing(names);
    options.budget = "1x";
    trained.step->plan_memory(options);
    for (int i = 1; i <= 3; ++i) trained.run(i);
    return trained.step->memory_plan()->what_would_lower_the_floor();
  };
  EXPECT_EQ(said({}), "; \"offload\" or \"recompute\" or \"compress_mxfp8\" in memory.allow would lower the floor");
  EXPECT_EQ(said({"offload", "recompute", "compress_mxfp8"}), "");
}

TEST(PlannedStep, WithLossTrainsWithinABoundOfTheSameTraining) {
  for (const auto& [dtype, recipe] : {std::pair(at::kFloat, "fp32"), std::pair(at::kBFloat16, "mxfp8")}) {
    SCOPED_TRACE(recipe);
    const Case of{"lossy", narrow(), dtype, 16, "", recipe, 16};
    Trained plain(of), lossy(of);
    lossy.step->plan_memory(with_budget(of, allowing({"compress_mxfp8"}), 0.5));
    int other = 0;
    for (int i = 1; i <= kSteps; ++i) {
      const double expected = plain.run(i).loss, loss = lossy.run(i).loss;
      if (i == 12) continue;
      EXPECT_NEAR(loss, expected, 0.01 * expected) << "step " << i;
      other += loss != expected;
    }
    EXPECT_GT(other, kSteps / 2);
    const MemoryPlanReport& report = *lossy.step->memory_plan()->report();
    EXPECT_LE(report.step_bytes, report.budget_bytes);
    EXPECT_GT(report.compressed_bytes, 0);
    EXPECT_NEAR(static_cast<double>(report.packed_bytes) / static_cast<double>(report.compressed_bytes),
                dtype == at::kFloat ? 33.0 / 128 : 33.0 / 64, 1e-4);
  }
}

// Experts, whose Linears leave it to the plan in which form their rows wait.
TEST(PlannedStep, InCodesThatAllReadersMakeGivesTheSameBits) {
  const Case of =
      mixture("codes", [](moe::Config& moe) { moe.experts = 4, moe.every = 1, moe.ffn_width = 32; }, "mxfp8");
  Trained plain(of), planned(of);
  planned.step->plan_memory(with_budget(of, allowing({"compress"}), 0.5));
  for (int i = 1; i <= kSteps; ++i) {
    const StepOutcome expected = plain.run(i), outcome = planned.run(i);
    if (i != 12) {
      EXPECT_EQ(outcome.loss, expected.loss) << "step " << i;
      EXPECT_EQ(outcome.grad_norm, expected.grad_norm) << "step " << i;
    }
    EXPECT_EQ(planned.told(i), plain.told(i)) << "step " << i;
  }
  const auto a = plain.tensors(), b = planned.tensors();
  for (const auto& [name, tensor] : a) EXPECT_TRUE(torch::equal(tensor, b.at(name))) << name;
  const MemoryPlanReport& report = *planned.step->memory_plan()->report();
  EXPECT_LE(report.step_bytes, report.budget_bytes);
  EXPECT_GT(report.compressed_bytes, 0);
  EXPECT_EQ(report.packed_bytes * 64, report.compressed_bytes * 33);
  for (const plan::Codec& codec : planned.step->memory_plan()->graph().codecs) EXPECT_EQ(codec.max_error, 0);
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
