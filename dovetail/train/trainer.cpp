#include "dovetail/train/trainer.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/gpu.h"
#include "dovetail/base/kept_memory.h"
#include "dovetail/base/log.h"
#include "dovetail/base/machine.h"
#include "dovetail/comm/collective.h"
#include "dovetail/io/checkpoint.h"
#include "dovetail/models/gpt.h"
#include "dovetail/mx/feed_forward.h"
#include "dovetail/train/gpt/training.h"
#include "dovetail/train/loop/resume.h"
#include "dovetail/train/metrics/validation.h"
#include "dovetail/train/ranks/checkpoint_writers.h"
#include "dovetail/train/recommender/training.h"
#include "dovetail/train/report/run_report.h"
#include "dovetail/train/resolve/out_of_memory.h"
#include "dovetail/train/resolve/resolve.h"
#include "dovetail/train/resolve/resolve_attention.h"
#include "dovetail/train/resolve/resolve_executors.h"
#include "dovetail/train/resolve/unread_keys.h"
#include "dovetail/train/run/folder.h"
#include "dovetail/train/run/stored_run.h"
#include "dovetail/train/vision/training.h"

namespace dovetail::train {
namespace {

/// Returns argv as the kernel has it: the command that the user can repeat.
std::vector<std::string> command_line() {
  std::vector<std::string> words;
  std::string word;
  for (const char c : read_file("/proc/self/cmdline")) {
    if (c != '\0') {
      word += c;
    } else {
      words.push_back(std::exchange(word, {}));
    }
  }
  return words;
}

/// Maximum memory that training held at a time. On a CPU: resident bytes above the process' bytes
/// before training. On a GPU: bytes that its allocator gave out.
class PeakMemory {
 public:
  explicit PeakMemory(at::Device device) : on_gpu_(device.is_cuda()) {
    if (on_gpu_) {
      reset_gpu_peak();
      return;
    }
    give_back_freed_memory();  // else memory left from preparing the text would not count
    baseline_bytes_ = resident_bytes();
    reset_peak_resident();
  }
  uint64_t bytes() const {
    const uint64_t peak_bytes = on_gpu_ ? gpu_memory().peak_bytes : peak_resident_bytes();
    return peak_bytes > baseline_bytes_ ? peak_bytes - baseline_bytes_ : 0;
  }

