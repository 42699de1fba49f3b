#include "dovetail/train/recommender_training.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/log.h"
#include "dovetail/base/trace.h"
#include "dovetail/embedding/lookup.h"
#include "dovetail/ops/adamw.h"
#include "dovetail/train/ranking_metrics.h"

namespace dovetail {
namespace {

constexpr std::string_view kTables = "embedding.";

std::string weight_name(const embedding::TableSpec& table) { return fmt::format("{}{}.weight", kTables, table.name); }
std::string state_name(const embedding::TableSpec& table) { return fmt::format("{}{}.state", kTables, table.name); }

/// The ids of a batch as the tables take them: with a wide part each feature's ids once more, for its second table.
embedding::Jagged lookups(const RowBatch& batch, int64_t features, bool wide) {
  embedding::Jagged jagged{.values = batch.values,
                           .offsets = batch.offsets,
                           .weights = batch.weights,
                           .features = features,
                           .samples = batch.dense.size(0)};
  if (!wide) return jagged;
  const int64_t ids = batch.values.numel();
  jagged.values = at::cat({batch.values, batch.values});
  jagged.offsets = at::cat({batch.offsets, batch.offsets.narrow(0, 1, batch.offsets.numel() - 1) + ids});
  if (batch.weights.defined()) jagged.weights = at::cat({batch.weights, batch.weights});
  jagged.features *= 2;
  return jagged;
}

/// Sum over samples of the cross-entropy, in nats.
at::Tensor loss_sum(const at::Tensor& logits, const at::Tensor& labels) {
  return at::binary_cross_entropy_with_logits(logits, labels, {}, {}, at::Reduction::Sum);
}

embedding::OptimizerSpec optimizer_spec(const EmbeddingSection& config) {
  return {.kind = embedding::parse_optimizer(config.optimizer),
          .lr = config.lr,
          .momentum = config.momentum,
          .beta1 = config.betas[0],
          .beta2 = config.betas[1],
          .eps = config.eps,
          .weight_decay = config.weight_decay};
}

}  // namespace

RecommenderInputs recommender_inputs(const RunConfig& config) {
  return {.dense = config.rows.num_dense(), .sparse = static_cast<int64_t>(config.rows.sparse.size())};
}

embedding::PackSpec table_specs(const RunConfig& config) {
  embedding::PackSpec pack{.tables = {},
                           .feature_table = {},
                           .optimizer = optimizer_spec(config.embedding),
                           .seed = static_cast<uint64_t>(config.run.seed)};
  const auto add = [&](const char* suffix, int64_t dim) {
    for (const SparseConfig& feature : config.rows.sparse) {
      pack.feature_table.push_back(static_cast<int64_t>(pack.tables.size()));
      pack.tables.push_back({.name = feature.feature_name() + suffix,
                             .rows = feature.num_rows,
                             .dim = dim,
                             .pooling = embedding::parse_pooling(config.embedding.pooling)});
    }
  };
  add("", config.recommender.dim);
  if (has_wide_part(config.recommender)) add(".wide", 1);
  return pack;
}

RecommenderTraining::RecommenderTraining(const ResolvedRun& run, std::shared_ptr<Group> group, RunFolder* folder,
                                         bool quiet, RunState state, const std::map<std::string, at::Tensor>& tensors)
    : TrainingLoop(run, std::move(group), std::move(state)) {
  const RunConfig& config = run_.config;
  const auto seed = static_cast<uint64_t>(config.run.seed);
  model_ = std::make_shared<Recommender>(config.recommender, recommender_inputs(config));
  initialize(*model_, seed);
  tables_.emplace(table_specs(config));
  optimizer_.emplace(*model_, config.optimizer);
  optimizer_->bind(*model_);
  if (resumed()) restore_from(tensors);
  reducer_.emplace(group_, optimizer_->parameters(),
                   GradientReducer::Options{.bucket_bytes = config.train.bucket_bytes});
  loader_.emplace(
      config.rows,
      RowLoaderOptions{.seed = seed, .batch = config.train.batch, .rank = group_->rank(), .world = group_->size()});
  if (folder == nullptr) return;
  open_output(*folder, quiet);
  for (const std::string& line : row_warnings(loader_->statistics())) output()->warn(line);
}

StepOutcome RecommenderTraining::train_step(int64_t number, double lr, bool want_stop, StepTimings& timings) {
  const double begin_s = now_seconds();
  const RowBatch batch = loader_->step(number - 1);
  timings.data_ms = 1e3 * (now_seconds() - begin_s);
  const embedding::Jagged all = lookups(batch, model_->inputs().sparse, has_wide_part(config().recommender));
  const int64_t samples = all.samples;
  std::vector<embedding::PooledGradient> parts;
  double loss = 0;
  reducer_->begin();
  for (int64_t first = 0; first < samples; first += run_.micro_batch) {
    const int64_t count = std::min(run_.micro_batch, samples - first);
    const embedding::Jagged part = embedding::samples_of(all, first, count);
    at::Tensor sum, embedded;
    {
      const TraceSpan span("forward");
      embedded = embedding::pool(*tables_, part).requires_grad_();
      sum = loss_sum(model_->forward(batch.dense.narrow(0, first, count), embedded),
                     batch.labels.narrow(0, first, count).squeeze(1));
    }
    if (first + count == samples) reducer_->arm();
    const TraceSpan span("backward");
    sum.backward();
    loss += sum.item<double>();
    parts.push_back({part, embedded.grad()});
  }
  reducer_->finish();

  const TraceSpan span("update");
  const auto weight = static_cast<double>(samples);
  std::vector<at::Tensor> gradients;
  for (size_t i = 0; i < reducer_->size(); ++i) gradients.push_back(reducer_->gradient(i));
  StepOutcome outcome = {.loss = loss / weight,
                         .grad_norm = std::sqrt(sum_of_squares(gradients)) / weight,
                         .tokens = samples,
                         .stop = want_stop};
  outcome.skipped = !std::isfinite(outcome.loss) || !std::isfinite(outcome.grad_norm);
  if (outcome.skipped) return outcome;
  for (embedding::PooledGradient& part : parts) part.gradient.div_(weight);
  tables_->set_lr(config().embedding.lr * lr / config().optimizer.lr);
  embedding::update(*tables_, parts);
  const double clip = config().train.clip;
  const bool clipped = clip > 0 && outcome.grad_norm > clip;
  optimizer_->step(*reducer_, lr, (clipped ? clip / outcome.grad_norm : 1.0) / weight);
  return outcome;
}

std::optional<Validation> RecommenderTraining::evaluate() {
  const int64_t limit = complete() ? 0 : config().eval.max_rows, all = loader_->num_validation_rows();
  const int64_t rows = limit > 0 ? std::min(limit, all) : all;
  if (rows == 0) return std::nullopt;
  const at::NoGradGuard no_grad;
  const TraceSpan span("validate");
  std::vector<at::Tensor> logits, labels, groups;
  for (int64_t begin = 0; begin < rows; begin += config().train.batch) {
    const RowBatch batch = loader_->validation(begin, std::min(rows, begin + config().train.batch));
    const embedding::Jagged ids = lookups(batch, model_->inputs().sparse, has_wide_part(config().recommender));
    logits.push_back(model_->forward(batch.dense, embedding::pool(*tables_, ids)));
    labels.push_back(batch.labels.squeeze(1));
    if (batch.groups.defined()) groups.push_back(batch.groups);
  }
  const at::Tensor all_logits = at::cat(logits), all_labels = at::cat(labels);
  RankingSums sums;
  sums.add(all_logits, all_labels);
  RankingMetrics metrics = sums.metrics();
  metrics.auc = exact_auc(all_logits, all_labels);
  metrics.auc_error = 0;
  Validation found{.loss = metrics.log_loss, .tokens = metrics.rows, .ranking = metrics};
  if (!groups.empty()) found.gauc = grouped_auc(all_logits, all_labels, at::cat(groups));
  validations_.push_back(metrics);
  if (output() != nullptr)
    for (const std::string& line : ranking_warnings(validations_)) output()->warn(line);
  return found;
}

void RecommenderTraining::finish(const RunFolder&, bool quiet) {
  if (quiet || !state_.last_evaluated) return;
  const Validation& found = *state_.last_evaluated->validation;
  log_info("validation: {} rows, AUC {:.4f}, log loss {:.4f}, normalised entropy {:.4f}, calibration {:.3f}",
           found.tokens, found.ranking->auc, found.loss, found.ranking->normalized_entropy, found.ranking->calibration);
}

std::map<std::string, at::Tensor> RecommenderTraining::checkpoint_tensors() {
  std::map<std::string, at::Tensor> tensors = optimizer_->tensors();
  for (size_t i = 0; i < tables_->spec().tables.size(); ++i) {
    const embedding::TableSpec& table = tables_->spec().tables[i];
    tensors[weight_name(table)] = tables_->weight(static_cast<int64_t>(i));
    tensors[state_name(table)] = tables_->packed_state(static_cast<int64_t>(i));
  }
  return tensors;
}

void RecommenderTraining::restore_from(const std::map<std::string, at::Tensor>& tensors) {
  std::map<std::string, at::Tensor> of_optimizer;
  std::map<std::string, at::Tensor> own = checkpoint_tensors();
  for (const auto& [name, tensor] : tensors) {
    if (!name.starts_with(kTables)) {
      of_optimizer[name] = tensor;
      continue;
    }
    const auto found = own.find(name);
    user_check(found != own.end() && found->second.sizes() == tensor.sizes(),
               "the checkpoint's \"{}\" is not a table of this model", name);
    found->second.copy_(tensor);
  }
  for (const auto& [name, tensor] : own)
    user_check(tensors.contains(name), "the checkpoint lacks the tensor \"{}\" of this model", name);
  optimizer_->load(of_optimizer, state_.updates);
  tables_->set_steps(state_.updates);
}

nlohmann::json RecommenderTraining::checkpoint_state() const {
  return dovetail::checkpoint_state(state_, run_, nullptr, group_->size());
}

}  // namespace dovetail
