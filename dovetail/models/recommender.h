#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dovetail/models/recommender_config.h"
#include "dovetail/mx/linear.h"

namespace dovetail {

/// A stack of Linears, each followed by max(x, 0).
class Tower : public torch::nn::Module {
 public:
  Tower(int64_t in, const std::vector<int64_t>& widths, const std::string& name, c10::Device device);
  at::Tensor forward(at::Tensor x);
  int64_t out() const { return out_; }

 private:
  std::vector<std::shared_ptr<Linear>> layers_;
  int64_t out_;
};

/// The dense part of a recommender: everything but its embeddings.
///
/// wide_deep  Cheng et al. 2016: a linear model of all features plus the deep part of dense features and embeddings.
/// deepfm     Guo et al. 2017: a linear model of the sparse features, the inner products of all pairs of embeddings,
/// and
///            the deep part. Dense features go to the deep part.
/// dlrm       Naumov et al. 2019: the dense features as one more embedding, the inner products of all pairs, and a
/// tower
///            on both.
/// dcnv2      Wang et al. 2021: x_(l+1) = x_0 * (W_l x_l + b_l) + x_l over dense features and embeddings, W_l = U V of
///            `cross_rank`.
class Recommender : public torch::nn::Module {
 public:
  Recommender(const RecommenderConfig& config, const RecommenderInputs& inputs, c10::Device device = c10::kCPU);

  /// dense (B, dense); embedded (B, sparse dim): the features' embeddings side by side, and with a wide part `sparse`
  /// columns more, their weights. Logits (B).
  at::Tensor forward(const at::Tensor& dense, const at::Tensor& embedded);

  const RecommenderConfig& config() const { return config_; }
  const RecommenderInputs& inputs() const { return inputs_; }

 private:
  at::Tensor cross(const at::Tensor& x);
  at::Tensor products_of_pairs(const at::Tensor& embeddings) const;

  RecommenderConfig config_;
  RecommenderInputs inputs_;
  std::shared_ptr<Tower> bottom_, deep_;
  std::vector<std::shared_ptr<Linear>> cross_down_, cross_;  ///< V and U; without a rank only U
  std::shared_ptr<Linear> wide_;                             ///< of the dense features
  std::shared_ptr<Linear> head_;                             ///< of what the parts found
};

/// Matrices: normal of variance 2 / (in + out) (Glorot and Bengio 2010), a function of seed and name; biases and the
/// wide part's weights: zero.
void initialize(Recommender& model, uint64_t seed);

/// FLOPs of a sample's forward and backward pass through the model's matrices, without embeddings.
double flops_per_sample(const Recommender& model);

}  // namespace dovetail
