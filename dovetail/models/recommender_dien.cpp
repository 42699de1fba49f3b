#include <ATen/ATen.h>

#include <limits>

#include "dovetail/models/recommender_models.h"

namespace dovetail::models {
namespace {

/// Recurrent layer h' = (1 - a u) h + a u h~. The gates are u = s(W_u x + U_u h) and r = s(W_r x +
/// U_r h); the proposal is h~ = tanh(W_h x + r (U_h h)). Biases are in W. a = 1 in a GRU, the
/// attention in an AUGRU.
class GatedRecurrence : public torch::nn::Module {
 public:
  GatedRecurrence(int64_t in, int64_t width, const std::string& name, c10::Device device) {
    input_ = register_module("input", tower_linear(in, 3 * width, name + ".input", device));
    state_ = register_module(
        "state", tower_linear(width, 3 * width, name + ".state", device, /*bias=*/false));
  }

  /// Returns the states (B, L, width), starting from a state of zeros. x is (B, L, in), mask (B, L)
  /// bool, attention (B, L) or undefined. The state does not change where there is no event.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask, const at::Tensor& attention) {
    const at::Tensor projected = wide_linear(*input_, x);
    at::Tensor state = at::zeros({x.size(0), projected.size(2) / 3}, projected.options());
    std::vector<at::Tensor> states;
    for (int64_t t = 0; t < x.size(1); ++t) {
      const at::Tensor here = mask.select(1, t).unsqueeze(1);
      const at::Tensor scale =
          attention.defined() ? attention.select(1, t).unsqueeze(1) : at::Tensor();
      state = at::where(here, next(projected.select(1, t), state, scale), state);
      states.push_back(state);
    }
    return at::stack(states, 1);
  }

 private:
  at::Tensor next(const at::Tensor& projected, const at::Tensor& state, const at::Tensor& scale) {
    const auto x = projected.chunk(3, 1), h = wide_linear(*state_, state).chunk(3, 1);
    const at::Tensor gate = at::sigmoid(x[0] + h[0]), reset = at::sigmoid(x[1] + h[1]);
    const at::Tensor proposed = at::tanh(x[2] + reset * h[2]);
    const at::Tensor update = scale.defined() ? scale * gate : gate;
    return state + update * (proposed - state);
  }

  std::shared_ptr<mx::Linear> input_, state_;
};

/// Network p(h, e) of the auxiliary loss: sigmoid layers, then a logit.
class AuxiliaryNet : public torch::nn::Module {
 public:
  AuxiliaryNet(int64_t in, const std::vector<int64_t>& widths, c10::Device device) {
    for (const int64_t width : widths) {
      const auto number = std::to_string(layers_.size());
      layers_.push_back(
          register_module(number, tower_linear(in, width, "auxiliary." + number, device)));
      in = width;
    }
    out_ = register_module("out", head_linear(in, "auxiliary.out", device));
  }

  /// Maps (B, T, in) to (B, T).
  at::Tensor forward(at::Tensor x) {
    for (const auto& linear : layers_) x = at::sigmoid(wide_linear(*linear, x));
    return out_->forward(x).squeeze(2);
  }

 private:
  std::vector<std::shared_ptr<mx::Linear>> layers_;
  std::shared_ptr<mx::Linear> out_;
};

double elements_of_matrices(const torch::nn::Module& module) {
  double elements = 0;
  for (const auto& parameter : module.parameters())
    if (parameter.dim() == 2) elements += static_cast<double>(parameter.numel());
  return elements;
}

class Dien : public Recommender {
 public:
  Dien(const RecommenderConfig& config, const RecommenderInputs& inputs, c10::Device device)
      : Recommender(config, inputs) {
    const int64_t event = std::ssize(inputs.sequences) * config.dim,
                  candidate = num_targets(inputs) * config.dim;
    const int64_t width = config.interest;
    extractor_ = register_module(
        "extractor", std::make_shared<GatedRecurrence>(event, width, "extractor", device));
    attention_ = register_module(
        "attention", tower_linear(candidate, width, "attention", device, /*bias=*/false));
    evolution_ = register_module(
        "evolution", std::make_shared<GatedRecurrence>(width, width, "evolution", device));
    if (has_negatives(config))
      auxiliary_ = register_module(
          "auxiliary", std::make_shared<AuxiliaryNet>(width + event, config.auxiliary, device));
    const int64_t all =
        inputs.dense + embedded_width(config, inputs, inputs.sparse) + event + width;
    deep_ = register_module("deep", std::make_shared<Tower>(all, config.deep, "deep", device));
    head_ = register_module("head", head_linear(deep_->out(), "head", device));
  }

