#include "dovetail/models/recommender.h"

#include <ATen/ATen.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>

#include "dovetail/base/error.h"
#include "dovetail/base/rng.h"
#include "dovetail/models/normal_values.h"
#include "dovetail/models/recommender_models.h"

namespace dovetail::models {

std::shared_ptr<mx::Linear> tower_linear(int64_t in, int64_t out, const std::string& name,
                                         c10::Device device, bool bias) {
  return mx::make_linear({.in = in, .out = out, .bias = bias, .name = name, .device = device});
}

std::shared_ptr<mx::Linear> head_linear(int64_t in, const std::string& name, c10::Device device) {
  return mx::make_linear(
      {.in = in, .out = 1, .bias = true, .is_head = true, .name = name, .device = device});
}

at::Tensor in_dtype_of(const mx::Linear& linear, const at::Tensor& x) {
  return x.to(linear.weight.scalar_type());
}

at::Tensor widened(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 ? x.to(at::kFloat) : x;
}

at::Tensor wide_linear(mx::Linear& linear, const at::Tensor& x) {
  return widened(linear.forward(in_dtype_of(linear, x)));
}

at::Tensor candidate_of(const RecommenderConfig& config, const RecommenderInputs& inputs,
                        const at::Tensor& features) {
  std::vector<at::Tensor> targets;
  for (const auto& sequence : inputs.sequences)
    if (sequence.target >= 0)
      targets.push_back(
          features.narrow(1, embedded_width(config, inputs, sequence.target), config.dim));
  return at::cat(targets, 1);
}

int64_t num_targets(const RecommenderInputs& inputs) {
  return std::ranges::count_if(inputs.sequences,
                               [](const auto& sequence) { return sequence.target >= 0; });
}

Tower::Tower(int64_t in, const std::vector<int64_t>& widths, const std::string& name,
             c10::Device device)
    : out_(in) {
  for (const int64_t width : widths) {
    const auto number = std::to_string(layers_.size());
    layers_.push_back(
        register_module(number, tower_linear(out_, width, name + "." + number, device)));
    out_ = width;
  }
}

at::Tensor Tower::forward(at::Tensor x) {
  for (const auto& linear : layers_) x = at::relu(linear->forward(in_dtype_of(*linear, x)));
  return widened(x);
}

EmbeddedColumns::EmbeddedColumns(const RecommenderConfig& config, const RecommenderInputs& inputs)
    : features(embedded_width(config, inputs, inputs.sparse)),
      wide(has_wide_part(config) ? inputs.sparse : 0) {
  if (!reads_sequences(config)) return;
  const int64_t sequences = std::ssize(inputs.sequences), pairs = std::ssize(inputs.co_actions);
  events = sequences * inputs.length * config.dim;
  if (has_negatives(config)) negatives = sequences * (inputs.length - 1) * config.dim;
  if (config.model != "can") return;
  micro = pairs * micro_parameters(config);
  this->inputs = pairs * inputs.length * config.micro.front();
}

Recommender::Recommender(const RecommenderConfig& config, const RecommenderInputs& inputs)
    : config_(config), inputs_(inputs), columns_(config, inputs) {}

double Recommender::products_per_sample() const {
  double products = 0;
  for (const auto& parameter : parameters())
    if (parameter.dim() == 2) products += static_cast<double>(parameter.numel());
  return products;
}

void Recommender::set_compute_dtype(at::ScalarType dtype) {
  user_check(dtype == at::kFloat || dtype == at::kBFloat16,
             "recommender: {} is not a compute dtype; use float32 or bfloat16",
             c10::toString(dtype));
  for (const auto& linear : mx::quantizable_linears(*this)) {
    for (auto& parameter : linear->parameters()) {
      if (parameter.scalar_type() == dtype) continue;
      parameter.mutable_grad().reset();
      parameter.set_data(parameter.detach().to(dtype));
    }
  }
}

at::Tensor Recommender::features(const RecommenderBatch& batch) const {
  DOVETAIL_CHECK(batch.embedded.size(1) == columns_.all(), "{} columns, not {}",
                 batch.embedded.size(1), columns_.all());
  return batch.embedded.narrow(1, 0, columns_.features);
}

at::Tensor Recommender::events(const RecommenderBatch& batch) const {
  const at::Tensor all =
      batch.embedded.narrow(1, columns_.features + columns_.wide, columns_.events);
  return all.view({-1, std::ssize(inputs_.sequences), inputs_.length, config_.dim})
      .transpose(1, 2)
      .flatten(2);
}

std::shared_ptr<Recommender> make_recommender(const RecommenderConfig& config,
                                              const RecommenderInputs& inputs, c10::Device device) {
  check(config, inputs);
  if (config.model == "din") return make_din(config, inputs, device);
  if (config.model == "dien") return make_dien(config, inputs, device);
  if (config.model == "can") return make_can(config, inputs, device);
  if (config.model == "mmoe") return make_mmoe(config, inputs, device);
  return make_interaction(config, inputs, device);
}

void initialize(Recommender& model, uint64_t seed) {
  constexpr double kSlope = 0.25;
  const torch::NoGradGuard no_grad;
  for (auto& item : model.named_parameters()) {
    at::Tensor& parameter = item.value();
    if (parameter.dim() == 1 || item.key().starts_with("wide.")) {
      parameter.fill_(item.key().ends_with("slope") ? kSlope : 0);
      continue;
    }
    const double std = std::sqrt(2.0 / static_cast<double>(parameter.size(0) + parameter.size(1)));
    parameter.copy_(normal_values(parameter.sizes(), std, mix_seed(seed, name_key(item.key()))));
  }
}

double flops_per_sample(const Recommender& model) { return 6 * model.products_per_sample(); }

}  // namespace dovetail::models