 private:
  bool on_gpu_;
  uint64_t baseline_bytes_ = 0;
};

/// Returns the content of machine.json (docs/training.md).
nlohmann::ordered_json machine_record(const ResolvedRun& run, const TrainingLoop& training,
                                      int ranks, uint64_t peak_bytes, bool finished) {
  return {{"version", DOVETAIL_VERSION},
          {"command_line", command_line()},
          {"machine", machine_json()},
          {"ranks", ranks},
          {"steps", training.total_steps()},
          {"threads", run.threads},
          {"device", run.device.str()},
          {"executors", jobs::executor_names(run.executors)},
          {"precision",
           {{"recipe", run.precision.recipe},
            {"compute", run.precision.name},
            {"reason", run.precision.reason}}},
          {"attention", run.attention.name},
          {"parameters", run.size.parameters},
          {"flops_per_token", run.size.flops_per_token},
          {"tokens_of_an_expert", tokens_of_an_expert(run.config, run.micro_batch)},
          {"peak_flops", run.precision.peak_flops * ranks},
          {"memory",
           {{"estimate_bytes", run.memory.total()},
            {"most_bytes", maximum_memory(run)},
            {"available_bytes", run.available_bytes},
            {"peak_bytes", peak_bytes}}},
          {"data",
           {{"path", run.config.data.path},
            {"sha256", run.data.sha256},
            {"tokenizer", run.data.tokenizer_kind},
            {"vocab_size", run.data.tokenizer_vocab},
            {"train_tokens", run.data.train_tokens},
            {"validation_tokens", run.data.validation_tokens},
            {"sources", training.data_summary()}}},
          {"resumed_from", training.state().resumed_from},
          {"finished", finished}};
}

/// L3 size to assume when sysconf reports 0 or -1.
constexpr int64_t kUsualCache = 32 << 20;

/// Warns if experts get so few tokens that their products wait for weights from memory.
void log_expert_load_bound(const ResolvedRun& run) {
  const models::ModelConfig& model = run.config.model;
  const double tokens = tokens_of_an_expert(run.config, run.micro_batch);
  if (tokens == 0 || run.precision.peak_flops == 0 || !run.device.is_cpu()) return;
  const int64_t element = run.precision.compute == at::kBFloat16 ? 2 : 4;
  const int64_t bytes = model.moe.experts / run.config.parallel.expert * model.width *
                        model.moe.ffn_width * (mx::up_width(model.activation, 1) + 1) * element;
  if (bytes <= std::max<int64_t>(kUsualCache, sysconf(_SC_LEVEL3_CACHE_SIZE))) return;
  const double least =
      tokens_that_hide_weights(run.precision.peak_flops, measure_copy_bandwidth(), element);
  if (tokens >= least) return;
  log_warning(
      "experts get {:.0f} tokens each at a time if the load is even. Below about {:.0f}, their "
      "products wait for weights from memory on this machine. Raise train.micro_batch, or have "
      "fewer or narrower experts",
      tokens, least);
}

/// Logs why run.device = "auto" does not use a GPU that exists.
void log_why_no_gpu(const ResolvedRun& run, int ranks) {
  if (run.config.run.device != "auto" || run.device.is_cuda() || count_gpu_device_files() == 0)
    return;
  const bool recommends = run.config.kind() == RunKind::kRecommender;
  const char* reason = recommends  ? "recommenders use it with run.device = \"cuda\" only"
                       : ranks > 1 ? "its ranks are more than its GPUs"
                                   : "it cannot be used; `dovetail doctor` says why";
  log_info("device: cpu, although this machine has a GPU: {}", reason);
}

void log_what_is_trained(const ResolvedRun& run, int ranks) {
  log_info("{}", summary_line(run));
  log_expert_load_bound(run);
  warn_of_later_tokens(run.config.model);
  log_why_no_gpu(run, ranks);
  log_executors(run);
  if (const auto& [kernel, reason] = run.attention; !kernel.empty())
    log_info("attention: {}{}", kernel, reason.empty() ? "" : fmt::format(" ({})", reason));
  if (const std::string unread = unread_ffn_width(run.config.model);
      run.config.kind() == RunKind::kGpt && !unread.empty())
    log_warning("{}", unread);
  if (const std::string keys = keys_of_several_ranks(run.config); ranks == 1 && !keys.empty())
    log_warning("{}: about what ranks exchange, so without effect on one rank", keys);
  const double needed = static_cast<double>(maximum_memory(run)) * run.local_ranks;
  if (needed > static_cast<double>(run.available_bytes)) {
    log_warning(
        "a step is estimated to need {}, but {} is available; lower train.micro_batch or set {}",
        format_bytes(needed), format_bytes(static_cast<double>(run.available_bytes)),
        run.config.kind() == RunKind::kGpt ? "train.checkpoint_activations = true"
        : run.device.is_cuda() && run.config.kind() == RunKind::kRecommender
            ? "embedding.memory_bytes = \"auto\""
            : "memory.budget");
  }
}

/// Start of a run. Rank 0 opens the run's folder and its newest good checkpoint, if any. All ranks
/// get its step and state. If there is none, and run.start_from names another run, rank 0 opens the
/// checkpoint of that run.
struct StartingPoint {
  std::unique_ptr<RunFolder> folder;               ///< on rank 0 only
  std::optional<io::StoredCheckpoint> checkpoint;  ///< on rank 0 only
  RunState state;
  std::optional<std::string> precision, attention;  ///< choices of the run that is resumed
};

/// Throws UserError if `other`, which run.start_from names, is within the run's own folder.
void check_is_another_run(const std::filesystem::path& other, const std::filesystem::path& own) {
  namespace fs = std::filesystem;
  const fs::path relative =
      fs::weakly_canonical(other).lexically_relative(fs::weakly_canonical(own));
  if (relative.empty() || *relative.begin() == "..") return;
  throw UserError(fmt::format("run.start_from = \"{}\" is in this run's own folder, {}",
                              other.string(), own.string()),
                  "give this run another run.name, or leave run.start_from out to resume");
}

StartingPoint open_run(const ResolvedRun& run, comm::Group& group, const TrainOptions& options) {
  StartingPoint start;
  nlohmann::json found = {{"step", -1}, {"state", nullptr}};
  comm::on_rank_zero(group, "opening the run", [&] {
    const std::string& other = run.config.run.start_from;
    if (!other.empty()) check_is_another_run(other, run.config.folder());
    start.folder = std::make_unique<RunFolder>(run.config.folder());
    io::CheckpointFolder checkpoints(start.folder->checkpoints(), {});
    checkpoints.clean();
    if (!options.resume) start.folder->forget_earlier_run();
    start.checkpoint = io::latest_checkpoint(start.folder->checkpoints());
    if (!start.checkpoint) {
      if (!other.empty()) start.checkpoint.emplace(open_run_or_checkpoint(other));
      return;
    }
    found = {{"step", start.checkpoint->step()}, {"state", start.checkpoint->state()}};
    for (const std::string& warning :
         check_same_run(found["state"], run, found["step"], group.size())) {
      log_warning("{}", warning);
    }
  });
  const nlohmann::json shared = comm::broadcast_json(group, found);
  const auto step = shared["step"].get<int64_t>();
  if (step < 0) return start;
  start.precision = stored_choice(shared["state"], "precision");
  start.attention = stored_choice(shared["state"], "attention");
  start.state = run_state(shared["state"], step);
  start.state.resumed_from.push_back(step);
  return start;
}

std::unique_ptr<TrainingLoop> make_training(const ResolvedRun& run,
                                            const std::shared_ptr<comm::Group>& group, bool quiet,
                                            const StartingPoint& start) {
  RunFolder* folder = start.folder.get();
  const io::StoredCheckpoint* checkpoint = start.checkpoint ? &*start.checkpoint : nullptr;
  if (run.config.kind() == RunKind::kRecommender)
    return std::make_unique<RecommenderTraining>(run, group, folder, quiet, start.state,
                                                 checkpoint);
  if (run.config.kind() == RunKind::kVision)
    return std::make_unique<VisionTraining>(run, group, folder, quiet, start.state, checkpoint);
  return std::make_unique<GptTraining>(
      run, group, folder, quiet, start.state,
      start.checkpoint ? start.checkpoint->snapshot().tensors : decltype(io::Snapshot::tensors){});
}

/// Returns f(). If f finds no memory on the GPU, throws the error that says what needs it.
template <class F>
auto on_full_gpu(const ResolvedRun& run, F f) {
  try {
    return f();
  } catch (const c10::OutOfMemoryError&) {
    throw out_of_memory(run, gpu_memory());
  }
}

TrainResult result_of(const TrainingLoop& training) {
  const RunState& state = training.state();
  TrainResult result = {.steps = state.step, .interrupted = !training.complete()};
  if (state.last) result.loss = state.last->loss;
  if (state.last_evaluated) {
    result.validation_loss = state.last_evaluated->validation->loss;
    const Validation& found = *state.last_evaluated->validation;
    if (found.tasks.empty() && !found.images)
      result.validation_nats_per_byte = state.last_evaluated->validation->nats_per_byte;
  }
  return result;
}

}  // namespace

TrainResult train(const RunConfig& config, std::shared_ptr<comm::Group> group,
                  const TrainOptions& options) {
  const bool speaks = group->rank() == 0 && !options.quiet;
  ResolvedRun run = resolve_run(config, *group, options);
  if (run.device.is_cuda()) group = comm::on_gpus(std::move(group));
  if (options.dry_run) {
    resolve_precision_and_size(run, *group, std::nullopt);
    if (config.kind() == RunKind::kGpt)
      run.attention = resolve_attention(run, std::nullopt, *group);
    if (speaks) log_what_is_trained(run, group->size());
    return {};
  }
  StartingPoint start = open_run(run, *group, options);
  if (config.checkpoint.writers == "all" && config.checkpoint.every_steps != 0)
    check_shared_folder(run.config.folder(), *group);
  resolve_precision_and_size(run, *group, start.precision);
  if (config.kind() == RunKind::kGpt)
    run.attention =
        on_full_gpu(run, [&] { return resolve_attention(run, start.attention, *group); });
  if (speaks) log_what_is_trained(run, group->size());
  if (speaks && run.device.is_cuda() && group->size() > 1)
    log_info("{} ranks exchange tensors of GPUs through {}", group->size(), group->gpu_library());
  if (speaks && !start.state.resumed_from.empty())
    log_info("resuming {} at step {}", run.config.run.folder, start.state.step);

  const PeakMemory peak(run.device);
  RunFolder* folder = start.folder.get();
  const std::unique_ptr<TrainingLoop> training =
      on_full_gpu(run, [&] { return make_training(run, group, options.quiet, start); });
  start.checkpoint.reset();
  const auto write_machine = [&](bool finished) {
    folder->write_json("machine.json",
                       machine_record(run, *training, group->size(), peak.bytes(), finished));
  };
  comm::on_rank_zero(*group, "writing the run's config", [&] {
    folder->write_config(run.config);
    write_machine(false);
  });
  if (speaks) log_info("{}", training->data_summary());
  on_full_gpu(run, [&] { training->run(); });
  comm::on_rank_zero(*group, "writing the report", [&] {
    write_machine(training->complete());
    if (training->complete()) training->finish(*folder, options.quiet);
    write_report(folder->path());
  });
  return result_of(*training);
}

}  // namespace dovetail::train
