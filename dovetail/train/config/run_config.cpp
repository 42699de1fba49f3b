#include "dovetail/train/config/run_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "dovetail/base/error.h"
#include "dovetail/mx/recipe.h"

namespace dovetail::train {
namespace {

/// Built-in quantizing recipes, as "name: description".
std::vector<std::string> quantizing_recipes() {
  std::vector<std::string> lines;
  for (const mx::Recipe& recipe : mx::built_in_recipes()) {
    if (recipe.linear.quantizes()) lines.push_back(fmt::format("{}: {}", recipe.name, recipe.help));
  }
  return lines;
}

}  // namespace

std::string RunConfig::kind_in_words() const {
  switch (kind()) {
    case RunKind::kGpt:
      return "GPT ([model])";
    case RunKind::kRecommender:
      return fmt::format("recommender (recommender.model = \"{}\")", recommender.model);
    case RunKind::kVision:
      return fmt::format("vision model (vision.model = \"{}\")", vision.model);
  }
  return {};
}

void check_length(const RunConfig& config, int64_t steps) {
  check_schedule(config.schedule, steps);
  for (const int64_t step : config.log.trace_steps)
    user_check(step <= steps, "log.trace_steps names step {}, but the run ends at train.steps = {}",
               step, steps);
}

void check_schedule(const ScheduleSection& schedule, int64_t steps) {
  const ScheduleSection none;
  const auto unread = [&](const char* key, bool given) {
    user_check(!given, "schedule.{} does nothing with schedule.decay = \"{}\"; leave it out", key,
               schedule.decay);
  };
  unread("decay_fraction",
         schedule.decay != "wsd" && schedule.decay_fraction != none.decay_fraction);
  unread("min_lr_ratio",
         schedule.decay == "constant" && schedule.min_lr_ratio != none.min_lr_ratio);
  user_check(schedule.decay != "wsd" || schedule.decay_fraction > 0 ||
                 schedule.min_lr_ratio == none.min_lr_ratio,
             "schedule.min_lr_ratio does nothing with schedule.decay_fraction = 0; leave it out");
  if (schedule.warmup_steps >= steps && schedule.warmup_steps > 0) {
    throw UserError(
        fmt::format("schedule.warmup_steps = {} is not shorter than the run, train.steps = {}",
                    schedule.warmup_steps, steps),
        "a usual warm-up is 1 to 5 % of the run");
  }
  if (schedule.decay == "wsd") {
    const auto decay_steps =
        static_cast<int64_t>(std::ceil(schedule.decay_fraction * static_cast<double>(steps)));
    user_check(schedule.warmup_steps + decay_steps <= steps,
               "schedule.warmup_steps = {} and schedule.decay_fraction = {} ({} steps) do not fit "
               "into train.steps = {}",
               schedule.warmup_steps, schedule.decay_fraction, decay_steps, steps);
  }
}

void RunSection::describe(Section& s) {
  s.value("name", name, "Name of the run; its folder is runs/<name>");
  s.value("folder", folder, "Run folder in place of runs/<name>");
  s.value("seed", seed, "Seed of initialisation, data order and samples").range(0, 9e15);
  s.value("start_from", start_from,
          "Folder of another run, or one of its checkpoints. A new run of a recommender takes "
          "tables and dense weights from it, by name. A resumed run does not read it");
  s.value("start_optimizer", start_optimizer,
          "Optimizer state of what comes from start_from. keep: as the other run left it. new: "
          "zero, as at the beginning of a run")
      .choices({"keep", "new"});
  s.value(
      "device", device,
      "Device to train on: auto, cpu, cuda. auto: a GPU if this build can use one, else the "
      "CPU. A list such as \"cuda:0,cpu:8\" names executors of one process that share each step "
      "of a GPT: a GPU and 8 threads. The first one holds weights and optimizer. A list needs "
      "[balance]");
  s.value("cuda_graph", cuda_graph,
          "Forward and backward on a GPU as one CUDA graph, recorded in the third step. auto: "
          "where the step allows it. on: an error where it does not. off: each operation by itself")
      .choices({"auto", "on", "off"});
  s.value("attention", attention,
          "Attention kernel on a GPU in bfloat16. auto: cuDNN's if a measurement shows that it "
          "takes at most 0.95 of flash attention's time. A resumed run keeps its kernel")
      .choices({"auto", "flash", "cudnn"});
  s.value("threads", threads, "CPU threads of a rank; 0: the machine's cores divided by its ranks")
      .range(0, 4096);
}

void TrainSection::describe(Section& s) {
  s.value("steps", steps, "Optimizer steps of the run; pass: one pass over the days of rows.day")
      .unit("steps")
      .range(1, kManySteps)
      .word("pass", kPass);
  s.value("batch", batch, "Samples of a step, over all ranks and micro-batches")
      .unit("samples")
      .range(1, 1e9);
  s.value("micro_batch", micro_batch,
          "Samples per rank at a time (gradient accumulation). 0: all samples of the rank. auto: "
          "the fastest of all, halves, quarters and eighths, measured in some steps before the "
          "first. Only recommenders have auto, and their results do not depend on it")
      .unit("samples")
      .range(0, 1e9)
      .word("auto", kAuto);
  s.value("checkpoint_activations", checkpoint_activations,
          "Recompute each block in backward instead of keeping its activations: less memory, about "
          "a third more time");
  s.value("clip", clip,
          "Global gradient norm above which gradients are scaled down; 0: no clipping")
      .range(0, 1e9);
  s.value("max_skipped_steps", max_skipped_steps,
          "Consecutive steps with a NaN or infinite loss or gradient before the run stops. Each "
          "such step is skipped")
      .unit("steps")
      .range(1, 1e6);
  s.value("bucket_bytes", bucket_bytes, "Size of a gradient all-reduce that overlaps with backward")
      .unit("bytes")
      .range(1024, 1e10);
  s.value("init_noise", init_noise,
          "Noise added to the initial matrices, as a share of their deviation. Runs that differ "
          "only in noise show the spread to compare a difference between recipes with")
      .range(0, 1);
  s.value("time_limit_s", time_limit_s, "Save and stop after this time; 0: no limit")
      .unit("s")
      .range(0, 1e9);
}

void CommSection::describe(Section& s) {
  s.value("timeout_s", timeout_s,
          "Maximum time that a rank may be silent in a collective, or while the ranks find each "
          "other. Then the job ends and names the rank. A dead rank is noticed at once")
      .unit("s")
      .range(1, 1e5);
}

void ParallelSection::describe(Section& s) {
  s.value("shard", shard,
          "State that ranks share out instead of each keeping all of it. optimizer: moments and "
          "master weights (ZeRO-1). gradients: also the sums of gradients, reduced after every "
          "micro-batch (ZeRO-2)")
      .choices({"none", "optimizer", "gradients"});
  s.value("expert", expert,
          "Ranks over which the experts of each layer are spread, a divisor of the job's ranks. "
          "Gradients of experts are summed over ranks that hold the same experts")
      .unit("ranks")
      .range(1, 65536);
  s.value("expert_tensor", expert_tensor,
          "Ranks over which one expert is cut, along its hidden elements; 0: 1, or as many as give "
          "all ranks an expert")
      .unit("ranks")
      .range(0, 65536);
  s.value("r", r,
          "Ranks that receive a token's row for one expert (Tutel's r), a divisor of "
          "expert_tensor. Other slices of the expert are gathered. The value of expert_tensor: no "
          "slice is gathered. 0: rows stay on their rank, and every rank gathers all experts")
      .unit("ranks")
      .range(0, 65536)
      .word("auto", kAuto);
  s.value(
       "overlap", overlap,
       "Number of token chunks. The all-to-all of one chunk overlaps with the experts of another")
      .range(1, 8)
      .word("auto", kAuto);
  s.value("shadow", shadow,
          "Number of experts, by highest recent load, that every rank gathers. Their tokens stay "
          "on their rank (FasterMoE)")
      .range(0, 65536)
      .word("auto", kAuto);
  s.value("all_to_all", all_to_all,
          "Route of rows. linear: from each rank to each other. 2dh: within nodes first, then "
          "between nodes")
      .choices({"linear", "2dh", "auto"});
  s.value("ranks_per_node", ranks_per_node,
          "Number of neighbouring ranks that form a node for 2dh and auto; 0: the ranks of this "
          "machine")
      .unit("ranks")
      .range(0, 65536);
  s.value("dispatch", dispatch,
          "Format in which tokens are sent to their experts. mxfp8: E4M3 codes with a scale for "
          "each 32 elements. fp8: E4M3 codes with a scale for each 128 elements")
      .choices({"unchanged", "fp32", "bf16", "mxfp8", "fp8"});
  s.value("combine", combine,
          "Format in which the experts' results are sent back. unchanged: the compute format. "
          "fp32: the sums as one rank has them, also in BF16 runs")
      .choices({"unchanged", "fp32", "bf16", "mxfp8", "fp8"});
  s.value("costs", costs,
          "File of costs for auto, as in configs/clusters. Empty: the ranks measure their costs at "
          "the start (dovetail bench comm)");
  s.value("choose_every", choose_every, "Steps between two choices of auto and shadow by the load")
      .unit("steps")
      .range(1, kManySteps);
}

void BalanceSection::describe(Section& s) {
  s.value("mode", mode,
          "Division of a step's micro-batches (train.micro_batch) among ranks, or among the "
          "executors of run.device. off: the same number of samples for each rank. fixed: by "
          "shares. auto: in proportion to each one's speed, measured in every step")
      .choices({"off", "fixed", "auto"});
  s.value("shares", shares,
          "fixed: micro-batches of each rank or executor. Their sum is the number of micro-batches "
          "in the global batch")
      .range(1, 1e9);
  s.value("gain", gain,
          "auto: minimum reduction of a step's compute time, as a share of it, for which shares "
          "change. An executor that saves less is left out")
      .range(0, 0.9);
}

void VisionSection::describe(Section& s) {
  s.value("model", model,
          "vgg16 and vgg19: Simonyan and Zisserman 2014. resnet50: He et al. 2015, with the stride "
          "in the 3 x 3 convolution. unet: Ronneberger et al. 2015, padded, a class for each pixel")
      .choices({"", "vgg16", "vgg19", "resnet50", "unet"});
  s.value("classes", classes, "Classes of images or pixels; 0: 2 for unet, 1000 for the others")
      .range(0, 1e6);
  s.value("channels", channels, "3: colours. 1: brightness").range(1, 3);
  s.value("height", height,
          "Height to which images are scaled. vgg needs at least 32, unet a multiple of 16")
      .unit("pixels")
      .range(1, 65536);
  s.value("width", width, "Width to which images are scaled; limits as for height")
      .unit("pixels")
      .range(1, 65536);
  s.value("base_width", base_width,
          "Channels of the first convolution. All other widths scale with it")
      .range(1, 4096);
}

void OptimizerSection::describe(Section& s) {
  s.value("name", name, "AdamW (Loshchilov and Hutter 2019), with FP32 master weights in BF16 runs")
      .choices({"adamw"});
  s.value("lr", lr, "Maximum learning rate, after the warm-up").above(0);
  s.value("betas", betas, "Decay rates of the first and second moment").range(0, 1);
  s.value("eps", eps, "Added to the square root of the second moment").above(0);
  s.value("weight_decay", weight_decay, "Decoupled decay of matrices; norms and biases have none")
      .range(0, 10);
}

void ScheduleSection::describe(Section& s) {
  s.value("warmup_steps", warmup_steps, "Steps of linear warm-up from zero")
      .unit("steps")
      .range(0, kManySteps);
  s.value("decay", decay,
          "Decay after the warm-up. cosine and linear: to the end of the run. wsd: constant, then "
          "linear over the last part. constant: no decay")
      .choices({"cosine", "linear", "wsd", "constant"});
  s.value("min_lr_ratio", min_lr_ratio,
          "Learning rate at the end of the decay, as a share of optimizer.lr")
      .range(0, 1);
  s.value("decay_fraction", decay_fraction, "wsd: share of the run that decays, at its end")
      .range(0, 1);
}

void PrecisionSection::describe(Section& s) {
  s.value("recipe", recipe,
          fmt::format("auto: bf16 if a 50 ms probe of matrix products measures it as faster, else "
                      "fp32. fp64: for exactness tests. The other recipes compute in bf16 and "
                      "quantize the Linears of all blocks: {}; or a recipe of precision.recipes. "
                      "A recommender takes auto, fp32 and bf16",
                      fmt::join(quantizing_recipes(), "; ")));
  s.value("gemm", gemm,
          "Products of quantized Linears. emulated: multiply the decoded numbers, on any device. "
          "native: multiply the codes by cuBLASLt, for MXFP8 on GPUs of compute capability 10 and "
          "later (compiles, never run)")
      .choices({"emulated", "native"});
  s.list("override", overrides, "Linears with another recipe. The last match applies");
  s.list("recipes", recipes, "Recipes of your own");
}

void PrecisionOverride::describe(Section& s) {
  s.value("layers", layers,
          "Globs over the names of Linears, such as \"blocks.0.*\" or \"*.ffn.down\"")
      .required();
  s.value("tensors", tensors, "Tensors of these Linears: weight, activation, gradient");
  s.value("recipe", recipe, "bf16 (not quantized), or a quantizing recipe as in precision.recipe")
      .required();
}

void MemorySection::describe(Section& s) {
  s.value(
      "budget", budget,
      "Maximum memory of a training step: bytes (6GiB), or a share of the step's peak with "
      "everything kept (0.5x). On a CPU the process grows by that much above its size before the "
      "model, and by at most 64 MiB more. On a GPU it is memory of the card. The first three steps "
      "are recorded, and the planner then "
      "decides what to keep, recompute or offload. Empty: no plan");
  s.value(
      "folder", folder,
      "Folder on a disk, or in a slower memory, to offload tensors to. Empty: no tensor is "
      "offloaded. With a folder the memory of the first three steps lies in a file there. A GPU "
      "offloads to memory of the CPU, without a folder");
  s.value("host_bytes", host_bytes, "Maximum bytes of offloaded tensors (20GiB). Empty: no limit");
  s.value(
       "allow", allow,
       "Techniques that a plan may use. auto: all that change no result. offload: copy to "
       "memory.folder, on a GPU to memory of the CPU. recompute: repeat an operation in backward. "
       "compress: keep microscaling "
       "codes of a tensor if all its later readers quantize it to the same codes. Two techniques "
       "change results, from the fourth step on. algorithms: convolutions run by algorithms that "
       "need less memory or time, and round differently. compress_mxfp8: activations may wait "
       "for backward in MXFP8")
      .choices({kTechniques.begin(), kTechniques.end()});
  s.value("solve_s", solve_s, "Time limit of the search for the fastest plan")
      .unit("s")
      .range(0.1, 3600);
}

void CheckpointSection::describe(Section& s) {
  s.value("every_steps", every_steps,
          "Steps between checkpoints; the last step is saved as well. end: only the last step. 0: "
          "no checkpoint, so the run cannot be resumed, measured or exported")
      .unit("steps")
      .range(0, kManySteps)
      .word("end", kEnd);
  s.value("keep", keep,
          "Newest checkpoints to keep, in addition to the checkpoints that they build on")
      .range(1, 1e6);
  s.value("full_every", full_every,
          "Interval of full checkpoints of a recommender. The first checkpoint of a process is "
          "full. Checkpoints between full ones are deltas: they hold only table rows that changed "
          "since the previous checkpoint. 1: all are full")
      .range(1, 1e6);
  s.value("writers", writers,
          "Ranks that write a checkpoint. all: each rank writes a part, so all ranks must share "
          "the run's folder. first: rank 0 gathers all tensors and writes them")
      .choices({"all", "first"});
}

void EvalSection::describe(Section& s) {
  s.value("every_steps", every_steps,
          "Steps between evaluations on the validation split; 0: only at the end")
      .unit("steps")
      .range(0, kManySteps);
  s.value("max_tokens", max_tokens,
          "Tokens of the validation split that an evaluation reads while training. The last "
          "evaluation reads all tokens. 0: always all")
      .unit("tokens")
      .range(0, 1e15);
  s.value("max_rows", max_rows,
          "Validation rows of a recommender that an evaluation reads while training, from the "
          "first. The last evaluation reads all rows. With rows.day: the first rows of each day. "
          "0: always all")
      .unit("rows")
      .range(0, 1e15);
}

void LogSection::describe(Section& s) {
  s.value("tensorboard", tensorboard, "Write TensorBoard event files");
  s.value("quantization_every", quantization_every,
          "Steps between records of quantization statistics of each tensor, if Linears are "
          "quantized; 0: none")
      .unit("steps")
      .range(0, kManySteps);
  s.value("experts_every", experts_every,
          "Steps between records of the load of the experts, if there are any; 0: none")
      .unit("steps")
      .range(0, kManySteps);
  s.value("tables_every", tables_every,
          "Steps between records of keys admitted, refused and evicted, if tables have no fixed "
          "vocabulary; 0: none")
      .unit("steps")
      .range(0, kManySteps);
  s.value("trace_steps", trace_steps, "Steps recorded as Chrome/Perfetto traces, trace-<step>.json")
      .unit("steps")
      .range(1, kManySteps);
  s.value("sample_prompts", sample_prompts,
          "Prompts that the trained model continues at the end, for the report");
  s.value("sample_tokens", sample_tokens, "Length of a sample").unit("tokens").range(1, 1e6);
}

void RunConfig::describe(Section& s) {
  s.section("run", run, "Name, folder, seed, device and threads of the run");
  s.section("model", model, "The transformer. A preset gives the defaults of the other keys");
  s.section("data", data, "Text, tokenizer and mixture");
  s.section("recommender", recommender,
            "A model of events in place of a transformer. [rows] names its input");
  s.section("rows", rows, "The table that a recommender learns from");
  s.section("embedding", embedding, "The tables of a recommender's sparse features");
  s.section("vision", vision,
            "A convolutional network for images in place of a transformer. [images] names its "
            "input");
  s.section("images", images, "The images and targets that a vision model learns from");
  s.section("train", train, "Length, batch and limits of the run");
  s.section("optimizer", optimizer, "Update of the weights");
  s.section("schedule", schedule, "Learning rate over the run");
  s.section("precision", precision, "Number formats of training");
  s.section("memory", memory, "Training within a memory budget (docs/design/plan.md)");
  s.section("checkpoint", checkpoint, "Checkpoints of the run");
  s.section("eval", eval, "Validation while training");
  s.section("log", log, "Events, traces and samples");
  s.section("comm", comm, "Communication between ranks");
  s.section("parallel", parallel, "Optimizer state, gradients and experts over ranks");
  s.section("balance", balance, "Uneven shares of a step for ranks or executors of unequal speed");
}

}  // namespace dovetail::train
