#include "dovetail/train/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/train/balance.h"
#include "dovetail/train/embedding_section.h"
#include "dovetail/train/memory_section.h"
#include "dovetail/train/planned_step.h"
#include "dovetail/train/quantization.h"
#include "dovetail/train/recommender_lookups.h"

namespace dovetail {
namespace {

void check_data_source(const DataConfig& data) {
  const int given = int{!data.text.empty()} + int{!data.file_list.empty()} + int{!data.mixture.empty()};
  if (given > 1) {
    throw UserError("more than one of data.text, data.file_list and data.mixture is given", "keep the one to train on");
  }
  if (!data.mixture.empty() && !data.path.empty()) {
    throw UserError("both data.path and data.mixture are given",
                    "add data.path as a source: mixture = [{ path = ..., weight = ... }]");
  }
  double last = 0.0;
  for (const PhaseConfig& phase : data.phase) {
    user_check(phase.from > last && phase.from < 1.0,
               "data.phase.from = {} is out of order: phases begin at rising fractions of the run between 0 and 1",
               phase.from);
    user_check(!phase.mixture.empty(), "data.phase.mixture is empty for the phase from {}", phase.from);
    last = phase.from;
  }
}

/// "name: what it is", of those that come with Dovetail.
std::vector<std::string> quantizing_recipes() {
  std::vector<std::string> lines;
  for (const mx::Recipe& recipe : mx::built_in_recipes()) {
    if (recipe.linear.quantizes()) lines.push_back(fmt::format("{}: {}", recipe.name, recipe.help));
  }
  return lines;
}

/// What only a GPT's run reads, and what only a recommender's does.
constexpr std::string_view kOfGpt[] = {"/model/",
                                       "/data/",
                                       "/precision/",
                                       "/parallel/",
                                       "/train/checkpoint_activations",
                                       "/train/init_noise",
                                       "/eval/max_tokens",
                                       "/log/quantization_every",
                                       "/log/experts_every",
                                       "/log/sample_"};
constexpr std::string_view kOfRecommender[] = {
    "/recommender/", "/rows/", "/embedding/", "/eval/max_rows", "/log/tables_every", "/checkpoint/full_every"};

/// Throws UserError for a key that what is trained does not read.
void check_sections(RunConfig config) {
  RunConfig untouched;
  untouched.model = model_preset(config.model.preset).config;
  const auto flat = [](RunConfig& c) { return config_to_json([&](Section& s) { c.describe(s); }).flatten(); };
  const bool recommends = config.recommends();
  const std::span<const std::string_view> others =
      recommends ? std::span<const std::string_view>(kOfGpt) : kOfRecommender;
  const nlohmann::json none = flat(untouched), all = flat(config);
  for (const auto& [pointer, value] : all.items()) {
    const std::string_view key = pointer;
    const bool foreign = std::ranges::any_of(others, [&](std::string_view prefix) { return key.starts_with(prefix); });
    if (!foreign || (none.contains(pointer) && none[pointer] == value)) continue;
    std::string dotted(key.substr(1));
    std::ranges::replace(dotted, '/', '.');
    throw UserError(
        fmt::format("{} = {} does nothing: this run trains a {}", dotted, value.dump(),
                    recommends ? fmt::format("recommender (recommender.model = \"{}\")", config.recommender.model)
                               : "GPT ([model])"),
        recommends ? "leave it out" : "leave it out, or say which recommender to train (recommender.model)");
  }
}

/// What depends on the length of the run, and how far its days decide it.
void check_steps(const RunConfig& config) {
  const bool pass = config.train.steps == TrainSection::kPass;
  user_check(!pass || config.rows.by_day(),
             "train.steps = \"pass\" is one pass over the days of rows.day, which names no column; name one, or give a "
             "number of steps");
  user_check(!config.rows.by_day() || config.eval.every_steps == EvalSection().every_steps,
             "eval.every_steps does nothing with rows.day = \"{}\": the run is measured at the beginning of each day; "
             "leave it out",
             config.rows.day);
  if (pass) return;
  check_schedule(config.schedule, config.train.steps);
  for (const int64_t step : config.log.trace_steps) {
    user_check(step <= config.train.steps, "log.trace_steps names step {}, but the run ends at train.steps = {}", step,
               config.train.steps);
  }
}

void check_across_sections(const RunConfig& config) {
  check_sections(config);
  if (config.recommends()) {
    config.rows.check();
    check(config.recommender, recommender_inputs(config));
    check_embedding(config);
  } else {
    check_data_source(config.data);
  }
  check_steps(config);
  check_precision(config.precision);
  check_memory(config);
  user_check(config.train.micro_batch <= config.train.batch, "train.micro_batch = {} is larger than train.batch = {}",
             config.train.micro_batch, config.train.batch);
  user_check(config.train.micro_batch != TrainSection::kAuto || config.recommends(),
             "train.micro_batch = \"auto\" is of recommenders; give the samples that fit into memory at once, or 0 for "
             "all of a rank's");
  user_check(config.optimizer.betas.size() == 2, "optimizer.betas has {} entries, but AdamW has two: [beta1, beta2]",
             config.optimizer.betas.size());
  check_balance(config);
  for (const double beta : config.optimizer.betas) {
    user_check(beta < 1.0, "optimizer.betas = [{}] must be below 1", fmt::join(config.optimizer.betas, ", "));
  }
  user_check(
      config.run.name.find('/') == std::string::npos && !config.run.name.starts_with('.') && !config.run.name.empty(),
      "run.name = \"{}\" must be a plain folder name (no '/', no leading dot); use run.folder for a path",
      config.run.name);
}

}  // namespace

void check_schedule(const ScheduleSection& schedule, int64_t steps) {
  if (schedule.warmup_steps >= steps && schedule.warmup_steps > 0) {
    throw UserError(fmt::format("schedule.warmup_steps = {} is not shorter than the run, train.steps = {}",
                                schedule.warmup_steps, steps),
                    "a usual warm-up is 1 to 5 % of the run");
  }
  if (schedule.decay == "wsd") {
    const auto decay_steps = static_cast<int64_t>(std::ceil(schedule.decay_fraction * static_cast<double>(steps)));
    user_check(
        schedule.warmup_steps + decay_steps <= steps,
        "schedule.warmup_steps = {} and schedule.decay_fraction = {} ({} steps) do not fit into train.steps = {}",
        schedule.warmup_steps, schedule.decay_fraction, decay_steps, steps);
  }
}

void RunSection::describe(Section& s) {
  s.value("name", name, "Name of the run; its folder is runs/<name>");
  s.value("folder", folder, "Run folder in place of runs/<name>");
  s.value("seed", seed, "Seed of initialisation, data order and samples").range(0, 9e15);
  s.value("device", device, "Where to train; auto takes a GPU if this build can use one")
      .choices({"auto", "cpu", "cuda"});
  s.value("threads", threads, "CPU threads of a rank; 0: the machine's cores divided by its ranks").range(0, 4096);
}

void TrainSection::describe(Section& s) {
  s.value("steps", steps, "Optimizer steps of the run; pass: one pass over the days of rows.day")
      .unit("steps")
      .range(1, kManySteps)
      .word("pass", kPass);
  s.value("batch", batch, "Samples of a step, over all ranks and micro-batches").unit("samples").range(1, 1e9);
  s.value(
       "micro_batch", micro_batch,
       "Samples at once on a rank (gradient accumulation); 0: all of the rank's; auto: of a recommender, whose results "
       "do not depend on it, the fastest of all, halves, quarters and eighths in some steps before the first")
      .unit("samples")
      .range(0, 1e9)
      .word("auto", kAuto);
  s.value("checkpoint_activations", checkpoint_activations,
          "Recompute each block in backward instead of keeping its activations: less memory, about a third more time");
  s.value("clip", clip, "Global gradient norm above which gradients are scaled down; 0: no clipping").range(0, 1e9);
  s.value("max_skipped_steps", max_skipped_steps,
          "Steps in a row with a NaN or infinite loss or gradient (each is skipped) before the run stops")
      .unit("steps")
      .range(1, 1e6);
  s.value("bucket_bytes", bucket_bytes, "Size of a gradient all-reduce that overlaps with backward")
      .unit("bytes")
      .range(1024, 1e10);
  s.value(
       "init_noise", init_noise,
       "Noise added to the initial matrices, as a share of their deviation: the spread of runs that differ in nothing "
       "else is what a difference between recipes is held against")
      .range(0, 1);
  s.value("time_limit_s", time_limit_s, "Save and stop after this long; 0: no limit").unit("s").range(0, 1e9);
}

void CommSection::describe(Section& s) {
  s.value(
       "timeout_s", timeout_s,
       "How long a rank may be silent in a collective, or in finding the others, before the job ends and names it; a "
       "dead one is noticed at once")
      .unit("s")
      .range(1, 1e5);
}

void ParallelSection::describe(Section& s) {
  s.value(
       "expert", expert,
       "Ranks that the experts of every layer are spread over; it divides the ranks of the job, and the gradients of "
       "experts are summed over those that hold the same ones")
      .unit("ranks")
      .range(1, 65536);
  s.value("expert_tensor", expert_tensor,
          "Ranks that one expert is cut over, along its hidden elements; 0: 1, or as many as give all ranks an expert")
      .unit("ranks")
      .range(0, 65536);
  s.value("r", r,
          "Ranks that a token's row goes to for one expert (Tutel's r), a divisor of expert_tensor: the experts' other "
          "slices are gathered. expert_tensor: none are; 0: rows stay and every rank gathers all experts")
      .unit("ranks")
      .range(0, 65536)
      .word("auto", kAuto);
  s.value("overlap", overlap, "Chunks of tokens whose all-to-all overlaps with the experts of another chunk")
      .range(1, 8)
      .word("auto", kAuto);
  s.value("shadow", shadow,
          "Experts with the most tokens of late that every rank gathers, so that their tokens stay (FasterMoE)")
      .range(0, 65536)
      .word("auto", kAuto);
  s.value("all_to_all", all_to_all, "linear: every rank to every other; 2dh: inside nodes first, then between them")
      .choices({"linear", "2dh", "auto"});
  s.value("ranks_per_node", ranks_per_node,
          "Neighbours that are a node to 2dh and to auto; 0: the ranks of this machine")
      .unit("ranks")
      .range(0, 65536);
  s.value("dispatch", dispatch, "How tokens travel to their experts; mxfp8: as codes with their scales, rounded")
      .choices({"unchanged", "fp32", "bf16", "mxfp8"});
  s.value("combine", combine, "How the experts' results travel back").choices({"unchanged", "fp32", "bf16", "mxfp8"});
  s.value(
      "costs", costs,
      "What auto goes by: a file of costs as configs/clusters has; without one the ranks measure theirs at the start "
      "(dovetail bench comm)");
  s.value("choose_every", choose_every, "Steps after which auto and shadow look at the load again")
      .unit("steps")
      .range(1, kManySteps);
}

void BalanceSection::describe(Section& s) {
  s.value("mode", mode,
          "Shares of a step's micro-batches (train.micro_batch). off: ranks have the same number of samples; fixed: "
          "shares; auto: in proportion to how fast each rank computes, measured in every step")
      .choices({"off", "fixed", "auto"});
  s.value("shares", shares, "fixed: micro-batches of each rank, together those of the global batch").range(1, 1e9);
  s.value("gain", gain, "auto: shares move where a step would compute for a shorter time by more than this part of it")
      .range(0, 0.9);
}

void OptimizerSection::describe(Section& s) {
  s.value("name", name, "AdamW (Loshchilov and Hutter 2019), FP32 master weights under BF16").choices({"adamw"});
  s.value("lr", lr, "Highest learning rate, after the warm-up").above(0);
  s.value("betas", betas, "Decay rates of the first and second moment").range(0, 1);
  s.value("eps", eps, "Added to the square root of the second moment").above(0);
  s.value("weight_decay", weight_decay, "Decoupled decay of matrices; norms and biases have none").range(0, 10);
}

void ScheduleSection::describe(Section& s) {
  s.value("warmup_steps", warmup_steps, "Steps of linear warm-up from zero").unit("steps").range(0, kManySteps);
  s.value("decay", decay,
          "After the warm-up: cosine or linear to the end of the run; wsd: constant, then linear over the last part; "
          "constant")
      .choices({"cosine", "linear", "wsd", "constant"});
  s.value("min_lr_ratio", min_lr_ratio, "Learning rate at the end of the decay, as a share of optimizer.lr")
      .range(0, 1);
  s.value("decay_fraction", decay_fraction, "wsd: share of the run that decays, at its end").range(0, 1);
}

void PrecisionSection::describe(Section& s) {
  s.value(
      "recipe", recipe,
      fmt::format("auto: bf16 where a 50 ms probe of matrix products says that it is faster, else fp32; fp64 is for "
                  "exactness tests. The others compute in bf16 with the Linears of all blocks quantized: {}; or one "
                  "of precision.recipes",
                  fmt::join(quantizing_recipes(), "; ")));
  s.value(
       "gemm", gemm,
       "Products of quantized Linears. emulated: of the numbers that the codes stand for, everywhere; native: of the "
       "codes themselves by cuBLASLt, MXFP8 on GPUs of compute capability 10 and later (compiles, never run)")
      .choices({"emulated", "native"});
  s.list("override", overrides, "Linears with another recipe; the last that matches decides");
  s.list("recipes", recipes, "Recipes of your own");
}

void PrecisionOverride::describe(Section& s) {
  s.value("layers", layers, "Globs over the names of Linears, such as \"blocks.0.*\" or \"*.ffn.down\"").required();
  s.value("tensors", tensors, "Which of their tensors: weight, activation, gradient");
  s.value("recipe", recipe, "bf16 (not quantized), or a quantizing recipe as in precision.recipe").required();
}

void MemorySection::describe(Section& s) {
  s.value(
      "budget", budget,
      "Memory that a training step may take: bytes (6GiB) or a share of the step's peak with everything kept (0.5x); "
      "what is kept, made again or moved is decided after seven steps, of which the first three take what they take "
      "without. Empty: no plan");
  s.value("folder", folder,
          "Folder of the disk that tensors are moved to beyond the budget; empty: to memory that is not counted. With "
          "one also the first three steps run in little memory, slowly");
  s.value("allow", allow,
          "What a plan may do beside keeping what a step makes: move it to the slow tier (offload), make it again "
          "(recompute), keep it as microscaling codes where all that reads it later makes the same codes of it "
          "(compress), run operations by slower algorithms that need less memory (algorithms). None of these changes a "
          "result. compress_mxfp8 does, from the fourth step on: activations may wait for backward in MXFP8")
      .choices(PlannedStep::technique_names());
  s.value("solve_s", solve_s, "Seconds of looking for the fastest plan").unit("s").range(0.1, 3600);
}

void CheckpointSection::describe(Section& s) {
  s.value("every_steps", every_steps, "Steps between checkpoints; 0: only at the end")
      .unit("steps")
      .range(0, kManySteps);
  s.value("keep", keep, "Newest checkpoints that stay, beside those that they build on").range(1, 1e6);
  s.value("full_every", full_every,
          "Every so many checkpoints of a recommender are full, the first of a process among them; those between are "
          "deltas: of the tables they hold the rows that changed since the checkpoint before. 1: all are full")
      .range(1, 1e6);
}

void EvalSection::describe(Section& s) {
  s.value("every_steps", every_steps, "Steps between evaluations on the validation split; 0: only at the end")
      .unit("steps")
      .range(0, kManySteps);
  s.value("max_tokens", max_tokens,
          "Tokens of the validation split read while training; the last evaluation reads all. 0: always all")
      .unit("tokens")
      .range(0, 1e15);
  s.value("max_rows", max_rows,
          "The same of a recommender's validation rows, the first ones; with rows.day the first of each day")
      .unit("rows")
      .range(0, 1e15);
}

void LogSection::describe(Section& s) {
  s.value("tensorboard", tensorboard, "Write TensorBoard event files");
  s.value("quantization_every", quantization_every,
          "Steps between records of what quantization did to each tensor, where Linears are quantized; 0: none")
      .unit("steps")
      .range(0, kManySteps);
  s.value("experts_every", experts_every,
          "Steps between records of how tokens spread over the experts, where there are any; 0: none")
      .unit("steps")
      .range(0, kManySteps);
  s.value("tables_every", tables_every,
          "Steps between records of keys admitted, refused and evicted, where tables have no fixed vocabulary; 0: none")
      .unit("steps")
      .range(0, kManySteps);
  s.value("trace_steps", trace_steps, "Steps recorded as Chrome/Perfetto traces, trace-<step>.json")
      .unit("steps")
      .range(1, kManySteps);
  s.value("sample_prompts", sample_prompts, "Continued by the trained model at the end, into the report");
  s.value("sample_tokens", sample_tokens, "Length of a sample").unit("tokens").range(1, 1e6);
}

void RunConfig::describe(Section& s) {
  s.section("run", run, "What this run is called and where it runs");
  s.section("model", model, "The transformer; a preset is where it starts");
  s.section("data", data, "Text, tokenizer and mixture");
  s.section("recommender", recommender, "A model of events in place of a transformer; what [rows] names is its input");
  s.section("rows", rows, "The table that a recommender learns from");
  s.section("embedding", embedding, "The tables of a recommender's sparse features");
  s.section("train", train, "Length, batch and limits of the run");
  s.section("optimizer", optimizer, "How weights are updated");
  s.section("schedule", schedule, "Learning rate over the run");
  s.section("precision", precision, "Number formats of training");
  s.section("memory", memory, "Training within a memory budget, on a CPU (docs/design/plan.md)");
  s.section("checkpoint", checkpoint, "What is saved, when");
  s.section("eval", eval, "Validation while training");
  s.section("log", log, "Events, traces and samples");
  s.section("comm", comm, "Ranks and how they talk");
  s.section("parallel", parallel, "Experts over ranks");
  s.section("balance", balance, "Uneven shares of a step for ranks of unequal speed");
}

RunConfig load_run_config(const std::filesystem::path& path, const std::vector<std::string>& overrides) {
  const std::string toml = read_file(path);
  // Once to learn the preset, which decides the defaults of the second reading.
  RunConfig first;
  parse_config([&](Section& s) { first.describe(s); }, toml, path.string(), overrides);
  RunConfig config;
  config.model = model_preset(first.model.preset).config;
  config.model.preset = first.model.preset;
  parse_config([&](Section& s) { config.describe(s); }, toml, path.string(), overrides);
  check_across_sections(config);
  return config;
}

}  // namespace dovetail
