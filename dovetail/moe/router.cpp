#include "dovetail/moe/router.h"

#include <fmt/format.h>
#include <torch/types.h>

#include "dovetail/base/error.h"
#include "dovetail/base/gpu.h"
#include "dovetail/base/operation.h"
#include "dovetail/base/rng.h"
#include "dovetail/moe/balanced_assignment.h"
#include "dovetail/moe/choose.h"
#include "dovetail/moe/draw.h"
#include "dovetail/moe/noisy.h"
#include "dovetail/ops/functions.h"

namespace dovetail::moe {

namespace {

constexpr double kLeastNoise = 0.01;

/// Chooses experts for sequences that begin at position `first`. The position alone decides, so
/// decoding with a cache gives the same choices.
at::Tensor choices_by_position(const at::Tensor& logits, int64_t k, int64_t length, int64_t first) {
  const at::Tensor chosen =
      assign_in_turn(first + length, logits.size(1), k, logits.device()).narrow(0, first, length);
  return chosen.repeat({length == 0 ? 0 : logits.size(0) / length, 1});
}

/// Returns relative_load of the first E of `sums` (E + 1), whose last is their sum. Only sums on
/// the CPU are read by the host.
at::Tensor relative_load_of(const at::Tensor& sums, const at::TensorOptions& options) {
  const int64_t experts = sums.size(0) - 1;
  const at::Tensor counts = sums.narrow(0, 0, experts), total = sums[experts];
  if (sums.is_cpu()) return relative_load(counts, total.item<double>(), options);
  return (counts * static_cast<double>(experts) / total).to(options);
}

}  // namespace

Router::Router(const Config& config, int64_t width, const std::string& name, c10::Device device)
    : config_(config), spec_(routing_spec(config)), name_key_(name_key(name)) {
  const auto options = torch::dtype(torch::kFloat32).device(device);
  if (config.router != "hash")
    weight = register_parameter("weight", torch::empty({config.experts, width}, options));
  if (config.router == "noisy_top_k")
    noise_weight =
        register_parameter("noise_weight", torch::empty({config.experts, width}, options));
  if (config.bias_update_rate > 0)
    bias = register_buffer("bias", torch::zeros({config.experts}, options));
}

Router::Output Router::forward(const at::Tensor& x, const Pass& pass) {
  const at::Tensor rows = x.reshape({-1, x.size(-1)});
  return weight.defined() ? by_logits(rows, x.size(-2), pass) : by_hash(rows, pass);
}

RoutingSpec Router::spec_of(const Pass& pass) const {
  RoutingSpec spec = spec_;
  if (pass.training) return spec;
  spec.selection = Selection::kTopK;
  if (pass.measuring && config_.eval_capacity_factor > 0) {
    spec.capacity_factor = config_.eval_capacity_factor;
  } else {
    spec.drop = Drop::kNone;
  }
  return spec;
}

std::string Router::host_obstacle() const {
  if (config_.router == "noisy_top_k" || config_.router == "hash" ||
      spec_.selection == Selection::kSinkhorn || spec_.selection == Selection::kBase ||
      config_.router == "expert_choice")
    return fmt::format("model.moe.router = \"{}\" works on the host", config_.router);
  if (config_.second_expert == "random")
    return "model.moe.second_expert = \"random\" draws on the host";
  if (spec_.drop != Drop::kNone && spec_.capacity == 0 && spec_.capacity_factor <= 0)
    return fmt::format("model.moe.capacity_factor = {} makes the host read the largest load",
                       spec_.capacity_factor);
  return "";
}

Router::Output Router::by_hash(const at::Tensor& rows, const Pass& pass) const {
  DOVETAIL_CHECK(pass.tokens.defined() && pass.tokens.numel() == rows.size(0),
                 "hash routing of {} rows has {} tokens", rows.size(0),
                 pass.tokens.defined() ? pass.tokens.numel() : 0);
  const auto dtype = rows.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor logits =
      at::zeros({rows.size(0), config_.experts}, rows.options().dtype(dtype).requires_grad(false));
  const at::Tensor chosen = rows.is_meta()
                                ? at::empty({rows.size(0), spec_.k}, rows.options().dtype(at::kInt))
                                : hashed(pass.tokens, rows.device());
  Output out;
  out.routing = route(logits, spec_of(pass), {.chosen = chosen});
  out.routing.weight =
      (out.routing.slot >= 0).to(dtype) * (spec_.scale / static_cast<double>(spec_.k));
  return out;
}

at::Tensor Router::hashed(const at::Tensor& tokens, at::Device device) const {
  return operation(
      "dovetail::moe_hash_choices", {.reads = {tokens}},
      [key = name_key_, experts = config_.experts, k = spec_.k, device](const Operands& inputs) {
        return std::vector{copied_to(hash_choices(key, inputs.reads[0].cpu(), experts, k), device)};
      })[0];
}

Router::Output Router::by_logits(const at::Tensor& rows, int64_t sequence, const Pass& pass) {
  const at::Tensor x = rows.to(weight.scalar_type());
  const at::Tensor logits = dovetail::ops::linear(x, weight);
  Output out;
  if (config_.router == "expert_choice") {
    out.routing = route_by_experts(logits, spec_.k, spec_.scale);
    out.loss = config_.z_loss * out.routing.z_loss;
    return out;
  }
  RoutingSpec spec = spec_of(pass);
  if (config_.load_scope == "sequence") spec.sequence = sequence;
  RoutingInputs inputs = {.bias = bias, .draw = draws(pass, rows)};
  if (!pass.training && spec_.selection == Selection::kBalanced)
    inputs.chosen = choices_by_position(logits, spec_.k, sequence, pass.first_position);
  if (noise_weight.defined() && pass.training) {
    const at::Tensor scale = at::softplus(dovetail::ops::linear(x, noise_weight)) + kLeastNoise;
    const at::Tensor noise = this->noise(pass, logits);
    out.routing = route(logits + noise * scale, spec, inputs);
    out.loss = config_.importance_loss *
                   importance_loss(out.routing.weight, out.routing.expert, config_.experts) +
               config_.smooth_load_loss * smooth_load_loss(logits, noise, scale, spec.k);
  } else {
    out.routing = route(logits, spec, inputs);
  }
  const at::Tensor losses =
      config_.load_loss * load_loss(out.routing, pass) + config_.z_loss * out.routing.z_loss;
  out.loss = out.loss.defined() ? out.loss + losses : losses;
  return out;
}

at::Tensor Router::draws(const Pass& pass, const at::Tensor& rows) const {
  if (!pass.training || config_.second_expert != "random") return {};
  return operation("dovetail::moe_uniform_draws", {},
                   [seed = pass.seed, key = name_key_, first = pass.first_token,
                    tokens = rows.size(0), device = rows.device()](const Operands&) {
                     const uint64_t own = mix_seed(seed.now(), key);
                     return std::vector{copied_to(uniform_draws(own, first, tokens), device)};
                   })[0];
}

at::Tensor Router::noise(const Pass& pass, const at::Tensor& logits) const {
  const auto drawn = operation(
      "dovetail::moe_normal_draws", {},
      [seed = pass.seed, key = name_key_, first = pass.first_token, tokens = logits.size(0),
       experts = config_.experts, device = logits.device()](const Operands&) {
        const uint64_t own = mix_seed(seed.now(), key);
        return std::vector{copied_to(normal_draws(own, first, tokens, experts), device)};
      });
  return drawn[0].to(logits.scalar_type());
}

at::Tensor Router::load_loss(const Routing& routing, const Pass& pass) {
  if (!pass.training || config_.load_scope != "global_batch") return routing.load_loss;
  const int64_t counted = spec_.load_count == LoadCount::kFirstChoice ? 1 : spec_.k;
  // Runs exactly once in a step, even in a recomputation: the next micro-batch changes the sums.
  const at::Tensor load = operation_once(
      "dovetail::moe_load_of_batch", {.reads = {routing.expert.narrow(1, 0, counted)}},
      [this, sum_over_ranks = pass.sum_over_ranks, again = pass.again,
       options = routing.mean_score.options()](const Operands& inputs) {
        if (!again) {
          const UnrecordedAllocations of_the_sums;
          at::Tensor counts = count_choices(inputs.reads[0], config_.experts).to(at::kDouble);
          if (sum_over_ranks) counts = counts.cpu();  // ranks exchange it there
          at::Tensor sums = at::cat({counts, counts.sum().view({1})});
          if (sum_over_ranks) sum_over_ranks(sums);
          step_counts_ = step_counts_.defined() ? step_counts_ + sums : sums;
        }
        return std::vector{relative_load_of(step_counts_, options)};
      })[0];
  return load.dot(routing.mean_score);
}

void Router::update_bias(const at::Tensor& counts) {
  const at::NoGradGuard no_grad;
  bias.add_(at::sign(counts.mean() - counts).to(bias.options()), config_.bias_update_rate);
}

}  // namespace dovetail::moe
