#include "dovetail/train/resolve/resolve.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "dovetail/base/error.h"
#include "dovetail/base/gpu.h"
#include "dovetail/base/log.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/trace.h"
#include "dovetail/comm/collective.h"
#include "dovetail/data/text/prepare.h"
#include "dovetail/data/text/prepared_by.h"
#include "dovetail/data/text/token_store.h"
#include "dovetail/models/gpt.h"
#include "dovetail/moe/layer.h"
#include "dovetail/train/memory/config_section.h"
#include "dovetail/train/numerics/quantization.h"
#include "dovetail/train/ranks/batch_shares.h"
#include "dovetail/train/ranks/expert_parallel.h"
#include "dovetail/train/resolve/resolve_executors.h"
#include "dovetail/train/resolve/resolve_recommender.h"
#include "dovetail/train/resolve/resolve_vision.h"
#include "dovetail/train/resolve/unread_keys.h"
#include "dovetail/train/run/progress.h"

namespace dovetail::train {
namespace {

/// Chooses the device of this rank. All ranks call this together.
at::Device resolve_device(const RunConfig& config, comm::Group& group) {
  const std::string& device = config.run.device;
  if (device == "cpu") return at::kCPU;
  const bool recommends = config.kind() == RunKind::kRecommender;
  if (device == "auto" && recommends) return at::kCPU;
  if (recommends) check_recommender_on_gpu(config);
  const std::string reason = load_gpu();
  const comm::Neighbours neighbours = comm::neighbours_of(group);
  if (device == "auto") {
    // Ranks that share a GPU are slower than one rank on it. So either each rank has its own GPU,
    // or all ranks use the CPU.
    const bool own = reason.empty() && neighbours.size <= count_gpus();
    if (sum_over_ranks(group, {own ? 1.0 : 0.0})[0] < group.size()) return at::kCPU;
  }
  if (!reason.empty())
    throw UserError("run.device = \"cuda\", but " + reason,
                    "use run.device = \"cpu\" or \"auto\"; `dovetail doctor` says what is missing");
  const int index = neighbours.rank % count_gpus();
  use_gpu(index);
  return {at::kCUDA, static_cast<at::DeviceIndex>(index)};
}

/// Prepares the text as shards. A terminal shows the progress; the log gets one line at the end.
void prepare_text(const data::DataConfig& data, bool quiet) {
  TerminalLine line;
  const double begin_s = now_seconds();
  const data::PrepareResult result =
      data::prepare(data, data.path, [&line, quiet](const data::PrepareProgress& p) {
        const double fraction =
            p.bytes > 0 ? static_cast<double>(p.bytes_done) / static_cast<double>(p.bytes) : 0.0;
        if (quiet) return;
        line.show(fmt::format(" {}  {}  {} of {}", p.stage, progress_bar(fraction, 24),
                              format_bytes(static_cast<double>(p.bytes_done)),
                              format_bytes(static_cast<double>(p.bytes))));
      });
  line.clear();
  if (quiet) return;
  log_info("text: {} documents, {} ({} for validation) in {}{}", result.documents,
           format_bytes(static_cast<double>(result.train_bytes + result.validation_bytes)),
           format_bytes(static_cast<double>(result.validation_bytes)), result.folder.string(),
           result.reused ? ", prepared earlier"
                         : fmt::format(", prepared in {:.1f} s", now_seconds() - begin_s));
}

std::vector<std::string> source_folders(const data::DataConfig& data) {
  std::vector<std::string> folders;
  if (data.mixture.empty()) folders.push_back(data.path);
  for (const data::SourceConfig& source : data.mixture) folders.push_back(source.path);
  for (const data::PhaseConfig& phase : data.phase) {
    for (const data::SourceConfig& source : phase.mixture) folders.push_back(source.path);
  }
  return folders;
}

/// Reads facts about the prepared folders. Keys about preparing must match how the folders were
/// made, unless there is text to prepare again.
DataSummary summarize_stores(const RunConfig& config, bool has_text) {
  DataSummary summary;
  for (const std::string& folder : source_folders(config.data)) {
    const data::TokenStore store(folder);
    if (!has_text) data::check_prepared_by(config.data, folder);
    if (summary.sha256.empty()) {
      summary.tokenizer_kind = store.tokenizer().kind();
      summary.tokenizer_vocab = store.vocab_size();
      summary.train_tokens = store.num_tokens(data::Split::kTrain);
      summary.validation_tokens = store.num_tokens(data::Split::kValidation);
    }
    summary.sha256.push_back(store.sha256());
  }
  if (summary.validation_tokens < 2)
    check_nothing_held_out(config.eval, "prepared data that hold no validation split");
  return summary;
}

/// Returns facts that a dry run knows without preparing. A trained tokenizer is assumed to reach
/// its maximum size.
DataSummary summarize_config(const data::DataConfig& data) {
  const data::TokenizerConfig& config = data.tokenizer;
  if (config.kind == "bytes")
    return {.tokenizer_kind = "bytes", .tokenizer_vocab = data::bytes_tokenizer()->vocab_size()};
  if (config.path.empty())
    return {.tokenizer_kind = config.kind, .tokenizer_vocab = config.vocab_size};
  const auto tokenizer = data::load_tokenizer(config.path);
  return {.tokenizer_kind = tokenizer->kind(), .tokenizer_vocab = tokenizer->vocab_size()};
}

DataSummary resolve_data(RunConfig& config, comm::Group& group, const TrainOptions& options) {
  data::DataConfig& data = config.data;
  const bool has_text = !data.text.empty() || !data.file_list.empty();
  if (data.path.empty() && data.mixture.empty()) data.path = "data/" + config.run.name;
  std::vector<std::string> unprepared;
  for (const std::string& folder : source_folders(data)) {
    if (std::filesystem::exists(std::filesystem::path(folder) / "manifest.json")) continue;
    if (std::find(unprepared.begin(), unprepared.end(), folder) == unprepared.end())
      unprepared.push_back(folder);
  }
  if (options.dry_run) {
    if (unprepared.empty()) return summarize_stores(config, has_text);
    if (group.rank() == 0 && !options.quiet)
      log_info("not prepared yet: {}; the vocabulary is taken to be data.tokenizer's",
               fmt::join(unprepared, ", "));
    return summarize_config(data);
  }
  if (!has_text && !unprepared.empty() && data.mixture.empty()) {
    throw UserError(
        fmt::format("there is nothing to train on: no data.text, and {} holds no prepared data",
                    data.path),
        "name text (--set 'data.text=[\"my.txt\"]'), or a folder made by `dovetail prepare` "
        "(data.path)");
  }
  if (has_text)
    comm::on_rank_zero(group, "preparing the text", [&] { prepare_text(data, options.quiet); });
  return summarize_stores(config, has_text);
}

/// Chooses the scope of load counts, if the config leaves it open. Counts of the whole batch are
/// known in time only if a step has one micro-batch. Counts of a sequence are always known, so the
/// loss does not depend on the micro-batch size.
void resolve_load_scope(RunConfig& config, const std::string& asked) {
  std::string& scope = config.model.moe.load_scope;
  const bool cuts = config.train.micro_batch > 0 && config.train.micro_batch < config.train.batch;
  if (asked == moe::Config().load_scope && scope == "global_batch" && cuts) scope = "sequence";
}

/// Resolves the run's folder, and this rank's share of the machine and of each step.
ResolvedRun place_run(const RunConfig& config, comm::Group& group) {
  ResolvedRun run;
  run.config = config;
  run.config.run.folder = config.folder().string();
  run.executors = resolve_executors(config, group);
  run.device = run.executors.empty() ? resolve_device(config, group) : run.executors.front().device;
  check_memory_on(config, run.device);
  run.local_ranks = comm::neighbours_of(group).size;
  run.checkpoint_ranks = config.checkpoint.writers == "all" ? group.size() : group.rank() == 0;
  const Machine here = machine();
  run.available_bytes = run.device.is_cuda() ? gpu_memory().free_bytes : here.available_bytes;
  run.threads = !run.executors.empty()   ? owner_threads(run.executors, here.cores)
                : config.run.threads > 0 ? static_cast<int>(config.run.threads)
                                         : std::max(1, here.cores / run.local_ranks);
  at::set_num_threads(run.threads);
  user_check(config.train.batch >= group.size(),
             "train.batch = {} leaves some of the {} ranks without a sample", config.train.batch,
             group.size());
  run.maximum_samples = BatchShares(config, group.size()).maximum_possible_samples();
  const int64_t asked = config.train.micro_batch == TrainSection::kAuto ? config.recommender.grain
                                                                        : config.train.micro_batch;
  run.micro_batch = asked > 0 ? std::min(asked, run.maximum_samples) : run.maximum_samples;
  return run;
}

}  // namespace

ResolvedRun resolve_run(const RunConfig& config, comm::Group& group, const TrainOptions& options) {
  ResolvedRun run = place_run(config, group);
  if (config.kind() != RunKind::kGpt) {
    config.kind() == RunKind::kRecommender ? check_recommender(run)
                                           : check_vision(run, group.size());
    return run;
  }
  if (config.precision.gemm == "native") check_native(mx::native_device(run.device));
  run.data = resolve_data(run.config, group, options);
  run.config.model = models::resolve_model_config(run.config.model, run.data.tokenizer_vocab);
  resolve_load_scope(run.config, config.model.moe.load_scope);
  if (!config.log.sample_prompts.empty()) moe::check_decodes(run.config.model.moe);
  ParallelSection& parallel = run.config.parallel;
  if (parallel.expert > 1 && parallel.ranks_per_node == 0 &&
      (parallel.all_to_all != "linear" || parallel.chooses()))
    parallel.ranks_per_node = std::min<int64_t>(run.local_ranks, parallel.expert);
  check_parallel(run.config);
  user_check(run.config.model.vocab_size >= run.data.tokenizer_vocab,
             "model.vocab_size = {} is smaller than the tokenizer's, {}",
             run.config.model.vocab_size, run.data.tokenizer_vocab);
  return run;
}

/// Throws UserError for a run that does not support memory plans yet. `model` has the recipes of
/// the run.
void check_memory_plan(const ResolvedRun& run, const models::GPT& model) {
  if (run.config.memory.budget.empty()) return;
  if (run.device.is_cpu() && run.config.model.moe.pad_to_capacity) return;
  for (const auto& [name, layer] : moe::layers_of(model)) {
    const std::string obstacle = layer->recorded_obstacle(run.precision.compute, run.device);
    if (obstacle.empty()) continue;
    if (run.device.is_cuda())
      throw UserError(fmt::format("memory.budget does not work with these experts on a GPU. In {}, "
                                  "{}",
                                  name, obstacle),
                      "leave memory.budget out, or use precision.recipe = \"bf16\" and widths that "
                      "are multiples of 8");
    throw UserError(
        fmt::format("memory.budget does not work with dropless experts "
                    "(model.moe.pad_to_capacity = false) and the recipe {}. In {}, {}",
                    run.precision.name, name, obstacle),
        "leave memory.budget out, choose another precision.recipe (\"fp32\", \"mxfp8\"), or give "
        "experts a capacity (drop = \"position\", pad_to_capacity = true)");
  }
}

/// Returns true if the rows of all experts have sizes that stay on the GPU of the run. `model` is
/// on the meta device, in the compute dtype.
bool rows_stay_on_device(const ResolvedRun& run, const models::GPT& model) {
  if (!run.device.is_cuda() || run.config.parallel.expert > 1) return false;
  if (!run.config.memory.budget.empty()) return true;  // check_memory_plan refused others
  const moe::Layers layers = moe::layers_of(model);
  return std::ranges::all_of(
      layers, [](const auto& item) { return item.second->device_rows_obstacle().empty(); });
}

void resolve_precision_and_size(ResolvedRun& run, comm::Group& group,
                                const std::optional<std::string>& kept_precision) {
  if (run.config.kind() == RunKind::kRecommender)
    return resolve_recommender_size(run, group, kept_precision);
  if (run.config.kind() == RunKind::kVision) return resolve_vision_size(run, group);
  run.precision = resolve_precision(run.config.precision.recipe, kept_precision, run.device, group);
  // Built on the meta device. Mistakes in the recipes of layers show before any memory is taken.
  models::GPT sizes_only(run.config.model, c10::kMeta);
  const Quantization quantization(sizes_only, run.config.precision, run.precision.name);
  check_parallel(run.config, quantization);
  check_memory_plan(run, sizes_only);
  measure_float8_peak(run.precision, quantization.recipes(), run.device, group);
  run.size = models::model_size(run.config.model);
  const ParallelSection& parallel = run.config.parallel;
  sizes_only.set_compute_dtype(run.precision.compute);
  run.memory_options = {.bfloat16 = run.precision.compute == at::kBFloat16,
                        .linears = quantization.recipes(),
                        .recompute = run.config.train.checkpoint_activations,
                        .distributed = group.size() > 1,
                        .optimizer_ranks = parallel.shards() ? group.size() : 1,
                        .gradient_ranks = parallel.shard == "gradients" ? group.size() : 1,
                        .expert_ranks = parallel.expert,
                        .device_rows = rows_stay_on_device(run, sizes_only),
                        .checkpoints = run.checkpoint_ranks > 0 && run.copies_for_checkpoints(),
                        .threads = run.threads};
  run.memory = memory_with(run, run.micro_batch);
}

models::MemoryEstimate memory_with(const ResolvedRun& run, int64_t micro_batch) {
  models::MemoryEstimateOptions options = run.memory_options;
  options.micro_batch = micro_batch;
  options.accumulate = micro_batch < run.maximum_samples;
  models::MemoryEstimate memory = models::memory_estimate(run.config.model, options);
  memory.checkpoint /= std::max(run.checkpoint_ranks, 1);
  if (run.precision.compute == at::kDouble) {
    // The estimate is for FP32. Every tensor of a step takes twice as many bytes in FP64.
    for (int64_t* part :
         {&memory.weights, &memory.gradients, &memory.optimizer, &memory.activations,
          &memory.workspace, &memory.checkpoint, &memory.all_gradients}) {
      *part *= 2;
    }
  }
  return memory;
}

double tokens_of_an_expert(const RunConfig& config, int64_t micro_batch) {
  const moe::Config& moe = config.model.moe;
  if (moe.experts == 0) return 0;
  const int64_t chunks = std::max<int64_t>(1, config.parallel.overlap);
  return static_cast<double>(micro_batch * config.model.context * moe.k * config.parallel.expert) /
         static_cast<double>(moe.experts * chunks);
}

double tokens_that_hide_weights(double flops, double bytes_per_s, int64_t element) {
  return flops / bytes_per_s * static_cast<double>(element) / 2;
}

int64_t maximum_memory(const ResolvedRun& run) {
  const int64_t every = run.config.checkpoint.every_steps;
  const bool saves_between_steps = every > 0 && every < run.config.train.steps;
  return saves_between_steps ? std::max(run.memory.total(), run.memory.while_saving())
                             : run.memory.total();
}

std::string summary_line(const ResolvedRun& run) {
  const models::ModelConfig& model = run.config.model;
  std::string line =
      run.config.kind() == RunKind::kRecommender ? recommender_summary(run)
      : run.config.kind() == RunKind::kVision
          ? vision_summary(run)
          : fmt::format(
                "gpt {} parameters{} · {} {} · context {} · {}",
                format_count(static_cast<double>(run.size.parameters)),
                model.moe.experts > 0
                    ? fmt::format(", {} active",
                                  format_count(static_cast<double>(run.size.active_parameters)))
                    : "",
                run.data.tokenizer_kind, run.data.tokenizer_vocab, model.context,
                run.precision.name);
  if (!run.precision.reason.empty()) line += fmt::format(" ({})", run.precision.reason);
  const auto of_machine = [&](int64_t bytes) {
    return format_bytes(static_cast<double>(bytes) * run.local_ranks);
  };
  line += fmt::format(" · {}/{} · needs {} more of {} available",
                      format_flops(run.size.flops_per_token), run.config.unit(),
                      of_machine(run.memory.total()),
                      format_bytes(static_cast<double>(run.available_bytes)));
  if (maximum_memory(run) > run.memory.total())
    line +=
        fmt::format(" (up to {} while a checkpoint is written)", of_machine(maximum_memory(run)));
  for (const std::string& sha256 : run.data.sha256)
    line += fmt::format(" · data sha256 {}", sha256);
  return line;
}

}  // namespace dovetail::train
