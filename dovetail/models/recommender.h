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

/// Stack of Linears, each followed by max(x, 0). If its weights are bfloat16, so are the values
/// between Linears, and the output is float32.
class Tower : public torch::nn::Module {
 public:
  /// `in` is the number of inputs; widths[i] is the number of outputs of Linear i. Linear i has the
  /// name "<name>.<i>".
  Tower(int64_t in, const std::vector<int64_t>& widths, const std::string& name,
        c10::Device device);
  at::Tensor forward(at::Tensor x);
  int64_t out() const { return out_; }  ///< number of outputs

 private:
  std::vector<std::shared_ptr<mx::Linear>> layers_;
  int64_t out_;
};

/// Inputs of a Recommender for B samples. In the shapes, `dense` and `length` are members of the
/// model's RecommenderInputs (recommender_config.h).
struct RecommenderBatch {
  at::Tensor dense;     ///< (B, dense): dense features
  at::Tensor embedded;  ///< (B, EmbeddedColumns::all()): rows looked up in embedding tables
  /// (B, length) bool: true for each event that the sample has. A sample may have fewer than
  /// `length` events. Undefined without sequences.
  at::Tensor mask;
  /// (B, length - 1) bool: for each event from the second on, true if it has a negative. A negative
  /// is another event of the batch to compare with. Undefined without negatives.
  at::Tensor negative_mask;
};

struct RecommenderOutput {
  at::Tensor logits;  ///< (B, tasks), with RecommenderInputs::tasks
  /// Scalar to add to the loss: auxiliary loss times its weight, summed over the samples. Undefined
  /// if forward computes no auxiliary loss.
  at::Tensor auxiliary;
};

/// Layout of RecommenderBatch::embedded. Its columns form six groups in the order of the members.
/// Each member is the number of columns of its group. In the comments, `sparse`, `sequences`,
/// `length` and `co_actions` are from RecommenderInputs, `dim` and `micro` from RecommenderConfig.
/// A group that the model does not read has 0 columns.
struct EmbeddedColumns {
  /// Embeddings of all sparse features: embedded_width(config, inputs, sparse).
  int64_t features = 0;
  /// One weight for each sparse feature if the model has a wide part: `sparse`, else 0.
  int64_t wide = 0;
  int64_t events = 0;  ///< embeddings of the events: sequences * length * dim
  /// Embeddings of negatives: for each event from the second on, another event of the batch. Number
  /// of columns: sequences * (length - 1) * dim.
  int64_t negatives = 0;
  /// Model can: parameters of the items' micro-MLPs, co_actions * micro_parameters(config).
  int64_t micro = 0;
  int64_t inputs = 0;  ///< model can: inputs of the micro-MLPs, co_actions * length * micro[0]

  EmbeddedColumns(const RecommenderConfig& config, const RecommenderInputs& inputs);
  int64_t all() const { return features + wide + events + negatives + micro + inputs; }
};

/// Dense part of a recommender: all layers after the embedding tables. Lookups happen outside;
/// their results are RecommenderBatch::embedded.
class Recommender : public torch::nn::Module {
 public:
  virtual RecommenderOutput forward(const RecommenderBatch& batch) = 0;
  /// Returns the number of multiplications in the forward pass of one sample.
  virtual double products_per_sample() const;
  /// Sets the dtype in which Linears compute, float32 or bfloat16: parameters of all Linears except
  /// heads are converted to it. Everything else stays float32: inputs, outputs, heads, slopes,
  /// states, interactions and losses. A Linear reads its input in the dtype of its weights. Call it
  /// before the first forward pass.
  void set_compute_dtype(at::ScalarType dtype);

  const RecommenderConfig& config() const { return config_; }
  const RecommenderInputs& inputs() const { return inputs_; }

 protected:
  Recommender(const RecommenderConfig& config, const RecommenderInputs& inputs);

  /// Returns the embeddings of the features, (B, `EmbeddedColumns::features`).
  at::Tensor features(const RecommenderBatch& batch) const;
  /// Returns (B, length, sequences * dim): for each event its embeddings in all sequences,
  /// concatenated. They are zero for events that the sample does not have.
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

/// Returns the FLOPs of one sample's forward and backward pass, without embedding lookups: 6 per
/// multiplication in forward.
double flops_per_sample(const Recommender& model);

}  // namespace dovetail::models
