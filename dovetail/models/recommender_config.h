#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dovetail/base/schema/schema.h"

namespace dovetail::models {

/// Config section [recommender]: model of the probability of an event such as a click. Its inputs
/// are dense features (numbers) and embeddings of sparse features (ids).
///
/// The deep part is a stack of Linears with ReLU. A comment that begins with the name of a model is
/// for a key that only this model reads. Models are described in recommender_models.h.
struct RecommenderConfig {
  /// wide_deep | deepfm | dlrm | dcnv2 | din | dien | can | mmoe. Empty: train no recommender.
  std::string model;
  int64_t dim = 16;  ///< elements of an embedding
  /// Model dlrm: hidden widths of the tower for dense features. Its last layer has `dim` elements.
  std::vector<int64_t> bottom = {64};
  /// Hidden widths of the deep part, of dlrm's top part, or of each task's tower in mmoe.
  std::vector<int64_t> deep = {128, 64};
  int64_t cross_layers = 3;  ///< dcnv2: number of cross layers
  int64_t cross_rank = 0;    ///< dcnv2: rank of a cross layer's matrix; 0: full rank
  int64_t grain = 256;       ///< samples that the layers after the embeddings process at a time
  /// Model dcnv2: the deep part is "parallel" to the cross layers or "stacked" on them.
  std::string cross = "parallel";
  std::vector<int64_t> attention = {36};  ///< din: hidden widths of the local activation unit
  int64_t interest = 32;  ///< dien: elements of the states of its two recurrent layers
  /// Model dien: hidden widths of the network for the auxiliary loss.
  std::vector<int64_t> auxiliary = {100, 50};
  double auxiliary_weight = 1;  ///< dien: weight of the auxiliary loss
  /// Model can: widths of the micro-MLP, from its input to its output. A micro-MLP is a small MLP
  /// whose weights are a row of an embedding table.
  std::vector<int64_t> micro = {16, 8, 4};
  int64_t orders = 2;  ///< can: the micro-MLP reads powers 1 to `orders` of its input
  /// Model can: pairs "item * sequence", with the names of a feature and of a sequence. The item
  /// selects the micro-MLP, which reads the sequence. Empty: each sequence with the feature whose
  /// table it shares.
  std::vector<std::string> co_action;
  int64_t experts = 4;                  ///< mmoe: number of experts
  std::vector<int64_t> expert = {128};  ///< mmoe: widths of an expert's layers
  std::vector<double> task_weights;     ///< mmoe: weights of the tasks' losses; empty: 1 each
  void describe(Section& s);
};

/// Description of a model's inputs: the features of a sample. A sequence is a list of earlier
/// events (ids) of a sample, such as items that a user clicked.
struct RecommenderInputs {
  /// Number of dense and of sparse features. If the model reads sequences, `sparse` does not count
  /// them.
  int64_t dense = 0, sparse = 0;
  int64_t tasks = 1;  ///< number of labels that the model predicts
  /// Sequence whose events are embedded by the table of sparse feature `target`. The value of that
  /// feature is the candidate: the model compares it with the events.
  struct Sequence {
    int64_t target = -1;  ///< index of the sparse feature; -1: no feature shares the table
  };
  std::vector<Sequence> sequences;
  int64_t length = 0;  ///< maximum number of events of a sequence
  /// Model can: sparse feature `item`, which selects the micro-MLP, and sequence `sequence`, which
  /// is its input. Both are indices.
  struct CoAction {
    int64_t item = 0, sequence = 0;
  };
  std::vector<CoAction> co_actions;
  /// Elements of each sparse feature's embedding. Empty: all have recommender.dim.
  std::vector<int64_t> dims;
};

/// Returns true if the model has a wide part: a scalar weight for every id. The weights are a
/// second table of dimension 1 for each table.
bool has_wide_part(const RecommenderConfig& config);
/// Returns true if the model reads each event of a sequence. Other models read a sequence as one
/// sparse feature: a bag of ids whose embeddings are pooled.
bool reads_sequences(const RecommenderConfig& config);
/// Returns true if the model learns to distinguish a sequence's next event from a negative:
/// another event of the batch.
bool has_negatives(const RecommenderConfig& config);
/// Returns the number of elements in the concatenated embeddings of the first `features` sparse
/// features.
int64_t embedded_width(const RecommenderConfig& config, const RecommenderInputs& inputs,
                       int64_t features);
/// Returns the number of weights and biases of one micro-MLP, which are one row of a table.
int64_t micro_parameters(const RecommenderConfig& config);

/// Sets each of `auxiliary` and `dim` to its default if the model does not read it. Other keys
/// decide this. `check` throws for an unread key that differs from its default.
void forget_unread_keys(RecommenderConfig& config, const RecommenderInputs& inputs);

/// Checks a config against the inputs. Throws UserError that names recommender.<key>.
void check(const RecommenderConfig& config, const RecommenderInputs& inputs);

}  // namespace dovetail::models