  RecommenderOutput forward(const RecommenderBatch& batch) override {
    const at::Tensor features = this->features(batch), events = this->events(batch);
    const at::Tensor states = extractor_->forward(events, batch.mask, {});
    const at::Tensor evolved =
        evolution_->forward(states, batch.mask, attention(features, states, batch.mask));
    const at::Tensor interest = evolved.select(1, inputs().length - 1);
    RecommenderOutput out;
    out.logits = head_->forward(
        deep_->forward(at::cat({batch.dense, features, events.sum(1), interest}, 1)));
    if (auxiliary_ && batch.negative_mask.defined())
      out.auxiliary = auxiliary(batch, events, states);
    return out;
  }

  double products_per_sample() const override {
    const auto length = static_cast<double>(inputs().length);
    const double recurrent = elements_of_matrices(*extractor_) + elements_of_matrices(*evolution_);
    double products = Recommender::products_per_sample() + (length - 1) * recurrent +
                      length * static_cast<double>(config().interest);
    if (auxiliary_) products += (2 * (length - 1) - 1) * elements_of_matrices(*auxiliary_);
    return products;
  }

 private:
  /// Returns the attention (B, L). It sums to 1 over the events of a sample and is zero where there
  /// is no event.
  at::Tensor attention(const at::Tensor& features, const at::Tensor& states,
                       const at::Tensor& mask) {
    const at::Tensor projected =
        wide_linear(*attention_, candidate_of(config(), inputs(), features));
    const at::Tensor scores = at::bmm(states, projected.unsqueeze(2)).squeeze(2);
    // The lowest finite number, since -inf would give NaN for a sample without any event.
    const at::Tensor kept =
        scores.masked_fill(mask.logical_not(), std::numeric_limits<float>::lowest());
    return at::softmax(kept, 1) * mask;
  }

  at::Tensor auxiliary(const RecommenderBatch& batch, const at::Tensor& events,
                       const at::Tensor& states) {
    const int64_t following = inputs().length - 1;
    const at::Tensor negatives =
        batch.embedded.narrow(1, columns().features + columns().events, columns().negatives)
            .view({-1, std::ssize(inputs().sequences), following, config().dim})
            .transpose(1, 2)
            .flatten(2);
    const at::Tensor before = states.narrow(1, 0, following);
    // Both at once: their gradients nearly cancel, and are then summed before they are rounded.
    const at::Tensor both = at::cat(
        {at::cat({before, events.narrow(1, 1, following)}, 2), at::cat({before, negatives}, 2)});
    const auto found = auxiliary_->forward(both).chunk(2);
    const at::Tensor losses = at::softplus(-found[0]) + at::softplus(found[1]);
    return (losses * batch.negative_mask).sum() *
           (config().auxiliary_weight / static_cast<double>(following));
  }

  std::shared_ptr<GatedRecurrence> extractor_, evolution_;
  std::shared_ptr<mx::Linear> attention_;
  std::shared_ptr<AuxiliaryNet> auxiliary_;  ///< null without the auxiliary loss
  std::shared_ptr<Tower> deep_;
  std::shared_ptr<mx::Linear> head_;
};

}  // namespace

std::shared_ptr<Recommender> make_dien(const RecommenderConfig& config,
                                       const RecommenderInputs& inputs, c10::Device device) {
  return std::make_shared<Dien>(config, inputs, device);
}

}  // namespace dovetail::models
