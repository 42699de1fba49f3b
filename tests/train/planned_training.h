#pragma once

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dovetail/moe/expert_weights.h"
#include "dovetail/moe/layer.h"
#include "dovetail/plan/model/check.h"
#include "dovetail/plan/model/packing.h"
#include "dovetail/plan/step/planned_step.h"
#include "dovetail/train/gpt/step.h"
#include "dovetail/train/numerics/quantization.h"
#include "dovetail/train/ranks/expert_load.h"
#include "dovetail/train/ranks/router_bias.h"
#include "tests/base/temporary_folder.h"

namespace dovetail::test {

inline constexpr int kSteps = 20;

struct Case {
  const char* name;
  models::ModelConfig model;
  at::ScalarType dtype = at::kFloat;
  int64_t micro_batch = 4;
  const char* budget = "0.7x";
  const char* recipe = "fp32";
  int64_t batch = 4;
  /// Changes the config of the experts. Null: a dense model.
  void (*experts)(moe::Config&) = nullptr;
  /// Experts run as on a GPU: the numbers of their rows follow from shapes alone.
  bool fixed_sizes = false;
};

inline models::ModelConfig llama() {
  return {.layers = 3, .width = 128, .heads = 4, .context = 64};
}
inline models::ModelConfig gpt2() {
  models::ModelConfig config = llama();
  config.positions = "learned";
  config.norm = "layernorm";
  config.activation = "gelu";
  config.bias = true;
  config.tied = true;
  return config;
}

/// Model with small weights, for many tokens: activations dominate a step's memory.
inline models::ModelConfig narrow() {
  return {.layers = 4, .width = 64, .heads = 2, .context = 64};
}
inline Case quantized(const char* name, const char* recipe) {
  return {name, narrow(), at::kBFloat16, 16, "0.5x", recipe, 16};
}
/// Case with more tokens, whose budget is nearer to the floor. The floor is the gradients of the
/// largest product with their quantized operands.
inline Case quantized_less(const char* name, const char* recipe) {
  return {name, narrow(), at::kBFloat16, 32, "0.45x", recipe, 32};
}

inline Case mixture(const char* name, void (*experts)(moe::Config&), const char* recipe = "fp32",
                    int64_t micro_batch = 16) {
  const bool quantizes = std::string_view(recipe) != "fp32";
  return {name, narrow(), quantizes ? at::kBFloat16 : at::kFloat, micro_batch, "0.7x", recipe,
          16,   experts};
}

inline models::ModelConfig model_of(const Case& of) {
  models::ModelConfig config = of.model;
  if (of.experts != nullptr) {
    config.moe = {.experts = 6,
                  .k = 2,
                  .ffn_width = 64,
                  .every = 2,
                  .drop = "position",
                  .pad_to_capacity = true};
    of.experts(config.moe);
  }
  return models::resolve_model_config(config, 300);
}

/// Returns the cases under `./dev test --all`, otherwise none.
inline std::vector<Case> with_all(std::vector<Case> cases) {
  return std::getenv("DOVETAIL_ALL") == nullptr ? std::vector<Case>() : std::move(cases);
}

struct Trained {
  int64_t batch;
  std::shared_ptr<comm::Group> group = comm::local_groups(1)[0];
  std::shared_ptr<models::GPT> model;
  std::optional<train::Optimizer> optimizer;
  std::optional<train::Quantization> quantization;
  std::optional<train::ExpertLoad> load;
  std::optional<train::RouterBias> bias;
  std::optional<train::TrainStep> step;

  explicit Trained(const Case& of) : batch(of.batch) {
    model = std::make_shared<models::GPT>(model_of(of));
    initialize(*model, 3);
    optimizer.emplace(*model, train::OptimizerSection{});
    model->set_compute_dtype(of.dtype);
    quantization.emplace(*model, train::PrecisionSection{.recipe = of.recipe}, of.recipe);
    if (of.fixed_sizes) fix_sizes_of_experts();
    optimizer->bind(*model);
    load.emplace(*model);
    bias.emplace(*model);
    step.emplace(model, *optimizer, group,
                 train::StepOptions{.micro_batch = of.micro_batch, .clip = 0.5});
  }

