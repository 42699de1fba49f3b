#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dovetail/comm/group.h"
#include "dovetail/data/text/token_store.h"
#include "dovetail/models/gpt.h"
#include "dovetail/train/metrics/ranking_metrics.h"

namespace dovetail {

/// How a task of a recommender ranks.
struct TaskRanking {
  std::string name;  ///< its entry of rows.label
  RankingMetrics metrics;
  std::optional<double> gauc;  ///< where its rows have groups
};

/// The loss on the validation split.
struct Validation {
  double loss = 0;                 ///< nats per token (exp(loss) is the perplexity) or per sample
  double nats_per_byte = 0;        ///< of text, loss * (tokens / bytes of the whole split)
  int64_t tokens = 0;              ///< or samples, that it was measured on
  std::vector<TaskRanking> tasks;  ///< of a recommender
  std::string day;  ///< whose rows it was measured on, before they were trained on; empty: no day's
};

struct ValidationOptions {
  int64_t context = 128;  ///< T: windows of T predicted tokens side by side, none predicted twice
  int64_t batch = 1;      ///< windows at once on a rank
  int64_t max_tokens =
      0;  ///< evenly spread windows of about this many tokens; 0: every token but the first
};

/// Logs that the loss flatters a model whose experts are chosen by later tokens. Once a process, by
/// the caller.
void warn_of_later_tokens(const ModelConfig& model);

/// All ranks together: each takes a contiguous share of the windows, and sums of nats and tokens
/// are added over ranks. The same windows for any number of ranks. nullopt if the split has fewer
/// than two tokens.
std::optional<Validation> validate(GPT& model, const TokenStore& store, Group& group,
                                   const ValidationOptions& options);

}  // namespace dovetail
