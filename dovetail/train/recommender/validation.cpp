#include "dovetail/train/recommender/validation.h"

#include <ATen/ops/cat.h>
#include <fmt/format.h>

#include "dovetail/comm/exchange.h"
#include "dovetail/train/metrics/ranking_metrics.h"

namespace dovetail::train {
namespace {

/// Returns the vectors of all ranks on rank 0, concatenated in the order of ranks; an empty tensor
/// on others.
at::Tensor to_rank_zero(const std::shared_ptr<comm::Group>& group, const at::Tensor& x) {
  std::vector<int64_t> send(static_cast<size_t>(group->size()), 0);
  send[0] = x.numel();
  return comm::Exchange(group, comm::exchange_sizes(*group, send)).start(x.contiguous()).wait();
}

TaskRanking rank_task(const std::string& name, const at::Tensor& logits, const at::Tensor& labels,
                      const at::Tensor& groups, const std::shared_ptr<comm::Group>& group) {
  RankingSums sums;
  sums.add(logits, labels);
  group->all_reduce(sums.counts);
  group->all_reduce(sums.sums);
  TaskRanking found = {.name = name, .metrics = sums.metrics(), .gauc = std::nullopt};
  if (group->size() == 1) {
    found.metrics.auc = exact_auc(logits, labels);
    found.metrics.auc_error = 0;
  }
  if (!groups.defined()) return found;
  const at::Tensor all_logits = to_rank_zero(group, logits.cpu()),
                   all_labels = to_rank_zero(group, labels),
                   all_groups = to_rank_zero(group, groups);
  if (group->rank() == 0) found.gauc = grouped_auc(all_logits, all_labels, all_groups);
  return found;
}

}  // namespace

std::string describe_auc(const RankingMetrics& metrics) {
  const std::string text = fmt::format("AUC {:.4f}", metrics.auc);
  return metrics.auc_error > 0 ? fmt::format("{} +- {:.2g}", text, metrics.auc_error) : text;
}

void ScoredRows::add(const at::Tensor& logits, const data::RowBatch& batch) {
  logits_.push_back(logits);
  labels_.push_back(batch.labels);
  if (batch.groups.defined()) groups_.push_back(batch.groups);
}

at::Tensor ScoredRows::logits() const { return at::cat(logits_); }
at::Tensor ScoredRows::labels() const { return at::cat(labels_); }

Validation ScoredRows::measure(const RunConfig& config, int64_t rows,
                               const std::shared_ptr<comm::Group>& group) const {
  const at::Tensor logits = this->logits(), labels = this->labels(),
                   groups = groups_.empty() ? at::Tensor() : at::cat(groups_);
  const std::vector<double>& weights = config.recommender.task_weights;
  Validation found{.tokens = rows};
  for (int64_t k = 0; k < labels.size(1); ++k) {
    const auto task = static_cast<size_t>(k);
    found.tasks.push_back(rank_task(config.rows.label[task], logits.select(1, k),
                                    labels.select(1, k), groups, group));
    found.loss += (weights.empty() ? 1 : weights[task]) * found.tasks.back().metrics.log_loss;
  }
  return found;
}

}  // namespace dovetail::train
