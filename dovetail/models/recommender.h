#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dovetail/models/recommender_config.h"
#include "dovetail/mx/linear.h"

namespace dovetail::models {

/// Stack of Linears, each followed by max(x, 0).
class Tower : public torch::nn::Module {
 public:
  Tower(int64_t in, const std::vector<int64_t>& widths, const std::string& name,
        c10::Device device);
  at::Tensor forward(at::Tensor x);
  int64_t out() const { return out_; }

 private:
  std::vector<std::shared_ptr<mx::Linear>> layers_;
  int64_t out_;
};

/// Batch of B samples.
struct RecommenderBatch {
  at::Tensor dense;     ///< (B, dense)
  at::Tensor embedded;  ///< (B, columns), in the layout of EmbeddedColumns
  /// (B, length) bool: true for each event that a sample has. Undefined without sequences.
  at::Tensor mask;
  /// (B, length - 1) bool: true for each event, from the second on, that has a negative. Undefined
  /// without negatives.
  at::Tensor negative_mask;
};

struct RecommenderOutput {
  at::Tensor logits;  ///< (B, tasks)
  /// Scalar to add to the loss: weighted auxiliary loss, summed over the samples. Undefined:
  /// nothing to add.
  at::Tensor auxiliary;
};

/// Widths of the groups of columns in a sample's `embedded`, in this order.
struct EmbeddedColumns {
  int64_t features = 0;  ///< embedded_width of all sparse features
  int64_t wide = 0;      ///< `sparse`: one weight per feature if the model has a wide part, else 0
  int64_t events = 0;    ///< sequences * length * dim
  /// Width sequences * (length - 1) * dim: for each event from the second on, an event of another
  /// sample.
  int64_t negatives = 0;
  int64_t micro = 0;   ///< co_actions * micro_parameters: micro-MLPs of the items
  int64_t inputs = 0;  ///< co_actions * length * micro[0]: inputs of the micro-MLPs

  EmbeddedColumns(const RecommenderConfig& config, const RecommenderInputs& inputs);
  int64_t all() const { return features + wide + events + negatives + micro + inputs; }
};

/// Dense part of a recommender: everything except its embeddings.
class Recommender : public torch::nn::Module {
 public:
  virtual RecommenderOutput forward(const RecommenderBatch& batch) = 0;
  /// Returns the number of multiplications in the forward pass of one sample.
  virtual double products_per_sample() const;

  const RecommenderConfig& config() const { return config_; }
  const RecommenderInputs& inputs() const { return inputs_; }

 protected:
  Recommender(const RecommenderConfig& config, const RecommenderInputs& inputs);

  /// Returns the embeddings of the features, (B, `EmbeddedColumns::features`).
  at::Tensor features(const RecommenderBatch& batch) const;
  /// Returns (B, length, sequences * dim): the embeddings of each event, concatenated. They are
  /// zero where there is no event.
  at::Tensor events(const RecommenderBatch& batch) const;
  const EmbeddedColumns& columns() const { return columns_; }

 private:
  RecommenderConfig config_;
  RecommenderInputs inputs_;
  EmbeddedColumns columns_;
};

/// Creates the model that `config.model` names. Its parameters are not initialized. Throws
/// UserError as `check` does.
std::shared_ptr<Recommender> make_recommender(const RecommenderConfig& config,
                                              const RecommenderInputs& inputs,
                                              c10::Device device = c10::kCPU);

/// Initializes the parameters as a function of seed and name. Matrices are normal with variance 2 /
/// (in + out) (Glorot and Bengio 2010). Biases and the wide part's weights are zero. Slopes of
/// PReLU are 1/4 (He et al. 2015).
void initialize(Recommender& model, uint64_t seed);

/// Returns the FLOPs of one sample's forward and backward pass, without embeddings.
double flops_per_sample(const Recommender& model);

}  // namespace dovetail::models
