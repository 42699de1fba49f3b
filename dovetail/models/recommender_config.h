#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dovetail/base/schema.h"

namespace dovetail {

/// [recommender]: the probability of an event from dense features and embeddings of sparse ones.
struct RecommenderConfig {
  std::string model;                      ///< wide_deep | deepfm | dlrm | dcnv2; empty: none is trained
  int64_t dim = 16;                       ///< of an embedding
  std::vector<int64_t> bottom = {64};     ///< dlrm: hidden widths of the dense features' part, before one of `dim`
  std::vector<int64_t> deep = {128, 64};  ///< hidden widths of the deep part; of dlrm's top
  int64_t cross_layers = 3;               ///< dcnv2
  int64_t cross_rank = 0;                 ///< dcnv2: of a cross layer's matrix; 0: full
  int64_t grain = 256;                    ///< samples that the dense part takes at a time
  std::string cross = "parallel";         ///< dcnv2: the deep part beside the cross layers, or "stacked" on them
  void describe(Section& s);
};

/// What a model reads: the features of a sample.
struct RecommenderInputs {
  int64_t dense = 0, sparse = 0;
};

/// Whether a model has a weight of its own for every id (a second table of dimension 1 beside each).
bool has_wide_part(const RecommenderConfig& config);

/// Throws UserError naming recommender.<key>.
void check(const RecommenderConfig& config, const RecommenderInputs& inputs);

}  // namespace dovetail
