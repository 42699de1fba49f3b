#include <ATen/ATen.h>

#include "dovetail/models/recommender_models.h"

namespace dovetail::models {
namespace {

/// Layers with PReLU (He et al. 2015), then one output. Zhou et al. prefer Dice. Its statistics
/// belong to a batch and would change with the way in which the batch is cut.
class ActivationUnit : public torch::nn::Module {
 public:
  ActivationUnit(int64_t in, const std::vector<int64_t>& widths, c10::Device device) {
    for (const int64_t width : widths) {
      const auto number = std::to_string(layers_.size());
      layers_.push_back(
          register_module(number, tower_linear(in, width, "attention." + number, device)));
      slopes_.push_back(register_parameter(number + "_slope",
                                           at::empty({width}, at::TensorOptions().device(device))));
      in = width;
    }
    out_ = register_module("out", head_linear(in, "attention.out", device));
  }

  /// Maps (B, L, in) to (B, L).
  at::Tensor forward(at::Tensor x) {
    for (size_t i = 0; i < layers_.size(); ++i) {
      x = wide_linear(*layers_[i], x);
      x = at::relu(x) - slopes_[i] * at::relu(-x);
    }
    return out_->forward(x).squeeze(2);
  }

 private:
  std::vector<std::shared_ptr<mx::Linear>> layers_;
  std::vector<at::Tensor> slopes_;
  std::shared_ptr<mx::Linear> out_;
};

class Din : public Recommender {
 public:
  Din(const RecommenderConfig& config, const RecommenderInputs& inputs, c10::Device device)
      : Recommender(config, inputs) {
    const int64_t event = std::ssize(inputs.sequences) * config.dim,
                  candidate = num_targets(inputs) * config.dim;
    attention_ = register_module("attention", std::make_shared<ActivationUnit>(
                                                  event + 3 * candidate, config.attention, device));
    const int64_t all = inputs.dense + embedded_width(config, inputs, inputs.sparse) + event;
    deep_ = register_module("deep", std::make_shared<Tower>(all, config.deep, "deep", device));
    head_ = register_module("head", head_linear(deep_->out(), "head", device));
  }

  RecommenderOutput forward(const RecommenderBatch& batch) override {
    const at::Tensor features = this->features(batch), events = this->events(batch);
    const at::Tensor interest =
        at::bmm(weights(features, events, batch.mask).unsqueeze(1), events).squeeze(1);
    return {head_->forward(deep_->forward(at::cat({batch.dense, features, interest}, 1))), {}};
  }

  double products_per_sample() const override {
    double of_attention = 0;
    for (const auto& parameter : attention_->parameters())
      if (parameter.dim() == 2) of_attention += static_cast<double>(parameter.numel());
    const auto length = static_cast<double>(inputs().length);
    return Recommender::products_per_sample() + (length - 1) * of_attention +
           static_cast<double>(columns().events);
  }

 private:
  /// Returns the weights (B, L) of the events: zero where there is no event.
  at::Tensor weights(const at::Tensor& features, const at::Tensor& events, const at::Tensor& mask) {
    std::vector<at::Tensor> compared;  // columns of an event that the candidate has, too
    for (int64_t s = 0; s < std::ssize(inputs().sequences); ++s)
      if (inputs().sequences[static_cast<size_t>(s)].target >= 0)
        compared.push_back(events.narrow(2, s * config().dim, config().dim));
    const at::Tensor same = at::cat(compared, 2);
    const at::Tensor candidate =
        candidate_of(config(), inputs(), features).unsqueeze(1).expand_as(same);
    return attention_->forward(
               at::cat({candidate, events, candidate - same, candidate * same}, 2)) *
           mask;
  }

  std::shared_ptr<ActivationUnit> attention_;
  std::shared_ptr<Tower> deep_;
  std::shared_ptr<mx::Linear> head_;
};

}  // namespace

std::shared_ptr<Recommender> make_din(const RecommenderConfig& config,
                                      const RecommenderInputs& inputs, c10::Device device) {
  return std::make_shared<Din>(config, inputs, device);
}

}  // namespace dovetail::models