  /// Sizes follow from shapes, and the weights of a layer's experts share storage.
  void fix_sizes_of_experts() {
    for (const auto& [name, layer] : moe::layers_of(*model)) {
      layer->fix_sizes();
      for (const char* part : {"up.weight", "down.weight"}) {
        std::vector<at::Tensor> weights;
        for (int64_t e = 0; e < layer->experts(); ++e)
          weights.push_back(layer->named_parameters()[fmt::format("experts.{}.{}", e, part)]);
        moe::share_storage(weights);
      }
    }
  }

  /// Runs a step. Each step has different tokens, numbers of targets and learning rates. Step 12 is
  /// not finite.
  train::StepOutcome run(int64_t number) {
    torch::manual_seed(number);
    at::Tensor tokens = torch::randint(0, 300, {batch, 65}, torch::kLong);
    tokens.narrow(1, 60 - number, 3).fill_(-100);
    at::Tensor norm = model->named_parameters()["norm.weight"].detach();
    const at::Tensor good = norm.clone();
    if (number == 12) norm.fill_(std::nan(""));
    const auto seed = static_cast<uint64_t>(number);
    quantization->begin_step(seed);
    load->begin_step();
    const train::StepOutcome outcome =
        step->run(tokens, 1e-3 / static_cast<double>(number), number == 15, {.seed = seed});
    if (number == 12) norm.copy_(good);
    if (!outcome.skipped) {
      quantization->end_step(*group);
      bias->end_step(*group);
    }
    return outcome;
  }

  /// Returns what a step reports in addition to its outcome. Errors in dB are rounded to nine
  /// decimals, since a recorded step sums them in another order.
  nlohmann::ordered_json told(int64_t number) {
    nlohmann::ordered_json of_tensors = quantization->statistics(number);
    for (auto& tensor : of_tensors.at("tensors"))
      if (tensor.at("sqnr_db").is_number())
        tensor.at("sqnr_db") = std::round(tensor.at("sqnr_db").get<double>() * 1e9) / 1e9;
    return {of_tensors, load->statistics(number, *group)};
  }
  std::map<std::string, at::Tensor> tensors() const {
    std::map<std::string, at::Tensor> all = optimizer->tensors();
    all.merge(quantization->tensors());
    all.merge(bias->tensors());
    return all;
  }
};

/// Compares with the same training without a plan.
inline void gives_the_same_bits_within_its_budget(const Case& of) {
  Trained plain(of);
  std::vector<train::StepOutcome> expected;
  std::vector<nlohmann::ordered_json> told;
  for (int i = 1; i <= kSteps; ++i) {
    expected.push_back(plain.run(i));
    told.push_back(plain.told(i));
  }
  const TemporaryFolder folder;
  // Recipes and experts do not affect where tensors are offloaded. So only plain models test
  // memory, too.
  std::vector<std::filesystem::path> tiers = {folder.path()};
  if (of.recipe == std::string_view("fp32") && of.experts == nullptr) tiers.emplace_back();
  for (const std::filesystem::path& tier : tiers) {
    SCOPED_TRACE(tier.empty() ? "memory" : "disk");
    Trained planned(of);
    planned.step->plan_memory({.budget = of.budget, .folder = tier, .solve_s = 0.5});
    for (int i = 1; i <= kSteps; ++i) {
      const train::StepOutcome outcome = planned.run(i);
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
    EXPECT_GT(report->offloaded_bytes + report->again_bytes + report->compressed_bytes +
                  report->on_host_bytes,
              0);
    planned.step->memory_plan()->write(folder.path());
    const plan::Graph graph = plan::read_graph(folder / "graph.json");
    // Updates may change moments in host memory, but not on a disk. A plan uses this if measured
    // times make it faster.
    bool may_change_on_host = false;
    for (const plan::GraphNode& node : graph.nodes)
      for (const plan::Algorithm& algorithm : node.algorithms)
        may_change_on_host |= !algorithm.on_host.empty();
    EXPECT_EQ(may_change_on_host, tier.empty());
    if (!tier.empty()) {
      EXPECT_EQ(report->on_host_bytes, 0);
    }
    EXPECT_LE(plan::check(graph, plan::read_plan(folder / "plan.json", graph)).peak_bytes,
              report->step_bytes);
    const auto a = plain.tensors(), b = planned.tensors();
    for (const auto& [name, tensor] : a) EXPECT_TRUE(torch::equal(tensor, b.at(name))) << name;
    EXPECT_EQ(planned.optimizer->updates(), kSteps - 1);
  }
}

}  // namespace dovetail::test
