#pragma once

#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "dovetail/train/expert_load.h"
#include "dovetail/train/quantization.h"
#include "dovetail/train/router_bias.h"
#include "dovetail/train/step.h"

namespace dovetail::test {

inline constexpr int kSteps = 20;

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

inline ModelConfig llama() { return {.layers = 3, .width = 128, .heads = 4, .context = 64}; }
inline ModelConfig gpt2() {
  ModelConfig config = llama();
  config.positions = "learned";
  config.norm = "layernorm";
  config.activation = "gelu";
  config.bias = true;
  config.tied = true;
  return config;
}

/// Of small weights and many tokens: what is kept for backward is most of a step.
inline ModelConfig narrow() { return {.layers = 4, .width = 64, .heads = 2, .context = 64}; }
inline Case quantized(const char* name, const char* recipe) {
  return {name, narrow(), at::kBFloat16, 16, "0.5x", recipe, 16};
}
/// Of more tokens: nearer to the floor, which is the gradients of the largest product with their quantized operands.
inline Case quantized_less(const char* name, const char* recipe) {
  return {name, narrow(), at::kBFloat16, 32, "0.45x", recipe, 32};
}

inline Case mixture(const char* name, void (*experts)(moe::Config&), const char* recipe = "fp32",
                    int64_t micro_batch = 16) {
  const bool quantizes = std::string_view(recipe) != "fp32";
  return {name, narrow(), quantizes ? at::kBFloat16 : at::kFloat, micro_batch, "0.7x", recipe, 16, experts};
}

inline ModelConfig model_of(const Case& of) {
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

  /// What a step tells beside its outcome; errors in dB to nine digits behind the point, since a recorded step adds them
  /// up in another order.
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

}  // namespace dovetail::test
