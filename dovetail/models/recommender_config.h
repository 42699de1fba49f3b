#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dovetail/base/schema/schema.h"

namespace dovetail {

/// [recommender]: the probability of an event from dense features and embeddings of sparse ones.
struct RecommenderConfig {
  std::string model;  ///< wide_deep | deepfm | dlrm | dcnv2 | din | dien | can | mmoe; empty: none
                      ///< is trained
  int64_t dim = 16;   ///< of an embedding
  std::vector<int64_t> bottom = {
      64};  ///< dlrm: hidden widths of the dense features' part, before one of `dim`
  std::vector<int64_t> deep = {
      128, 64};              ///< hidden widths of the deep part; of dlrm's top; of mmoe's tasks
  int64_t cross_layers = 3;  ///< dcnv2
  int64_t cross_rank = 0;    ///< dcnv2: of a cross layer's matrix; 0: full
  int64_t grain = 256;       ///< samples that the dense part takes at a time
  std::string cross =
      "parallel";  ///< dcnv2: the deep part beside the cross layers, or "stacked" on them
  std::vector<int64_t> attention = {36};       ///< din: hidden widths of the local activation unit
  int64_t interest = 32;                       ///< dien: elements of an interest state
  std::vector<int64_t> auxiliary = {100, 50};  ///< dien: hidden widths of the auxiliary loss's part
  double auxiliary_weight = 1;                 ///< dien
  std::vector<int64_t> micro = {16, 8,
                                4};  ///< can: widths of the micro-MLP, from its input to its output
  int64_t orders = 2;                ///< can: powers of its input
  std::vector<std::string>
      co_action;        ///< can: "item * sequence"; empty: each with the one it shares a table
  int64_t experts = 4;  ///< mmoe
  std::vector<int64_t> expert = {128};  ///< mmoe: widths of an expert
  std::vector<double> task_weights;     ///< mmoe: of the tasks' losses; empty: 1 each
  void describe(Section& s);
};

/// What a model reads: the features of a sample. With sequences, the `sparse` features are those
/// that are none.
struct RecommenderInputs {
  int64_t dense = 0, sparse = 0;
  int64_t tasks = 1;
  /// A sequence, and the sparse feature that it shares a table with: what the candidate has in
  /// place of its events.
  struct Sequence {
    int64_t target = -1;  ///< or none
  };
  std::vector<Sequence> sequences;
  int64_t length = 0;  ///< of the sequences
  /// can: the micro-MLP is of sparse feature `item`, its input of sequence `sequence`.
  struct CoAction {
    int64_t item = 0, sequence = 0;
  };
  std::vector<CoAction> co_actions;
  std::vector<int64_t>
      dims;  ///< elements of each sparse feature's embedding; empty: all have recommender.dim
};

/// Whether a model has a weight of its own for every id (a second table of dimension 1 beside
/// each).
bool has_wide_part(const RecommenderConfig& config);
/// Whether a model reads each event of a sequence; the others get sequences pooled, as bags.
bool reads_sequences(const RecommenderConfig& config);
/// Whether a model learns to tell a sequence's next event from one of another sample.
bool has_negatives(const RecommenderConfig& config);
/// Elements of the embeddings of the first `features` sparse features, side by side.
int64_t embedded_width(const RecommenderConfig& config, const RecommenderInputs& inputs,
                       int64_t features);
/// Elements of a row that holds the weights and biases of one micro-MLP.
int64_t micro_parameters(const RecommenderConfig& config);

/// Sets keys that no part of the model reads to their defaults: check refuses them.
void forget_unread_keys(RecommenderConfig& config, const RecommenderInputs& inputs);

/// Throws UserError naming recommender.<key>.
void check(const RecommenderConfig& config, const RecommenderInputs& inputs);

}  // namespace dovetail
