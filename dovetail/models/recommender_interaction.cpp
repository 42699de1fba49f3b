#include <ATen/ATen.h>
#include <fmt/format.h>

#include "dovetail/models/recommender_models.h"

namespace dovetail::models {
namespace {

int64_t pairs(int64_t vectors) { return vectors * (vectors - 1) / 2; }

class Interaction : public Recommender {
 public:
  Interaction(const RecommenderConfig& config, const RecommenderInputs& inputs, c10::Device device);
  RecommenderOutput forward(const RecommenderBatch& batch) override {
    return {logit(batch).unsqueeze(1), {}};
  }
  double products_per_sample() const override;

 private:
  void make_cross(int64_t width, c10::Device device);
  at::Tensor logit(const RecommenderBatch& batch);
  at::Tensor cross(const at::Tensor& x);
  at::Tensor products_of_pairs(const at::Tensor& embeddings) const;

  std::shared_ptr<Tower> bottom_, deep_;
  /// V and U of W = U V; only U if the rank is full.
  std::vector<std::shared_ptr<mx::Linear>> cross_down_, cross_;
  std::shared_ptr<mx::Linear> wide_;  ///< linear model of the dense features
  std::shared_ptr<mx::Linear> head_;  ///< output layer on the results of the parts
};

Interaction::Interaction(const RecommenderConfig& config, const RecommenderInputs& inputs,
                         c10::Device device)
    : Recommender(config, inputs) {
  const int64_t all = inputs.dense + embedded_width(config, inputs, inputs.sparse);
  if (config.model == "dlrm") {
    std::vector<int64_t> widths = config.bottom;
    widths.push_back(config.dim);
    bottom_ =
        register_module("bottom", std::make_shared<Tower>(inputs.dense, widths, "bottom", device));
    deep_ =
        std::make_shared<Tower>(config.dim + pairs(inputs.sparse + 1), config.deep, "deep", device);
  } else {
    deep_ = std::make_shared<Tower>(all, config.deep, "deep", device);
  }
  if (config.model == "dcnv2") make_cross(all, device);
  if (config.model == "wide_deep" && inputs.dense > 0)
    wide_ = register_module("wide", head_linear(inputs.dense, "wide", device));
  register_module("deep", deep_);
  const bool beside = config.model == "dcnv2" && config.cross == "parallel";
  head_ = register_module("head", head_linear(deep_->out() + (beside ? all : 0), "head", device));
}

void Interaction::make_cross(int64_t width, c10::Device device) {
  const int64_t rank = config().cross_rank;
  for (int64_t i = 0; i < config().cross_layers; ++i) {
    if (rank > 0) {
      const auto name = fmt::format("cross_down{}", i);
      cross_down_.push_back(
          register_module(name, tower_linear(width, rank, name, device, /*bias=*/false)));
    }
    const auto name = fmt::format("cross{}", i);
    cross_.push_back(
        register_module(name, tower_linear(rank > 0 ? rank : width, width, name, device)));
  }
}

/// Returns the inner products of each embedding with the previous ones, (B, F (F - 1) / 2).
/// embeddings is (B, F, dim).
at::Tensor Interaction::products_of_pairs(const at::Tensor& embeddings) const {
  const int64_t count = embeddings.size(1);
  const at::Tensor products = at::bmm(embeddings, embeddings.transpose(1, 2));
  const at::Tensor place =
      at::tril_indices(count, count, -1, at::TensorOptions(at::kLong).device(products.device()));
  return products.flatten(1).index_select(1, place[0] * count + place[1]);
}

at::Tensor Interaction::cross(const at::Tensor& x) {
  at::Tensor y = x;
  for (size_t i = 0; i < cross_.size(); ++i) {
    const at::Tensor in =
        cross_down_.empty() ? y : cross_down_[i]->forward(in_dtype_of(*cross_down_[i], y));
    y = x * wide_linear(*cross_[i], in) + y;
  }
  return y;
}

at::Tensor Interaction::logit(const RecommenderBatch& batch) {
  const std::string& model = config().model;
  const at::Tensor features = this->features(batch);
  const auto vectors = [&] { return features.view({-1, inputs().sparse, config().dim}); };
  if (model == "dlrm") {
    const at::Tensor bottom = bottom_->forward(batch.dense);
    const at::Tensor products = products_of_pairs(at::cat({bottom.unsqueeze(1), vectors()}, 1));
    return head_->forward(deep_->forward(at::cat({bottom, products}, 1))).squeeze(1);
  }
  const at::Tensor all = at::cat({batch.dense, features}, 1);
  if (model == "dcnv2") {
    const at::Tensor crossed = cross(all);
    if (config().cross == "stacked") return head_->forward(deep_->forward(crossed)).squeeze(1);
    return head_->forward(at::cat({crossed, deep_->forward(all)}, 1)).squeeze(1);
  }
  at::Tensor logit = head_->forward(deep_->forward(all)).squeeze(1) +
                     batch.embedded.narrow(1, columns().features, columns().wide).sum(1);
  if (wide_) logit = logit + wide_->forward(batch.dense).squeeze(1);
  // All pairs at once: half of the square of the sum minus the sum of the squares.
  if (model == "deepfm")
    logit = logit + 0.5 * (vectors().sum(1).square() - vectors().square().sum(1)).sum(1);
  return logit;
}

double Interaction::products_per_sample() const {
  const int64_t vectors = inputs().sparse + 1;
  const double of_pairs =
      config().model == "dlrm" ? static_cast<double>(vectors * vectors * config().dim) : 0;
  return Recommender::products_per_sample() + of_pairs;
}

}  // namespace

std::shared_ptr<Recommender> make_interaction(const RecommenderConfig& config,
                                              const RecommenderInputs& inputs, c10::Device device) {
  return std::make_shared<Interaction>(config, inputs, device);
}

}  // namespace dovetail::models
