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

/// Quality of a recommender's scores for one task. Each task predicts one label.
struct TaskRanking {
  std::string name;  ///< the task's entry in rows.label
  RankingMetrics metrics;
  std::optional<double> gauc;  ///< result of grouped_auc; only if rows have groups (rows.group)
};

/// Quality of a vision model's classes.
struct ImageScores {
  double accuracy = 0;             ///< share of images, or of pixels, with the right class
  std::optional<double> mean_iou;  ///< mean intersection over union; only for masks
};

/// Result of measuring a model on the validation split.
struct Validation {
  /// Nats per token (exp(loss) is the perplexity), per sample, or per pixel of masks.
  double loss = 0;
  /// For text: loss * (tokens of the split) / (bytes of the split).
  double nats_per_byte = 0;
  int64_t tokens = 0;                 ///< number of tokens or samples that were measured
  std::vector<TaskRanking> tasks;     ///< one for each task of a recommender; else empty
  std::optional<ImageScores> images;  ///< only for a vision model
  /// Day (rows.day) whose rows were measured, just before training on them. Empty if rows have no
  /// days.
  std::string day;
};

struct ValidationOptions {
  /// T: number of tokens that one window predicts. A window is a sequence of tokens of the split.
  /// Windows are adjacent, so that no token is predicted twice.
  int64_t context = 128;
  int64_t batch = 1;  ///< number of windows in a forward pass of a rank
  /// Approximate number of tokens to predict, in windows spread evenly over the split. 0: all
  /// tokens except the first one.
  int64_t max_tokens = 0;
};

/// Logs a warning if a router's choice of experts for a token also depends on later tokens.
/// Validation losses are then lower than in decoding, where later tokens are unknown. Call it once
/// per process.
void warn_of_later_tokens(const models::ModelConfig& model);

/// Measures the loss on the validation split of `store`, over all ranks. All ranks call this
/// together. The windows are the same for any number of ranks; each rank takes a contiguous part of
/// them. Returns nullopt if the split has fewer than two tokens.
std::optional<Validation> validate(models::GPT& model, const data::TokenStore& store,
                                   comm::Group& group, const ValidationOptions& options);

}  // namespace dovetail::train
