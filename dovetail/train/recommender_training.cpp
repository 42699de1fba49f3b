#include "dovetail/train/recommender_training.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/log.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/trace.h"
#include "dovetail/ops/adamw.h"
#include "dovetail/ops/dispatch.h"
#include "dovetail/train/collective.h"
#include "dovetail/train/ranking_metrics.h"

namespace dovetail {
namespace {

constexpr std::string_view kTables = "embedding.";

std::string weight_name(const embedding::TableSpec& table) { return fmt::format("{}{}.weight", kTables, table.name); }
std::string state_name(const embedding::TableSpec& table) { return fmt::format("{}{}.state", kTables, table.name); }

/// The ids of a batch as the tables take them: with a wide part each feature's ids once more, for its second table.
embedding::Jagged embedding_ids(const RowBatch& batch, int64_t features, bool wide) {
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

/// A vector of every rank's, in their order, on rank 0; the others get nothing.
at::Tensor to_rank_zero(const std::shared_ptr<Group>& group, const at::Tensor& x) {
  std::vector<int64_t> send(static_cast<size_t>(group->size()), 0);
  send[0] = x.numel();
  return Exchange(group, exchange_sizes(*group, send)).start(x).wait();
}

std::vector<int> ranks_of(const Group& group) {
  std::vector<int> ranks(static_cast<size_t>(group.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// Throws UserError unless `tensors` are the rows and the state of these tables.
void check_tables(const embedding::PackSpec& spec, std::map<std::string, at::Tensor> tensors) {
  const auto take = [&](const std::string& name, int64_t rows, int64_t width) {
    if (width == 0) return;
    const auto found = tensors.find(name);
    user_check(found != tensors.end(), "the checkpoint lacks the tensor \"{}\" of this model", name);
    user_check(found->second.sizes() == at::IntArrayRef({rows, width}),
               "the checkpoint's \"{}\" is {}, but the table is ({}, {})", name, describe(found->second), rows, width);
    tensors.erase(found);
  };
  for (const embedding::TableSpec& table : spec.tables) {
    take(weight_name(table), table.rows, table.dim);
    take(state_name(table), table.rows, embedding::state_per_row(spec.optimizer.kind, table.dim));
  }
  if (!tensors.empty())
    throw UserError(fmt::format("the checkpoint's \"{}\" is not a table of this model", tensors.begin()->first));
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

/// Nothing where all rows are in memory.
std::optional<embedding::TierOptions> tier_options(const RunConfig& config, const embedding::PackSpec& spec,
                                                   const embedding::EmbeddingPlan& plan) {
  const EmbeddingSection& section = config.embedding;
  if (section.memory_bytes == 0) return std::nullopt;
  double most_ids = 1;
  for (size_t t = 0; t < spec.tables.size(); ++t)
    most_ids = std::max(most_ids, plan.tables[t].volume / static_cast<double>(spec.tables[t].dim));
  const auto twice = static_cast<int64_t>(2 * most_ids * static_cast<double>(config.train.batch));
  return embedding::TierOptions{.policy = embedding::parse_tier_policy(section.policy),
                                .memory_bytes = section.memory_bytes,
                                .step_rows = section.step_rows > 0 ? section.step_rows : twice,
                                .warmup_steps = section.warmup_steps,
                                .refresh_steps = section.refresh_steps,
                                .folder = config.folder()};
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
  loader_.emplace(
      config.rows,
      RowLoaderOptions{.seed = seed, .batch = config.train.batch, .rank = group_->rank(), .world = group_->size()});
  const embedding::PackSpec spec = table_specs(config);
  const embedding::EmbeddingPlan plan = plan_tables(spec);
  const Payload payload = parse_payload(config.embedding.exchange);
  tables_.emplace(spec, plan, group_->split({ranks_of(*group_)}), Payloads{.forward = payload, .backward = payload},
                  tier_options(config, spec, plan));
  optimizer_.emplace(*model_, config.optimizer);
  optimizer_->bind(*model_);
  if (resumed()) restore_from(tensors);
  reducer_.emplace(group_, optimizer_->parameters(),
                   GradientReducer::Options{.bucket_bytes = config.train.bucket_bytes});
  if (folder == nullptr) return;
  folder->write_json("embedding_plan.json", embedding::to_json(spec, plan));
  if (!quiet && plan.packs.size() > 1) log_info("{}", embedding::print(spec, plan));
  open_output(*folder, quiet);
  for (const std::string& line : row_warnings(loader_->statistics())) output()->warn(line);
}

embedding::EmbeddingPlan RecommenderTraining::plan_tables(const embedding::PackSpec& spec) {
  const RowBatch batch = loader_->step(state_.step);
  const embedding::Jagged ids = embedding_ids(batch, model_->inputs().sparse, has_wide_part(config().recommender));
  std::vector<double> counts = {static_cast<double>(ids.samples)};
  for (int64_t f = 0; f < ids.features; ++f) {
    const at::Tensor ends = ids.offsets.narrow(0, f * ids.samples, ids.samples + 1);
    counts.push_back((ends[-1] - ends[0]).item<double>());
  }
  counts = sum_over_ranks(*group_, counts);
  const EmbeddingSection& section = config().embedding;
  embedding::PlanOptions options{.ranks = group_->size(), .packing = section.packing, .groups = section.groups};
  if (section.sharding != "auto") options.sharding = embedding::parse_sharding(section.sharding);
  for (size_t f = 1; f < counts.size(); ++f) options.ids_per_sample.push_back(counts[f] / counts[0]);
  return embedding::make_plan(spec, options);
}

RecommenderTraining::Lookups RecommenderTraining::start_lookups(int64_t step) {
  Lookups lookups{.step = step, .batch = loader_->step(step)};
  const embedding::Jagged ids =
      embedding_ids(lookups.batch, model_->inputs().sparse, has_wide_part(config().recommender));
  const int64_t parts = (run_.most_samples + run_.micro_batch - 1) / run_.micro_batch;
  lookups.tables = tables_->start(ids, run_.micro_batch, parts);
  return lookups;
}

StepOutcome RecommenderTraining::train_step(int64_t number, double lr, bool want_stop, StepTimings& timings) {
  const double begin_s = now_seconds();
  Lookups now = ahead_ && ahead_->step == number - 1 ? std::move(*ahead_) : start_lookups(number - 1);
  ahead_.reset();
  timings.data_ms = 1e3 * (now_seconds() - begin_s);
  const RowBatch& batch = now.batch;
  embedding::TableStep& step = now.tables;
  const int64_t parts = step.micro_batches();
  double loss = 0;
  reducer_->begin();
  tables_->begin(step);
  tables_->gather(step, 0);
  if (number < config().train.steps) ahead_.emplace(start_lookups(number));
  for (int64_t m = 0; m < parts; ++m) {
    const at::Tensor pooled = tables_->wait(step, m);
    if (m + 1 < parts) tables_->gather(step, m + 1);
    at::Tensor gradient;
    loss += run_dense(batch, std::min(m * run_.micro_batch, batch.dense.size(0)), pooled, gradient, m + 1 == parts);
    tables_->add_gradient(step, m, gradient);
    if (m == 0 && ahead_) tables_->prefetch(ahead_->tables);
  }
  reducer_->finish();
  timings.communication_ms = 1e3 * reducer_->exposed_s();
  if (const auto tiers = tables_->tier_counters()) {
    const int64_t hits = tiers->hits - tiers_before_.hits, misses = tiers->misses - tiers_before_.misses;
    timings.hit_rate = static_cast<double>(hits) / static_cast<double>(std::max<int64_t>(1, hits + misses));
    tiers_before_ = *tiers;
  }

  const TraceSpan span("update");
  const auto weight = static_cast<double>(config().train.batch);
  std::vector<at::Tensor> gradients;
  for (size_t i = 0; i < reducer_->size(); ++i) gradients.push_back(reducer_->gradient(i));
  const std::vector<double> sums = sum_over_ranks(*group_, {loss, want_stop ? 1.0 : 0.0});
  StepOutcome outcome = {.loss = sums[0] / weight,
                         .grad_norm = std::sqrt(sum_of_squares(gradients)) / weight,
                         .tokens = config().train.batch,
                         .stop = sums[1] > 0};
  outcome.skipped = !std::isfinite(outcome.loss) || !std::isfinite(outcome.grad_norm);
  if (outcome.skipped) {
    tables_->discard(step);
    return outcome;
  }
  tables_->set_lr(config().embedding.lr * lr / config().optimizer.lr);
  tables_->update(step);
  const double clip = config().train.clip;
  const bool clipped = clip > 0 && outcome.grad_norm > clip;
  optimizer_->step(*reducer_, lr, (clipped ? clip / outcome.grad_norm : 1.0) / weight);
  return outcome;
}

double RecommenderTraining::run_dense(const RowBatch& batch, int64_t first, const at::Tensor& pooled,
                                      at::Tensor& gradient, bool last) {
  const int64_t samples = pooled.size(0), grain = config().recommender.grain;
  const auto weight = static_cast<double>(config().train.batch);
  gradient = samples > grain ? embedding::allocate(pooled.numel()).view(pooled.sizes()) : pooled;
  double loss = 0;
  if (last && samples == 0) reducer_->arm();
  for (int64_t begin = 0; begin < samples; begin += grain) {
    const int64_t count = std::min(grain, samples - begin);
    const at::Tensor embedded = pooled.narrow(0, begin, count).detach().requires_grad_();
    at::Tensor sum;
    {
      const TraceSpan span("forward");
      sum = loss_sum(model_->forward(batch.dense.narrow(0, first + begin, count), embedded),
                     batch.labels.narrow(0, first + begin, count).squeeze(1));
    }
    if (last && begin + grain >= samples) reducer_->arm();
    const TraceSpan span("backward");
    sum.backward();
    loss += sum.item<double>();
    const at::Tensor of_mean = embedded.grad().div_(weight);
    if (samples > grain) {
      gradient.narrow(0, begin, count).copy_(of_mean);
    } else {
      gradient = of_mean;
    }
  }
  return loss;
}

std::optional<Validation> RecommenderTraining::evaluate() {
  const int64_t limit = complete() ? 0 : config().eval.max_rows, all = loader_->num_validation_rows();
  const int64_t rows = limit > 0 ? std::min(limit, all) : all;
  if (rows == 0) return std::nullopt;
  const at::NoGradGuard no_grad;
  const TraceSpan span("validate");
  const Validation found = evaluate_rows(rows);
  validations_.push_back(*found.ranking);
  if (output() != nullptr)
    for (const std::string& line : ranking_warnings(validations_)) output()->warn(line);
  return found;
}

Validation RecommenderTraining::evaluate_rows(int64_t rows) {
  const int64_t rank = group_->rank(), ranks = group_->size();
  std::vector<at::Tensor> logits, labels, groups;
  for (int64_t first = 0; first < rows; first += config().train.batch) {
    const int64_t count = std::min(rows - first, config().train.batch);
    const RowBatch batch = loader_->validation(first + count * rank / ranks, first + count * (rank + 1) / ranks);
    const embedding::Jagged ids = embedding_ids(batch, model_->inputs().sparse, has_wide_part(config().recommender));
    logits.push_back(model_->forward(batch.dense, tables_->lookup(ids)));
    labels.push_back(batch.labels.squeeze(1));
    if (batch.groups.defined()) groups.push_back(batch.groups);
  }
  const at::Tensor own_logits = at::cat(logits), own_labels = at::cat(labels);
  RankingSums sums;
  sums.add(own_logits, own_labels);
  group_->all_reduce(sums.counts);
  group_->all_reduce(sums.sums);
  RankingMetrics metrics = sums.metrics();
  if (ranks == 1) {
    metrics.auc = exact_auc(own_logits, own_labels);
    metrics.auc_error = 0;
  }
  Validation found{.loss = metrics.log_loss, .tokens = metrics.rows, .ranking = metrics};
  if (groups.empty()) return found;
  const at::Tensor all_logits = to_rank_zero(group_, own_logits), all_labels = to_rank_zero(group_, own_labels),
                   all_groups = to_rank_zero(group_, at::cat(groups));
  if (rank == 0) found.gauc = grouped_auc(all_logits, all_labels, all_groups);
  return found;
}

void RecommenderTraining::finish(const RunFolder&, bool quiet) {
  if (quiet) return;
  if (const auto tiers = tables_->tier_counters())
    log_info(
        "rows in memory: {:.1f} % of accesses, {:.1f} % if the most frequent rows of the last count were there; {} "
        "read "
        "from the disk, {} written",
        100 * tiers->hit_rate(), 100 * tiers->ideal_hit_rate(), format_bytes(static_cast<double>(tiers->bytes_read)),
        format_bytes(static_cast<double>(tiers->bytes_written)));
  if (!state_.last_evaluated) return;
  const Validation& found = *state_.last_evaluated->validation;
  log_info("validation: {} rows, AUC {:.4f}, log loss {:.4f}, normalised entropy {:.4f}, calibration {:.3f}",
           found.tokens, found.ranking->auc, found.loss, found.ranking->normalized_entropy, found.ranking->calibration);
}

std::map<std::string, at::Tensor> RecommenderTraining::checkpoint_tensors() {
  std::map<std::string, at::Tensor> tensors = optimizer_->tensors();
  for (size_t i = 0; i < tables_->spec().tables.size(); ++i) {
    const embedding::TableSpec& table = tables_->spec().tables[i];
    const embedding::TableContents contents = tables_->read(static_cast<int64_t>(i));
    if (group_->rank() != 0) continue;
    tensors[weight_name(table)] = contents.weight;
    if (contents.state.defined()) tensors[state_name(table)] = contents.state;
  }
  return tensors;
}

void RecommenderTraining::restore_from(const std::map<std::string, at::Tensor>& tensors) {
  std::map<std::string, at::Tensor> of_model, of_tables;
  for (const auto& [name, tensor] : tensors) (name.starts_with(kTables) ? of_tables : of_model)[name] = tensor;
  const embedding::PackSpec& spec = tables_->spec();
  on_rank_zero(*group_, "restoring the checkpoint", [&] {
    check_tables(spec, of_tables);
    optimizer_->load(of_model, state_.updates);
  });
  for (size_t i = 0; i < spec.tables.size(); ++i) {
    embedding::TableContents contents;
    if (group_->rank() == 0) {
      contents.weight = of_tables.at(weight_name(spec.tables[i]));
      const auto state = of_tables.find(state_name(spec.tables[i]));
      if (state != of_tables.end()) contents.state = state->second;
    }
    tables_->write(static_cast<int64_t>(i), contents);
  }
  tables_->set_steps(state_.updates);
  if (group_->size() == 1) return;
  std::map<std::string, at::Tensor> own = optimizer_->tensors();
  for (auto& [name, tensor] : own) group_->broadcast(tensor, 0);
  if (group_->rank() != 0) optimizer_->load(own, state_.updates);
}

nlohmann::json RecommenderTraining::checkpoint_state() const {
  return dovetail::checkpoint_state(state_, run_, nullptr, group_->size());
}

}  // namespace dovetail
