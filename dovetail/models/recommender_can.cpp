#include <ATen/ATen.h>

#include <numeric>

#include "dovetail/models/recommender_models.h"

namespace dovetail::models {
namespace {

class Can : public Recommender {
 public:
  Can(const RecommenderConfig& config, const RecommenderInputs& inputs, c10::Device device)
      : Recommender(config, inputs) {
    const int64_t event = std::ssize(inputs.sequences) * config.dim;
    const int64_t all = inputs.dense + embedded_width(config, inputs, inputs.sparse) + event +
                        std::ssize(inputs.co_actions) * found();
    deep_ = register_module("deep", std::make_shared<Tower>(all, config.deep, "deep", device));
    head_ = register_module("head", head_linear(deep_->out(), "head", device));
  }

  RecommenderOutput forward(const RecommenderBatch& batch) override {
    std::vector<at::Tensor> parts = {batch.dense, features(batch), events(batch).sum(1)};
    const int64_t micro = micro_parameters(config()),
                  read = inputs().length * config().micro.front();
    const int64_t first = columns().features + columns().events;
    for (int64_t pair = 0; pair < std::ssize(inputs().co_actions); ++pair) {
      const at::Tensor row = batch.embedded.narrow(1, first + pair * micro, micro);
      const at::Tensor events =
          batch.embedded.narrow(1, first + columns().micro + pair * read, read);
      parts.push_back(
          co_action(row, events.view({-1, inputs().length, config().micro.front()}), batch.mask));
    }
    return {head_->forward(deep_->forward(at::cat(parts, 1))), {}};
  }

  double products_per_sample() const override {
    double of_layers = 0;
    for (size_t i = 1; i < config().micro.size(); ++i)
      of_layers += static_cast<double>(config().micro[i - 1] * config().micro[i]);
    const auto times =
        static_cast<double>(std::ssize(inputs().co_actions) * inputs().length * config().orders);
    return Recommender::products_per_sample() + times * of_layers;
  }

 private:
  /// Returns the elements of a co-action: the outputs of all layers, for each order.
  int64_t found() const {
    return config().orders *
           std::accumulate(config().micro.begin() + 1, config().micro.end(), int64_t{0});
  }

  /// Returns a co-action. `row` (B, micro_parameters) holds the weight (in, out) and then the bias
  /// of each layer. events is (B, L, in), mask (B, L).
  at::Tensor co_action(const at::Tensor& row, const at::Tensor& events,
                       const at::Tensor& mask) const {
    std::vector<at::Tensor> outputs;
    at::Tensor power = events;
    for (int64_t order = 1; order <= config().orders; ++order) {
      if (order > 1) power = power * events;
      at::Tensor x = power;
      int64_t at_row = 0;
      for (size_t layer = 1; layer < config().micro.size(); ++layer) {
        const int64_t in = config().micro[layer - 1], out = config().micro[layer];
        const at::Tensor weight = row.narrow(1, at_row, in * out).view({-1, in, out});
        const at::Tensor bias = row.narrow(1, at_row + in * out, out).unsqueeze(1);
        x = at::baddbmm(bias, x, weight);
        if (layer + 1 < config().micro.size()) x = at::tanh(x);
        outputs.push_back(x);
        at_row += (in + 1) * out;
      }
    }
    return (at::cat(outputs, 2) * mask.unsqueeze(2)).sum(1);
  }

  std::shared_ptr<Tower> deep_;
  std::shared_ptr<mx::Linear> head_;
};

}  // namespace

std::shared_ptr<Recommender> make_can(const RecommenderConfig& config,
                                      const RecommenderInputs& inputs, c10::Device device) {
  return std::make_shared<Can>(config, inputs, device);
}

}  // namespace dovetail::models
