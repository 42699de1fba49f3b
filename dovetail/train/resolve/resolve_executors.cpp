#include "dovetail/train/resolve/resolve_executors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "dovetail/base/error.h"
#include "dovetail/base/gpu.h"
#include "dovetail/base/log.h"
#include "dovetail/base/machine.h"
#include "dovetail/train/numerics/quantization.h"
#include "dovetail/train/resolve/resolve.h"

namespace dovetail::train {
namespace {

std::vector<jobs::ExecutorSpec> executors_in(const RunConfig& config) {
  return jobs::parse_executors(config.run.device, "run.device");
}

std::string list_text(const std::vector<jobs::ExecutorSpec>& executors) {
  return fmt::format("{}", fmt::join(jobs::executor_names(executors), ","));
}

/// Throws UserError for lists without an owner, or with too few or too many devices.
void check_device_list(const std::vector<jobs::ExecutorSpec>& executors,
                       const std::string& device) {
  const auto is_gpu = [](const jobs::ExecutorSpec& executor) { return executor.device.is_cuda(); };
  const auto gpus = std::ranges::count_if(executors, is_gpu);
  if (executors.size() < 2)
    throw UserError(fmt::format("run.device = \"{}\" names one executor", device),
                    is_gpu(executors.front())
                        ? "for one GPU use run.device = \"cuda\" (CUDA_VISIBLE_DEVICES chooses it)"
                        : "for one group of cores use run.device = \"cpu\" with run.threads");
  if (gpus > 1)
    throw UserError(fmt::format("run.device = \"{}\" names {} GPUs", device, gpus),
                    "GPUs train as ranks: use run.device = \"cuda\" and `dovetail launch`");
  if (gpus == 1 && !is_gpu(executors.front())) {
    std::vector<jobs::ExecutorSpec> sorted = executors;
    std::stable_partition(sorted.begin(), sorted.end(), is_gpu);
    throw UserError(
        fmt::format("run.device = \"{}\": the first executor holds weights and optimizer, which "
                    "belong on the GPU",
                    device),
        fmt::format("name the GPU first: run.device = \"{}\"", list_text(sorted)));
  }
}

/// Throws UserError if executors cannot share the steps of this run.
void check_sharing(const RunConfig& config) {
  const auto refuse = [&](bool there, const std::string& what, const char* why, const char* help) {
    if (there)
      throw UserError(fmt::format("run.device = \"{}\" does not work with {}: {}",
                                  config.run.device, what, why),
                      help);
  };
  const char* const one_device = "name one device, for example run.device = \"cpu\"";
  refuse(config.kind() == RunKind::kRecommender,
         fmt::format("recommender.model = \"{}\"", config.recommender.model),
         "executors share the steps of a GPT; tables and their updates are on one device",
         one_device);
  refuse(config.kind() == RunKind::kVision,
         fmt::format("vision.model = \"{}\"", config.vision.model),
         "executors share the steps of a GPT", one_device);
  refuse(config.model.moe.experts > 0 && config.model.moe.load_scope == "global_batch",
         "model.moe.load_scope = \"global_batch\"",
         "a micro-batch would need the loads of the micro-batches before it, on other executors",
         "use \"sequence\" or \"micro_batch\"");
  refuse(config.balance.mode == "off", "balance.mode = \"off\"",
         "it leaves open how many micro-batches each executor computes",
         "set balance.mode = \"auto\", or \"fixed\" with balance.shares, and train.micro_batch");
  refuse(!config.memory.budget.empty(), fmt::format("memory.budget = \"{}\"", config.memory.budget),
         "a plan is for the memory of one device", "leave memory.budget out, or name one device");
  refuse(config.run.threads != 0, fmt::format("run.threads = {}", config.run.threads),
         "the list has the threads of each executor", "leave run.threads out");
  refuse(quantizes(config.precision),
         fmt::format("precision.recipe = \"{}\" or an override that quantizes",
                     config.precision.recipe),
         "statistics and scales of quantizers belong to one device",
         "use precision.recipe = \"fp32\" or \"bf16\" without such overrides");
  refuse(config.run.cuda_graph == "on", "run.cuda_graph = \"on\"",
         "a graph holds the work of one device only",
         "use \"auto\": it records a graph if the GPU ends up alone");
}

}  // namespace

void check_executors(const RunConfig& config) {
  if (!config.run.names_executors()) return;
  const std::string& device = config.run.device;
  if (device.find(':') == std::string::npos)
    throw UserError(fmt::format("run.device = \"{}\" is no device", device),
                    "use \"auto\", \"cpu\", \"cuda\", or executors that share each step, for "
                    "example \"cuda:0,cpu:8\"");
  const std::vector<jobs::ExecutorSpec> executors = executors_in(config);
  check_device_list(executors, device);
  check_sharing(config);
  const auto count = std::ssize(executors);
  const std::vector<int64_t>& shares = config.balance.shares;
  user_check(config.balance.mode != "fixed" || std::ssize(shares) == count,
             "balance.shares = [{}] are of {} executors, but run.device = \"{}\" names {}",
             fmt::join(shares, ", "), shares.size(), device, count);
  const int64_t micro_batches = config.train.batch / config.train.micro_batch;
  user_check(micro_batches >= count,
             "train.batch / train.micro_batch = {} / {} leaves some of the {} executors of "
             "run.device = \"{}\" without a micro-batch. Use smaller ones or fewer executors",
             config.train.batch, config.train.micro_batch, count, device);
}

std::vector<jobs::ExecutorSpec> resolve_executors(const RunConfig& config,
                                                  const comm::Group& group) {
  if (!config.run.names_executors()) return {};
  user_check(group.size() == 1,
             "run.device = \"{}\" lists executors of one process, but the job has {} ranks. Start "
             "one process, or name one device for all ranks",
             config.run.device, group.size());
  std::vector<jobs::ExecutorSpec> executors = executors_in(config);
  const c10::Device owner = executors.front().device;
  if (owner.is_cuda()) {
    const std::string reason = load_gpu();
    user_check(reason.empty(),
               "run.device = \"{}\", but {}; name CPU executors only. `dovetail doctor` says what "
               "is missing",
               config.run.device, reason);
    user_check(owner.index() < count_gpus(), "run.device = \"{}\", but this machine has {} GPUs",
               config.run.device, count_gpus());
    use_gpu(owner.index());
  }
  return executors;
}

int owner_threads(const std::vector<jobs::ExecutorSpec>& executors, int cores) {
  if (executors.front().device.is_cpu()) return static_cast<int>(executors.front().threads);
  int64_t taken = 0;
  for (size_t e = 1; e < executors.size(); ++e) taken += executors[e].threads;
  return static_cast<int>(std::max<int64_t>(1, cores - taken));
}

int64_t executor_memory(const ResolvedRun& run, int64_t micro_batches) {
  const models::MemoryEstimate one = memory_with(run, run.micro_batch);
  const int64_t each = one.weights + one.activations + one.workspace +
                       micro_batches * std::max(one.gradients, one.all_gradients);
  return (std::ssize(run.executors) - 1) * each;
}

void log_executors(const ResolvedRun& run) {
  if (run.executors.empty()) return;
  const std::vector<std::string> names = jobs::executor_names(run.executors);
  const Machine here = machine();
  const double one = static_cast<double>(executor_memory(run, 1)),
               two = static_cast<double>(executor_memory(run, 2));
  log_info(
      "executors: {} holds weights and optimizer; beside it {}, with {} of host memory and {} for "
      "each further micro-batch",
      names.front(), fmt::join(std::next(names.begin()), names.end(), ", "), format_bytes(one),
      format_bytes(two - one));
  // Memory of the owner is in it if it is on the CPU.
  const double needed = one + (run.device.is_cpu() ? static_cast<double>(maximum_memory(run)) : 0);
  if (needed > static_cast<double>(here.available_bytes))
    log_warning(
        "executors: they are estimated to need at least {} of host memory, but {} is available. "
        "Lower train.micro_batch, or name fewer executors",
        format_bytes(needed), format_bytes(static_cast<double>(here.available_bytes)));
  int64_t threads = run.executors.front().device.is_cuda() ? 1 : 0;
  for (const jobs::ExecutorSpec& executor : run.executors)
    if (executor.device.is_cpu()) threads += executor.threads;
  if (threads > here.cores)
    log_warning(
        "executors: {} have {} threads{}, but this machine has {} cores; name fewer threads",
        run.config.run.device, threads,
        run.executors.front().device.is_cuda() ? ", with the one that drives the GPU" : "",
        here.cores);
}

}  // namespace dovetail::train
