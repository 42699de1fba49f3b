#include "dovetail/train/recommender/training.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/gpu.h"
#include "dovetail/base/log.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/operation.h"
#include "dovetail/base/rng.h"
#include "dovetail/base/trace.h"
#include "dovetail/comm/collective.h"
#include "dovetail/ops/cuda_kernels.h"
#include "dovetail/ops/simd_level.h"
#include "dovetail/train/embedding_tables/checkpoint.h"
#include "dovetail/train/embedding_tables/hashed.h"
#include "dovetail/train/embedding_tables/placement.h"
#include "dovetail/train/memory/config_section.h"
#include "dovetail/train/metrics/ranking_metrics.h"
#include "dovetail/train/recommender/validation.h"

namespace dovetail::train {
namespace {

std::vector<int> ranks_of(const comm::Group& group) {
  std::vector<int> ranks(static_cast<size_t>(group.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

embedding::HashedOptions hashed_options(const DynamicSection& config) {
  return {.admission = embedding::parse_admission(config.admission),
          .min_count = config.min_count,
          .max_candidates = config.max_candidates,
          .probability = config.probability,
          .eviction = embedding::parse_eviction(config.eviction),
          .evict_steps = config.evict_steps,
          .max_age = config.max_age,
          .keep_rows = config.keep_rows};
}

/// Returns the number of distinct ids of a batch in each table.
std::vector<int64_t> distinct_ids(const embedding::PackSpec& spec, const embedding::Jagged& ids) {
  const auto *values = ids.values.const_data_ptr<int64_t>(),
             *offsets = ids.offsets.const_data_ptr<int64_t>();
  std::vector<std::vector<int64_t>> of_tables(spec.tables.size());
  for (int64_t f = 0; f < ids.features; ++f) {
    std::vector<int64_t>& of_table =
        of_tables[static_cast<size_t>(spec.feature_table[static_cast<size_t>(f)])];
    of_table.insert(of_table.end(), values + offsets[f * ids.samples],
                    values + offsets[(f + 1) * ids.samples]);
  }
  std::vector<int64_t> counts;
  for (std::vector<int64_t>& of_table : of_tables) {
    std::ranges::sort(of_table);
    counts.push_back(std::unique(of_table.begin(), of_table.end()) - of_table.begin());
  }
  return counts;
}

models::RecommenderBatch on(const models::RecommenderBatch& batch, c10::Device device) {
  const auto move = [&](const at::Tensor& x) { return x.defined() ? x.to(device) : x; };
  return {.dense = move(batch.dense),
          .embedded = move(batch.embedded),
          .mask = move(batch.mask),
          .negative_mask = move(batch.negative_mask)};
}

/// Returns the reason why the dense part of a step cannot be one CUDA graph; empty if it can.
std::string cuda_graph_obstacle(const ResolvedRun& run, const comm::Group& group) {
  if (!run.device.is_cuda()) return "the run is on the CPU";
  if (ops::cuda_kernels() == nullptr) return "this build has no kernels for the GPU";
  if (group.size() > 1) return "ranks exchange gradients while backward runs";
  return "";
}

/// Share of the available RAM that the rows beside a GPU may take.
constexpr double kHostShare = 0.5;

/// Returns nullopt if all rows are in memory.
std::optional<embedding::TierOptions> tier_options(const RunConfig& config, int64_t memory_bytes,
                                                   const std::filesystem::path& folder) {
  const EmbeddingSection& section = config.embedding;
  if (memory_bytes == 0) return std::nullopt;
  return embedding::TierOptions{.policy = embedding::parse_tier_policy(section.policy),
                                .memory_bytes = memory_bytes,
                                .step_rows = std::max<int64_t>(1, section.step_rows),
                                .warmup_steps = section.warmup_steps,
                                .refresh_steps = section.refresh_steps,
                                .folder = folder};
}

}  // namespace

RecommenderTraining::RecommenderTraining(const ResolvedRun& run, std::shared_ptr<comm::Group> group,
                                         RunFolder* folder, bool quiet, RunState state,
                                         const io::StoredCheckpoint* checkpoint)
    : TrainingLoop(run, std::move(group), std::move(state)),
      memory_before_(
          static_cast<double>(run_.device.is_cuda() ? gpu_allocated_bytes() : resident_bytes())) {
  const RunConfig& config = run_.config;
  // On one rank, all training runs on this stream, because a graph can record it. Several ranks
  // keep the default stream, because their communication threads use it, too.
  if (run_.device.is_cuda() && group_->size() == 1 && config.run.cuda_graph != "off")
    use_own_stream();
  const std::string no_graph = cuda_graph_obstacle(run_, *group_);
  user_check(config.run.cuda_graph != "on" || no_graph.empty(),
             "run.cuda_graph = \"on\", but {}; use \"auto\"", no_graph);
  const auto seed = static_cast<uint64_t>(config.run.seed);
  std::shared_ptr<plan::PagedAllocations> paged = paged_until_there_is_a_plan(config.memory);
  model_ = models::make_recommender(config.recommender, recommender_inputs(config));
  initialize(*model_, seed);
  lookups_.emplace(config);
  validations_.resize(config.rows.label.size());
  std::optional<WarmStart> start;
  if (starts_from_another()) start.emplace(config, *lookups_, checkpoint, *group_);
  if (resumed()) data::check_scales(config.rows, state_.dense_scales, "the checkpoint");
  const std::vector<data::DenseScale>& stored = state_.dense_scales;
  loader_.emplace(config.rows, data::RowLoaderOptions{
                                   .seed = seed,
                                   .batch = config.train.batch,
                                   .rank = group_->rank(),
                                   .world = group_->size(),
                                   .scales = start ? start->scales()
                                                   : std::vector<std::optional<data::DenseScale>>(
                                                         stored.begin(), stored.end())});
  state_.dense_scales = loader_->scales();
  if (config.rows.by_day()) count_steps();
  count_ids();
  tables_group_ = group_->split({ranks_of(*group_)});
  optimizer_.emplace(*model_, config.optimizer);
  model_->set_compute_dtype(run_.precision.compute);
  model_->to(run_.device);
  optimizer_->bind(*model_);
  step_.emplace(
      model_, *lookups_, *optimizer_, group_,
      RecommenderStep::Options{.grain = config.recommender.grain,
                               .clip = config.train.clip,
                               .bucket_bytes = config.train.bucket_bytes,
                               .task_weights = config.recommender.task_weights,
                               .record = config.run.cuda_graph != "off" && no_graph.empty()
                                             ? ops::WorkRecorder(ops::record_gpu_graph)
                                             : nullptr});
  nlohmann::ordered_json chosen;
  build_tables(choose_sizes(chosen));
  user_check(config.run.cuda_graph != "on" || sizes_.micro_batch >= run_.maximum_samples,
             "run.cuda_graph = \"on\", but rows are looked up between micro-batches of {} samples. "
             "Use \"auto\", or leave train.micro_batch out",
             sizes_.micro_batch);
  if (resumed()) restore_from(checkpoint);
  if (start) {
    const UnrecordedAllocations of_the_tables;
    start->load(*optimizer_, *tables_, checkpoint, *group_);
    state_.started = start->started();
  }
  if (!config.memory.budget.empty()) {
    step_->plan_memory(memory_options(std::move(paged)));
  }
  if (folder != nullptr) write_plan(*folder, quiet, chosen);
  open_output(folder, quiet);
  if (output() != nullptr)
    for (const std::string& line : data::row_warnings(loader_->statistics())) output()->warn(line);
  if (start) report_start(*start, folder);
}

void RecommenderTraining::write_plan(const RunFolder& folder, bool quiet,
                                     const nlohmann::ordered_json& chosen) {
  const embedding::TablePlacement& plan = tables_->plan();
  nlohmann::ordered_json record = embedding::to_json(tables_->spec(), plan);
  if (!chosen.is_null()) record["auto"] = chosen;
  folder.write_json("embedding_plan.json", record);
  if (!quiet && (plan.packs.size() > 1 || plan.ranks > 1))
    log_info("{}", embedding::print(tables_->spec(), plan));
  if (!quiet && !chosen.is_null()) log_info("{}", sizes_line(chosen));
  if (!quiet)
    for (const std::string& line : gpu_lines()) log_info("{}", line);
}

void RecommenderTraining::report_start(const WarmStart& start, const RunFolder* folder) {
  if (output() != nullptr)
    for (const std::string& line : start.lines()) output()->say(line);
  const std::optional<Validation> found = evaluate();
  if (folder == nullptr) return;
  nlohmann::ordered_json record = start.record();
  if (found) record["validation"] = to_json(*found);
  folder->write_json(kStartFile, record);
  if (found) say_figures("before the first step", *found);
}

void RecommenderTraining::say_figures(const std::string& when, const Validation& found) {
  if (output() == nullptr) return;
  for (const TaskRanking& task : found.tasks)
    output()->say(fmt::format("{}{}: {} rows, {}, log loss {:.4f}, calibration {:.3f}", when,
                              found.tasks.size() > 1 ? ", " + task.name : "", task.metrics.rows,
                              describe_auc(task.metrics), task.metrics.log_loss,
                              task.metrics.calibration));
}

void RecommenderTraining::count_steps() {
  const int64_t pass = loader_->days().num_steps(), asked = config().train.steps;
  user_check(loader_->days().days().size() > 1,
             "rows.day: all rows have the day {}, but validation needs a second day; give more "
             "rows or leave rows.day out",
             loader_->days().days()[0].name);
  user_check(asked <= pass,
             "train.steps = {}, but the {} days of rows.files are {} steps; use \"pass\" or less",
             asked, loader_->days().days().size(), pass);
  user_check(state_.step <= pass,
             "the checkpoint is of step {}, but the days of rows.files are {} steps; put back its "
             "training files",
             state_.step, pass);
  if (asked == TrainSection::kPass) set_total_steps(pass);
  check_length(config(), total_steps());
}

void RecommenderTraining::count_ids() {
  const data::RowBatch batch = loader_->step(0);  // so a resumed run plans as it did before
  const embedding::Jagged ids = lookups_->ids(batch);
  std::vector<double> counts = {static_cast<double>(ids.samples)};
  for (int64_t f = 0; f < ids.features; ++f) {
    const at::Tensor ends = ids.offsets.narrow(0, f * ids.samples, ids.samples + 1);
    counts.push_back((ends[-1] - ends[0]).item<double>());
  }
  const auto features = static_cast<size_t>(ids.features);
  for (const int64_t rows : distinct_ids(lookups_->pack(), ids))
    counts.push_back(static_cast<double>(rows));
  counts = sum_over_ranks(*group_, counts);
  samples_ = counts[0];
  for (size_t f = 1; f <= features; ++f) ids_per_sample_.push_back(counts[f] / counts[0]);
  distinct_rows_.assign(counts.begin() + static_cast<int64_t>(features) + 1, counts.end());
}

embedding::TablePlacement RecommenderTraining::plan_for(int64_t groups) const {
  embedding::PlacementOptions options = placement_options(config().embedding, lookups_->pack());
  options.ranks = group_->size();
  options.groups = groups;
  options.ids_per_sample = ids_per_sample_;
  const auto ranks = static_cast<double>(group_->size());
  options.measured = {.samples = samples_ / ranks, .distinct = distinct_rows_};
  for (double& distinct : options.measured->distinct) distinct /= ranks;
  return embedding::place_tables(lookups_->pack(), options);
}

void RecommenderTraining::build_tables(const TableSizes& sizes) {
  const UnrecordedAllocations of_the_tables;
  sizes_ = sizes;
  embedding::PackSpec spec = lookups_->pack();
  if (config().embedding.step_rows == 0)
    for (size_t t = 0; t < spec.tables.size(); ++t)
      spec.tables[t].step_rows = std::max<int64_t>(1, static_cast<int64_t>(2 * distinct_rows_[t]));
  const embedding::TablePlacement plan = plan_for(sizes.groups);
  const comm::Payloads payloads = placement_options(config().embedding, lookups_->pack()).payloads;
  tables_.reset();
  slow_folder_ = slow_folder(spec, plan);
  tables_.emplace(spec, plan, tables_group_, payloads,
                  tier_options(config(), sizes.memory_bytes, slow_folder_),
                  hashed_options(config().embedding.dynamic),
                  config().checkpoint.full_every > 1 ? embedding::Changes::kTracked
                                                     : embedding::Changes::kUntracked,
                  embedding::SlotMemory::on(run_.device));
}

std::filesystem::path RecommenderTraining::slow_folder(
    const embedding::PackSpec& spec, const embedding::TablePlacement& plan) const {
  if (!run_.device.is_cuda()) return config().folder();
  int64_t bytes = 0;
  for (const embedding::PlacedPack& pack : plan.packs)
    bytes += embedding::bytes_on(spec, plan, pack, group_->rank());
  const double room = kHostShare * static_cast<double>(machine().available_bytes) /
                      static_cast<double>(run_.local_ranks);
  return static_cast<double>(bytes) <= room ? std::filesystem::path() : config().folder();
}

std::vector<std::string> RecommenderTraining::gpu_lines() const {
  std::vector<std::string> lines;
  if (!run_.device.is_cuda()) return lines;
  if (std::ranges::any_of(tables_->spec().tables, &embedding::TableSpec::hashed))
    lines.emplace_back(
        "tables without a vocabulary: ids, their counts and the map to rows in RAM, rows on the "
        "GPU");
  if (sizes_.memory_bytes > 0)
    lines.push_back(fmt::format(
        "rows on the GPU: {} of each rank by policy {} (embedding.memory_bytes{}). Other rows are "
        "in {}, map and counts in RAM",
        format_bytes(static_cast<double>(sizes_.memory_bytes)), config().embedding.policy,
        config().embedding.memory_bytes == EmbeddingSection::kAuto ? " = \"auto\"" : "",
        slow_folder_.empty() ? "RAM" : "files of " + slow_folder_.string()));
  return lines;
}

StepRows RecommenderTraining::start_lookups(int64_t step) {
  if (!shares_.micro_batches().empty()) {
    const BatchShares::Range range = shares_.range(group_->rank());
    loader_->set_part(range.begin, range.end);
  }
  StepRows found{
      .step = step,
      .rows = config().rows.by_day() ? loader_->days().num_rows(step) : config().train.batch,
      .micro_batch = sizes_.micro_batch,
      .batch = loader_->step(step)};
  const auto seed = static_cast<uint64_t>(config().run.seed);
  found.ids = lookups_->ids(found.batch, mix_seed(seed, static_cast<uint64_t>(step + 1)));
  const int64_t parts = (shares_.maximum_samples() + sizes_.micro_batch - 1) / sizes_.micro_batch;
  found.tables = tables_->start(found.ids, sizes_.micro_batch, parts);
  return found;
}

RecommenderStep::StartNext RecommenderTraining::start_after(int64_t step, bool last) {
  return [this, step, last]() -> embedding::TableStep* {
    if (last) return nullptr;
    return &ahead_.emplace(start_lookups(step + 1)).tables;
  };
}

StepRows RecommenderTraining::take_step(int64_t step) {
  StepRows now = ahead_ && ahead_->step == step ? std::move(*ahead_) : start_lookups(step);
  ahead_.reset();
  return now;
}

StepOutcome RecommenderTraining::train_step(int64_t number, double lr, bool want_stop,
                                            StepTimings& timings) {
  const double begin_s = now_seconds();
  const int64_t sent_before = tables_->traffic().bytes_sent;
  StepRows now = take_step(number - 1);
  timings.data_ms = 1e3 * (now_seconds() - begin_s);
  const StepOutcome outcome =
      step_->run(now, *tables_, start_after(now.step, number == total_steps()), lr, want_stop);
  timings.communication_ms = 1e3 * step_->gradients().exposed_s();
  timings.compute_ms = 1e3 * step_->compute_s();
  const int64_t micro_batches = (now.ids.samples + sizes_.micro_batch - 1) / sizes_.micro_batch;
  if (now.rows == config().train.batch)
    balance(micro_batches, step_->compute_s(), ahead_ ? number + 2 : number + 1);
  if (const auto tiers = tables_->tier_counters()) {
    const int64_t hits = tiers->hits - tiers_before_.hits,
                  misses = tiers->misses - tiers_before_.misses;
    timings.hit_rate =
        static_cast<double>(hits) / static_cast<double>(std::max<int64_t>(1, hits + misses));
    tiers_before_ = *tiers;
  }

  const TraceSpan span("update");
  if (outcome.skipped) {
    tables_->discard(now.tables);
  } else {
    tables_->set_lr(config().embedding.lr * lr / config().optimizer.lr);
    tables_->update(now.tables);
  }
  timings.table_bytes = tables_->traffic().bytes_sent - sent_before;
  return outcome;
}

void RecommenderTraining::report_step() {
  graph_report_.add(step_->has_graph(), step_->graph_failure(), config().run.cuda_graph,
                    state_.step, output());
  const int64_t every = config().log.tables_every;
  const bool hashed = std::ranges::any_of(tables_->spec().tables, &embedding::TableSpec::hashed);
  if (!hashed || every == 0 || (state_.step % every != 0 && !complete())) return;
  const embedding::HashedCounters now = sum_over_ranks(*group_, tables_->hashed_counters());
  if (output() != nullptr) output()->write_tables(counters_json(state_.step, now, keys_before_));
  keys_before_ = now;
  if (output() == nullptr || !complete()) return;
  for (const std::string& line : room_warnings(now)) output()->warn(line);
}

std::optional<Validation> RecommenderTraining::evaluate() {
  if (config().rows.by_day()) return std::nullopt;
  const int64_t limit = complete() ? 0 : config().eval.max_rows,
                all = loader_->num_validation_rows();
  const int64_t rows = limit > 0 ? std::min(limit, all) : all;
  if (rows == 0) return std::nullopt;
  return validate_rows(rows,
                       [&](int64_t begin, int64_t end) { return loader_->validation(begin, end); });
}

std::optional<Validation> RecommenderTraining::evaluate_before(int64_t number) {
  if (!config().rows.by_day()) return std::nullopt;
  const int64_t day = loader_->days().day_of(number - 1);
  if ((day == 0 && config().run.start_from.empty()) ||
      loader_->days().first_step(day) != number - 1)
    return std::nullopt;
  const data::RowDay& rows = loader_->days().days()[static_cast<size_t>(day)];
  if (memory_plan() != nullptr) memory_plan()->release_scratch();
  const int64_t limit = config().eval.max_rows;
  Validation found =
      validate_rows(limit > 0 ? std::min(limit, rows.num_rows) : rows.num_rows,
                    [&](int64_t begin, int64_t end) { return loader_->day(day, begin, end); });
  found.day = rows.name;
  say_figures(fmt::format("{} {}", config().rows.day, found.day), found);
  return found;
}

Validation RecommenderTraining::validate_rows(
    int64_t rows, const std::function<data::RowBatch(int64_t begin, int64_t end)>& read) {
  const at::NoGradGuard no_grad;
  const TraceSpan span("validate");
  const int64_t rank = group_->rank(), ranks = group_->size(), at_once = scored_at_once(config());
  ScoredRows scored;
  for (int64_t first = 0; first < rows; first += at_once) {
    const int64_t count = std::min(rows - first, at_once);
    const data::RowBatch batch =
        read(first + count * rank / ranks, first + count * (rank + 1) / ranks);
    const embedding::Jagged ids = lookups_->ids(batch);
    const models::RecommenderBatch input =
        on(lookups_->model_input(batch.dense, ids, tables_->lookup(ids)), run_.device);
    scored.add(model_->forward(input).logits, batch);
  }
  Validation found = scored.measure(config(), rows, group_);
  warn_of_rankings(found);
  return found;
}

void RecommenderTraining::warn_of_rankings(const Validation& found) {
  for (size_t k = 0; k < found.tasks.size(); ++k) {
    validations_[k].push_back(found.tasks[k].metrics);
    if (output() == nullptr) continue;
    for (const std::string& line : ranking_warnings(validations_[k]))
      output()->warn(found.tasks.size() > 1 ? fmt::format("{}: {}", found.tasks[k].name, line)
                                            : line);
  }
}

void RecommenderTraining::finish(const RunFolder&, bool quiet) {
  if (quiet) return;
  if (const auto tiers = tables_->tier_counters())
    log_info("rows {}: {:.1f} % of accesses{}; {} read from {}, {} written",
             run_.device.is_cuda() ? "on the GPU" : "in memory", 100 * tiers->hit_rate(),
             tiers->counted == 0
                 ? ""
                 : fmt::format(", {:.1f} % if the most frequent rows of the last count were there",
                               100 * tiers->ideal_hit_rate()),
             format_bytes(static_cast<double>(tiers->bytes_read)),
             slow_folder_.empty() ? "RAM" : "the disk",
             format_bytes(static_cast<double>(tiers->bytes_written)));
  if (const embedding::SlotTransfers moved = tables_->row_transfers(); moved.to_slots > 0)
    log_info("rows moved over the bus: {} to the GPU in {} transfers, {} back in {}",
             format_bytes(static_cast<double>(moved.bytes_to)), format_grouped(moved.to_slots),
             format_bytes(static_cast<double>(moved.bytes_from)), format_grouped(moved.from_slots));
  if (keys_before_.found + keys_before_.admitted > 0) log_info("{}", counters_line(keys_before_));
  if (!state_.last_evaluated) return;
  const Validation& found = *state_.last_evaluated->validation;
  for (const TaskRanking& task : found.tasks) {
    const bool one = found.tasks.size() == 1;
    log_info("{}{}: {} rows, {}, log loss {:.4f}, normalised entropy {:.4f}, calibration {:.3f}",
             found.day.empty() ? "validation" : fmt::format("{} {}", config().rows.day, found.day),
             one ? "" : " of " + task.name, one ? found.tokens : task.metrics.rows,
             describe_auc(task.metrics), one ? found.loss : task.metrics.log_loss,
             task.metrics.normalized_entropy, task.metrics.calibration);
  }
}

std::map<std::string, at::Tensor> RecommenderTraining::checkpoint_tensors() {
  return own_part(optimizer_->tensors());
}

void RecommenderTraining::stream_tensors(io::CheckpointKind kind, io::StreamedTensors* to) {
  const TableWriters writers =
      config().checkpoint.writers == "all" ? TableWriters::kHolders : TableWriters::kRankZero;
  save_tables(*tables_, kind, writers, to);
  save_hashed_tables(*tables_, kind, writers, to);
  tables_->forget_changes();
}

void RecommenderTraining::restore_from(const io::StoredCheckpoint* checkpoint) {
  std::map<std::string, at::Tensor> of_model;
  comm::on_rank_zero(*group_, "restoring the checkpoint", [&] {
    for (const std::string& name : checkpoint->names())
      if (!is_of_table(name)) of_model.emplace(name, checkpoint->read(name));
  });
  load_on_all_ranks(*optimizer_, of_model, state_.updates, *group_);
  {
    const UnrecordedAllocations of_the_tables;
    load_tables(*tables_, checkpoint, *group_);
  }
  optimizer_->set_beginnings(state_.started.updates_before);
  tables_->set_steps(state_.updates, state_.started.table_steps + state_.step);
}

nlohmann::json RecommenderTraining::checkpoint_state() const {
  return train::checkpoint_state(state_, run_, nullptr, group_->size());
}

}  // namespace dovetail::train
