#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dovetail/comm/group.h"
#include "dovetail/data/text/token_store.h"
#include "dovetail/models/gpt.h"
#include "dovetail/train/metrics/ranking_metrics.h"

namespace dovetail::train {

/// Ranking metrics of one task of a recommender.
struct TaskRanking {
  std::string name;  ///< the task's entry in rows.label
  RankingMetrics metrics;
  std::optional<double> gauc;  ///< grouped_auc, if rows have groups
};

/// Loss on the validation split.
struct Validation {
  double loss = 0;                 ///< nats per token (exp(loss) is the perplexity) or per sample
  double nats_per_byte = 0;        ///< for text: loss * (tokens / bytes of the whole split)
  int64_t tokens = 0;              ///< tokens or samples that were measured
  std::vector<TaskRanking> tasks;  ///< rankings by task; only for a recommender
  /// Day whose rows were measured, before training on them; empty if not by day.
  std::string day;
};

struct ValidationOptions {
  /// T: predicted tokens per window. Windows are adjacent, so that no token is predicted twice.
  int64_t context = 128;
  int64_t batch = 1;  ///< windows per forward pass on a rank
  /// Approximate number of tokens to measure, in evenly spread windows. 0: every token but the
  /// first.
  int64_t max_tokens = 0;
};

/// Warns that the loss is lower than in decoding if a model chooses experts by later tokens. Call
/// it once per process.
void warn_of_later_tokens(const models::ModelConfig& model);

/// Measures the loss on the validation split. All ranks call this together. Each takes a contiguous
/// share of the windows. Sums of nats and tokens are added over ranks. The windows are the same for
/// any number of ranks. Returns nullopt if the split has fewer than two tokens.
std::optional<Validation> validate(models::GPT& model, const data::TokenStore& store,
                                   comm::Group& group, const ValidationOptions& options);

}  // namespace dovetail::train
