#include <ATen/ATen.h>
#include <fmt/format.h>

#include "dovetail/models/recommender_models.h"

namespace dovetail::models {
namespace {

class Mmoe : public Recommender {
 public:
  Mmoe(const RecommenderConfig& config, const RecommenderInputs& inputs, c10::Device device)
      : Recommender(config, inputs) {
    const int64_t all = inputs.dense + embedded_width(config, inputs, inputs.sparse);
    for (int64_t i = 0; i < config.experts; ++i) {
      const auto name = fmt::format("expert{}", i);
      experts_.push_back(
          register_module(name, std::make_shared<Tower>(all, config.expert, name, device)));
    }
    for (int64_t k = 0; k < inputs.tasks; ++k) {
      const auto gate = fmt::format("gate{}", k), task = fmt::format("task{}", k),
                 head = fmt::format("head{}", k);
      gates_.push_back(
          register_module(gate, tower_linear(all, config.experts, gate, device, /*bias=*/false)));
      tasks_.push_back(register_module(
          task, std::make_shared<Tower>(experts_[0]->out(), config.deep, task, device)));
      heads_.push_back(register_module(head, head_linear(tasks_.back()->out(), head, device)));
    }
  }

  RecommenderOutput forward(const RecommenderBatch& batch) override {
    const at::Tensor x = at::cat({batch.dense, features(batch)}, 1);
    std::vector<at::Tensor> found, logits;
    for (const auto& expert : experts_) found.push_back(expert->forward(x));
    const at::Tensor experts = at::stack(found, 1);  // (B, experts, width)
    for (size_t k = 0; k < tasks_.size(); ++k) {
      const at::Tensor gate = at::softmax(wide_linear(*gates_[k], x), 1);
      const at::Tensor mixed = at::bmm(gate.unsqueeze(1), experts).squeeze(1);
      logits.push_back(heads_[k]->forward(tasks_[k]->forward(mixed)));
    }
    return {at::cat(logits, 1), {}};
  }

  double products_per_sample() const override {
    const auto mixed =
        static_cast<double>(std::ssize(tasks_) * config().experts * experts_[0]->out());
    return Recommender::products_per_sample() + mixed;
  }

 private:
  std::vector<std::shared_ptr<Tower>> experts_, tasks_;
  std::vector<std::shared_ptr<mx::Linear>> gates_, heads_;  ///< one for each task
};

}  // namespace

std::shared_ptr<Recommender> make_mmoe(const RecommenderConfig& config,
                                       const RecommenderInputs& inputs, c10::Device device) {
  return std::make_shared<Mmoe>(config, inputs, device);
}

}  // namespace dovetail::models
