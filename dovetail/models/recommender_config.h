#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dovetail/base/schema/schema.h"

namespace dovetail::models {

/// [recommender]: model of the probability of an event, given dense features and embeddings of
/// sparse features.
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
  int64_t grain = 256;       ///< samples that the dense part processes at a time
  /// Model dcnv2: the deep part is "parallel" to the cross layers or "stacked" on them.
  std::string cross = "parallel";
  std::vector<int64_t> attention = {36};  ///< din: hidden widths of the local activation unit
  int64_t interest = 32;                  ///< dien: elements of an interest state
  /// Model dien: hidden widths of the network for the auxiliary loss.
  std::vector<int64_t> auxiliary = {100, 50};
  double auxiliary_weight = 1;  ///< dien: weight of the auxiliary loss
  /// Model can: widths of the micro-MLP, from its input to its output.
  std::vector<int64_t> micro = {16, 8, 4};
  int64_t orders = 2;  ///< can: the micro-MLP reads powers 1 to `orders` of its input
  /// Model can: pairs "item * sequence". Empty: each sequence with the feature whose table it
  /// shares.
  std::vector<std::string> co_action;
  int64_t experts = 4;                  ///< mmoe: number of experts
  std::vector<int64_t> expert = {128};  ///< mmoe: widths of an expert's layers
  std::vector<double> task_weights;     ///< mmoe: weights of the tasks' losses; empty: 1 each
  void describe(Section& s);
};

/// Inputs of a model: the features of a sample. If the model reads sequences, `sparse` does not
/// count them.
struct RecommenderInputs {
  int64_t dense = 0, sparse = 0;
  int64_t tasks = 1;
  /// Sequence. `target` is the sparse feature that shares its table. Its value is the candidate,
  /// which is compared with the events.
  struct Sequence {
    int64_t target = -1;  ///< -1: no feature shares the table
  };
  std::vector<Sequence> sequences;
  int64_t length = 0;  ///< length of the sequences, in events
  /// Model can: pair of sparse feature `item`, which selects the micro-MLP, and `sequence`, its
  /// input.
  struct CoAction {
    int64_t item = 0, sequence = 0;
  };
  std::vector<CoAction> co_actions;
  /// Elements of each sparse feature's embedding. Empty: all have recommender.dim.
  std::vector<int64_t> dims;
};

/// Returns true if a model has a scalar weight for every id: a second table of dimension 1 for each
/// table.
bool has_wide_part(const RecommenderConfig& config);
/// Returns true if a model reads each event of a sequence. Other models pool sequences, as bags.
bool reads_sequences(const RecommenderConfig& config);
/// Returns true if a model learns to distinguish a sequence's next event from an event of another
/// sample.
bool has_negatives(const RecommenderConfig& config);
/// Returns the number of elements in the concatenated embeddings of the first `features` sparse
/// features.
int64_t embedded_width(const RecommenderConfig& config, const RecommenderInputs& inputs,
                       int64_t features);
/// Returns the number of elements of a row that holds the weights and biases of one micro-MLP.
int64_t micro_parameters(const RecommenderConfig& config);

/// Sets keys that no part of the model reads to their defaults, since `check` rejects such keys.
void forget_unread_keys(RecommenderConfig& config, const RecommenderInputs& inputs);

/// Checks a config against the inputs. Throws UserError that names recommender.<key>.
void check(const RecommenderConfig& config, const RecommenderInputs& inputs);

}  // namespace dovetail::models
