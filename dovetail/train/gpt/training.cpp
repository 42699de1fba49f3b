#include "dovetail/train/gpt/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/gpu.h"
#include "dovetail/base/log.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/rng.h"
#include "dovetail/base/trace.h"
#include "dovetail/mx/linear.h"
#include "dovetail/ops/cuda_kernels.h"
#include "dovetail/train/gpt/load_model.h"
#include "dovetail/train/gpt/text_samples.h"
#include "dovetail/train/memory/config_section.h"
#include "dovetail/train/metrics/validation.h"
#include "dovetail/train/numerics/model_precision.h"
#include "dovetail/train/run/stored_run.h"

namespace dovetail::train {

namespace {

/// Returns the reason why forward and backward cannot be one CUDA graph; empty if they can.
std::string cuda_graph_obstacle(const ResolvedRun& run, const comm::Group& group,
                                const Quantization& quantization, const moe::Layers& layers) {
  if (!run.device.is_cuda()) return "the run is on the CPU";
  if (ops::cuda_kernels() == nullptr) return "this build has no kernels for the GPU";
  if (!run.config.memory.budget.empty()) return "memory.budget plans each operation";
  if (group.size() > 1) return "ranks exchange gradients while backward runs";
  for (const auto& [name, layer] : layers) {
    std::string reason = layer->graph_obstacle();
    if (!reason.empty()) return reason;
  }
  for (const auto& layer : quantization.layers()) {
    const mx::LinearRecipe& recipe = layer->quantized()->recipe();
    for (const mx::Operand operand : mx::kOperands) {
      if (recipe.of(operand).rounding == mx::Rounding::kStochastic)
        return "stochastic rounding changes its seed from step to step";
    }
  }
  return "";
}

}  // namespace

GptTraining::GptTraining(const ResolvedRun& run, std::shared_ptr<comm::Group> group,
                         RunFolder* folder, bool quiet, RunState state,
                         const std::map<std::string, at::Tensor>& tensors)
    : TrainingLoop(run, std::move(group), std::move(state)), parallel_(run.config, group_) {
  const RunConfig& config = run_.config;
  // On one rank, all training runs on this stream, because a graph can record it. Several ranks
  // keep the default stream, because their communication threads use it, too.
  if (run_.device.is_cuda() && group_->size() == 1 && config.run.cuda_graph != "off")
    use_own_stream();
  const int64_t idle_bytes =
      config.memory.budget.empty() ? 0 : plan::step_device(run_.device).held_bytes();
  std::shared_ptr<plan::PagedAllocations> paged = paged_until_there_is_a_plan(config.memory);
  model_ = std::make_shared<models::GPT>(config.model, c10::kCPU, parallel_.ranks());
  model_->checkpoint_activations = config.train.checkpoint_activations;
  if (!resumed())
    initialize(*model_, static_cast<uint64_t>(config.run.seed), config.train.init_noise);
  OptimizerSharding sharding;
  if (config.parallel.shards())
    sharding = {.group = group_, .bucket_bytes = config.train.bucket_bytes};
  optimizer_.emplace(*model_, config.optimizer, std::move(sharding));
  quantization_.emplace(set_precision(*model_, config.precision, run_.precision.name, run_.device));
  const moe::Layers mixtures = moe::layers_of(*model_);
  if (run_.device.is_cuda() && !config.memory.budget.empty())
    for (const auto& [name, layer] : mixtures) layer->fix_sizes();
  optimizer_->bind(*model_);
  expert_load_.emplace(*model_);
  router_bias_.emplace(*model_);
  plans_.emplace(*model_, config, run_.micro_batch * config.model.context, run_.precision.compute,
                 parallel_, *group_);
  if (folder != nullptr && !quiet && !plans_->choice().empty()) log_info("{}", plans_->choice());
  if (folder != nullptr && !quiet && run_.device.is_cuda() && !mixtures.empty())
    log_info("{}", moe::describe_products(mixtures));
  if (resumed()) restore_from(tensors);
  const std::string no_graph = cuda_graph_obstacle(run_, *group_, *quantization_, mixtures);
  user_check(config.run.cuda_graph != "on" || no_graph.empty(),
             "run.cuda_graph = \"on\", but {}; use \"auto\"", no_graph);
  make_executors();
  step_.emplace(model_, *optimizer_, group_,
                StepOptions{.micro_batch = run_.micro_batch,
                            .clip = config.train.clip,
                            .bucket_bytes = config.train.bucket_bytes,
                            .gradient_groups = parallel_.gradient_groups(*model_),
                            .scatter_gradients = config.parallel.shard == "gradients",
                            .cuda_graph = config.run.cuda_graph != "off" && no_graph.empty(),
                            .sharing = sharing_ ? &*sharing_ : nullptr});
  if (!config.memory.budget.empty()) {
    plan::PlannedStep::Options options = memory_options(std::move(paged));
    options.idle_bytes = static_cast<uint64_t>(idle_bytes);
    options.refuse_at_once = true;
    step_->plan_memory(options);
  }
  loader_.emplace(config.data, data::LoaderOptions{.seed = static_cast<uint64_t>(config.run.seed),
                                                   .batch = config.train.batch,
                                                   .context = config.model.context,
                                                   .total_steps = config.train.steps,
                                                   .rank = group_->rank(),
                                                   .world = group_->size()});
  open_output(folder, quiet);
}

void GptTraining::make_executors() {
  if (run_.executors.empty()) return;
  const RunConfig& config = run_.config;
  const int64_t micro_batches = config.train.batch / run_.micro_batch;
  std::vector<int64_t> shares = config.balance.shares;
  if (config.balance.mode == "auto") {
    shares = jobs::ExecutorShares::resumed(state_.shares, run_.executors.size(), micro_batches);
    executor_shares_.emplace(shares, config.balance.gain);
  }
  std::vector<std::unique_ptr<StepExecutor>> others;
  for (size_t e = 1; e < run_.executors.size(); ++e) {
    auto replica = std::make_shared<models::GPT>(config.model);
    replica->checkpoint_activations = config.train.checkpoint_activations;
    set_precision(*replica, config.precision, run_.precision.name);
    others.push_back(std::make_unique<StepExecutor>(
        std::move(replica), optimizer_->parameters(), model_->buffers(),
        StepExecutor::Options{.threads = run_.executors[e].threads,
                              .micro_batch = run_.micro_batch}));
  }
  sharing_.emplace(std::move(others), std::move(shares), run_.micro_batch, run_.device,
                   moe::layers_of(*model_));
  executor_log_.emplace(jobs::executor_names(run_.executors),
                        run_.micro_batch * config.model.context, config.balance.gain);
}

void GptTraining::restore_from(const std::map<std::string, at::Tensor>& tensors) {
  std::map<std::string, at::Tensor> of_optimizer, of_quantization, of_routers;
  for (const auto& [name, tensor] : tensors) {
    const bool quantizes = name.starts_with(Quantization::kTensorPrefix),
               routes = name.starts_with(RouterBias::kTensorPrefix);
    (quantizes ? of_quantization : routes ? of_routers : of_optimizer)[name] = tensor;
  }
  restore(*optimizer_, *model_, parallel_, of_optimizer, state_.updates, *group_);
  quantization_->load(of_quantization, *group_);
  router_bias_->load(of_routers, *group_);
}

void GptTraining::finish(const RunFolder& folder, bool quiet) {
  // A model with spread experts would need all ranks. Its checkpoint has all experts.
  std::shared_ptr<models::GPT> whole = model_;
  if (model_->expert_ranks() && !config().log.sample_prompts.empty())
    whole = load_model(read_run_or_checkpoint(folder.path())).model;
  auto samples = nlohmann::ordered_json::array();
  for (const Sample& sample : continue_prompts(*whole, store().tokenizer(), config())) {
    samples.push_back({{"prompt", sample.prompt}, {"continuation", sample.continuation}});
    if (!quiet) log_info("--- sample\n{}{}\n---", sample.prompt, sample.continuation);
  }
  folder.write_json("samples.json", samples);
  if (quiet || !executor_log_) return;
  if (const std::string summary = executor_log_->summary(); !summary.empty())
    log_info("{}", summary);
}

StepOutcome GptTraining::train_step(int64_t number, double lr, bool want_stop,
                                    StepTimings& timings) {
  const BatchShares::Range range = shares_.range(group_->rank());
  const double begin_s = now_seconds();
  loader_->set_part(range.begin, range.end);
  const at::Tensor tokens = loader_->step(number - 1);
  timings.data_ms = 1e3 * (now_seconds() - begin_s);
  const uint64_t seed =
      mix_seed(static_cast<uint64_t>(config().run.seed), static_cast<uint64_t>(number));
  quantization_->begin_step(mix_seed(seed, static_cast<uint64_t>(group_->rank())),
                            quantization_report_due(number));
  expert_load_->begin_step();
  const bool shared = sharing_ && sharing_->shared();
  const StepOutcome outcome = step_->run(tokens, lr, want_stop,
                                         {.seed = seed,
                                          .first_sample = range.begin,
                                          .maximum_samples = shares_.maximum_samples(),
                                          .graphed = !quantization_report_due(number)});
  if (!outcome.skipped) {
    quantization_->end_step(*group_);
    router_bias_->end_step(*group_);
  }
  timings.communication_ms = 1e3 * step_->gradients().exposed_s();
  timings.compute_ms = 1e3 * step_->compute_s();
  if (shared) share_anew(number + 1, timings);
  balance((range.size() + run_.micro_batch - 1) / run_.micro_batch, step_->compute_s(), number + 1);
  return outcome;
}

void GptTraining::share_anew(int64_t next, StepTimings& timings) {
  const std::vector<jobs::ExecutorShares::Times> times = sharing_->times();
  const std::vector<int64_t> shares = sharing_->shares();
  timings.executors = executor_log_->add(shares, times);
  if (output() != nullptr && !std::exchange(told_executors_, true))
    output()->write_shares(executor_log_->line(next - 1, shares));
  if (!executor_shares_ || next > total_steps()) return;
  const auto move = executor_shares_->add(times);
  state_.shares = executor_shares_->shares();
  if (!move) return;
  sharing_->set_shares(move->to);
  if (output() == nullptr) return;
  output()->write_shares(executor_log_->line(next, *move));
  for (const std::string& line : executor_log_->words(next, *move)) output()->say(line);
}

void GptTraining::report_step() {
  graph_report_.add(step_->has_graph(), step_->graph_failure(), config().run.cuda_graph,
                    state_.step, output());
  report_quantization();
  report_expert_load();
  const std::string choice = plans_->end_step(state_.step, *group_);
  if (output() != nullptr && !choice.empty()) log_info("{}", choice);
}

std::optional<Validation> GptTraining::evaluate() {
  return validate(*model_, store(), *group_,
                  {.context = config().model.context,
                   .batch = run_.micro_batch,
                   .max_tokens = complete() ? 0 : config().eval.max_tokens});
}

bool GptTraining::quantization_report_due(int64_t step) const {
  const int64_t every = config().log.quantization_every;
  // Each rank counts its own experts.
  const bool here = group_->rank() == 0 || parallel_.ranks();
  if (!here || every == 0 || quantization_->layers().empty()) return false;
  return step % every == 0 || step >= config().train.steps;
}

void GptTraining::report_quantization() {
  if (!quantization_report_due(state_.step)) return;
  const nlohmann::ordered_json statistics =
      parallel_.joined(quantization_->statistics(state_.step));
  if (output() == nullptr) return;
  output()->write_quantization(statistics);
  for (const std::string& line : quantization_->warnings(statistics)) output()->warn(line);
}

void GptTraining::report_expert_load() {
  const int64_t every = config().log.experts_every;
  if (every == 0 || expert_load_->empty() || (state_.step % every != 0 && !complete())) return;
  nlohmann::ordered_json statistics = expert_load_->statistics(state_.step, *group_);
  if (!plans_->empty()) {
    const nlohmann::ordered_json plans = plans_->plans();
    for (size_t i = 0; i < plans.size(); ++i) statistics["layers"][i].update(plans[i]);
    statistics["all_to_all"] = plans_->traffic(state_.step, *group_);
  }
  if (output() != nullptr) output()->write_experts(statistics);
}

std::map<std::string, at::Tensor> GptTraining::checkpoint_tensors() {
  std::map<std::string, at::Tensor> own = quantization_->tensors();
  own.merge(router_bias_->tensors());
  if (!optimizer_->sharded()) own.merge(optimizer_->tensors());
  std::vector<io::CheckpointTensor> all = parallel_.stored(*model_, own);
  if (optimizer_->sharded())
    std::ranges::move(optimizer_->sharded_tensors(), std::back_inserter(all));
  const io::TensorOwners owners = owners_of(std::move(all));
  std::map<std::string, at::Tensor> tensors = parallel_.gathered(*model_, own, owners);
  if (optimizer_->sharded()) tensors.merge(optimizer_->gathered(owners));
  return tensors;
}

nlohmann::json GptTraining::checkpoint_state() const {
  return train::checkpoint_state(state_, run_, &store().tokenizer(), group_->size());
}

}  // namespace dovetail::train
