#pragma once

#include <ATen/core/Tensor.h>
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
  Tower(int64_t in, const std::vector<int64_t>& widths, const std::string& name,
        c10::Device device);
  at::Tensor forward(at::Tensor x);
  int64_t out() const { return out_; }

 private:
  std::vector<std::shared_ptr<Linear>> layers_;
  int64_t out_;
};

/// B samples.
struct RecommenderBatch {
  at::Tensor dense;     ///< (B, dense)
  at::Tensor embedded;  ///< (B, columns), laid out as EmbeddedColumns
  at::Tensor mask;  ///< (B, length) bool: the events that a sample has; undefined without sequences
  at::Tensor negative_mask;  ///< (B, length - 1) bool: events from the second on that have a
                             ///< negative; undefined without
};

struct RecommenderOutput {
  at::Tensor logits;     ///< (B, tasks)
  at::Tensor auxiliary;  ///< scalar: sum over the samples of what is added to the loss, weighted;
                         ///< undefined: nothing
};

/// What lies in a sample's `embedded`, side by side.
struct EmbeddedColumns {
  int64_t features = 0;  ///< embedded_width of all: of each its dim
  int64_t wide = 0;      ///< sparse: with a wide part, a weight of each
  int64_t events = 0;    ///< sequences * length * dim
  int64_t negatives =
      0;  ///< sequences * (length - 1) * dim: another sample's event for each from the second on
  int64_t micro = 0;   ///< co_actions * micro_parameters: the items' micro-MLPs
  int64_t inputs = 0;  ///< co_actions * length * micro[0]: what they read

  EmbeddedColumns(const RecommenderConfig& config, const RecommenderInputs& inputs);
  int64_t all() const { return features + wide + events + negatives + micro + inputs; }
};

/// The dense part of a recommender: everything but its embeddings.
class Recommender : public torch::nn::Module {
 public:
  virtual RecommenderOutput forward(const RecommenderBatch& batch) = 0;
  /// Multiplications of a sample's forward pass.
  virtual double products_per_sample() const;

  const RecommenderConfig& config() const { return config_; }
  const RecommenderInputs& inputs() const { return inputs_; }

 protected:
  Recommender(const RecommenderConfig& config, const RecommenderInputs& inputs);

  /// (B, features of EmbeddedColumns).
  at::Tensor features(const RecommenderBatch& batch) const;
  /// (B, length, sequences * dim): the embeddings of an event side by side; zero where there is
  /// none.
  at::Tensor events(const RecommenderBatch& batch) const;
  const EmbeddedColumns& columns() const { return columns_; }

 private:
  RecommenderConfig config_;
  RecommenderInputs inputs_;
  EmbeddedColumns columns_;
};

/// The model that `config.model` names; its parameters are not initialized. Throws UserError as
/// check.
std::shared_ptr<Recommender> make_recommender(const RecommenderConfig& config,
                                              const RecommenderInputs& inputs,
                                              c10::Device device = c10::kCPU);

/// Matrices: normal of variance 2 / (in + out) (Glorot and Bengio 2010), a function of seed and
/// name; biases and the wide part's weights: zero; slopes of PReLU: 1/4 (He et al. 2015).
void initialize(Recommender& model, uint64_t seed);

/// FLOPs of a sample's forward and backward pass through the model, without embeddings.
double flops_per_sample(const Recommender& model);

}  // namespace dovetail
