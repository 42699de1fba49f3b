#include "dovetail/models/gpt.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/types.h>

#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/gpu.h"
#include "dovetail/base/layer_scope.h"
#include "dovetail/base/operation.h"
#include "dovetail/models/activation_recompute.h"
#include "dovetail/models/block.h"
#include "dovetail/ops/functions.h"

namespace dovetail::models {
namespace {

constexpr int64_t kPaddingToken = -100;

void check_tokens(const at::Tensor& tokens, const char* shape) {
  user_check(tokens.dim() == 2 && tokens.scalar_type() == at::kLong,
             "gpt: tokens must be {} int64, but are [{}] {}", shape,
             fmt::join(tokens.sizes(), ", "), c10::toString(tokens.scalar_type()));
}

/// Checks ids on the CPU only. On a GPU, the check would cost a synchronisation in every step.
void check_ids(const at::Tensor& tokens, int64_t vocab_size) {
  if (!tokens.is_cpu() || tokens.numel() == 0) return;
  operation("dovetail::check_ids", {.reads = {tokens}}, [vocab_size](const Operands& inputs) {
    const auto lowest = inputs.reads[0].min().item<int64_t>(),
               highest = inputs.reads[0].max().item<int64_t>();
    user_check(lowest >= 0 && highest < vocab_size, "gpt: token {} is not one of the model's {}",
               lowest < 0 ? lowest : highest, vocab_size);
    return std::vector<at::Tensor>();
  });
}

}  // namespace

struct GPT::State {
  ModelConfig config;
  std::shared_ptr<const moe::ExpertRanks> ranks;
  std::shared_ptr<Embedding> embed, positions;
  std::vector<std::shared_ptr<Block>> blocks;
  std::shared_ptr<Norm> norm;
  std::shared_ptr<mx::Linear> head;  // null: tied

  const at::Tensor& head_weight() const { return head ? head->weight : embed->weight; }

  void prepare(KvCache& cache, const at::Tensor& x_btc) const {
    if (cache.keys.empty()) {
      for (size_t i = 0; i < blocks.size(); ++i) {
        const std::vector<int64_t> shape = {x_btc.size(0), config.context, config.kv_heads,
                                            config.head_dim};
        cache.keys.push_back(at::empty(shape, x_btc.options()));
        cache.values.push_back(at::empty(shape, x_btc.options()));
      }
    }
    user_check(cache.keys.size() == blocks.size() && cache.keys[0].size(0) == x_btc.size(0) &&
                   cache.keys[0].scalar_type() == x_btc.scalar_type(),
               "gpt: the cache holds {} blocks of {} sequences in {}, but {} blocks of {} in {} "
               "are asked for",
               cache.keys.size(), cache.keys[0].size(0), c10::toString(cache.keys[0].scalar_type()),
               blocks.size(), x_btc.size(0), c10::toString(x_btc.scalar_type()));
  }
};

GPT::GPT(const ModelConfig& config, c10::Device device,
         std::shared_ptr<const moe::ExpertRanks> ranks)
    : torch::nn::Module("GPT"), state_(std::make_unique<State>()) {
  state_->ranks = std::move(ranks);
  const auto& c = state_->config = config;
  DOVETAIL_CHECK(c.kv_heads > 0 && c.head_dim > 0 && c.ffn_width > 0 && c.vocab_size > 0,
                 "GPT takes a config that resolve_model_config has completed");
  state_->embed =
      register_module("embed", std::make_shared<Embedding>(c.vocab_size, c.width, device));
  if (c.positions == "learned") {
    state_->positions =
        register_module("positions", std::make_shared<Embedding>(c.context, c.width, device));
  }
  torch::nn::ModuleList blocks;
  register_module("blocks", blocks);
  for (int64_t i = 0; i < c.layers; ++i) {
    state_->blocks.push_back(std::make_shared<Block>(c, i, device, state_->ranks));
    blocks->push_back(state_->blocks.back());
  }
  state_->norm = register_module("norm", std::make_shared<Norm>(c, device));
  if (!c.tied) {
    state_->head = register_module("head", mx::make_linear({.in = c.width,
                                                            .out = c.vocab_size,
                                                            .is_head = true,
                                                            .name = "head",
                                                            .device = device}));
  }
}

GPT::~GPT() = default;

const ModelConfig& GPT::config() const { return state_->config; }
const std::shared_ptr<const moe::ExpertRanks>& GPT::expert_ranks() const { return state_->ranks; }

std::optional<moe::ExpertSlice> GPT::expert_slice(const std::string& parameter,
                                                  at::IntArrayRef sizes) const {
  const auto name = moe::parse_expert_name(parameter);
  if (!state_->ranks || !name) return std::nullopt;
  return moe::expert_slice(name->rest, sizes, state_->config.activation, state_->ranks->placement,
                           state_->ranks->group->rank());
}

at::Tensor GPT::features(const at::Tensor& tokens, KvCache* cache) {
  return run_blocks(tokens, cache, {}).x;
}

BlockOutput GPT::run_blocks(const at::Tensor& tokens, KvCache* cache, const moe::Pass& pass) {
  check_tokens(tokens, "(batch, tokens)");
  // Calls write the cache in place, which must not connect their graphs.
  const at::AutoGradMode grad_mode(at::GradMode::is_enabled() && cache == nullptr);
  check_ids(tokens, state_->config.vocab_size);
  const auto length = tokens.size(1), begin = cache != nullptr ? cache->length : 0;
  user_check(begin + length <= state_->config.context,
             "gpt: {} tokens are more than model.context = {}", begin + length,
             state_->config.context);
  at::Tensor x_btc;
  {
    const LayerScope part("embed");
    x_btc =
        ops::embedding(state_->embed->weight, copied_to(tokens, state_->embed->weight.device()));
    if (state_->positions) x_btc = x_btc + state_->positions->weight.narrow(0, begin, length);
  }
  moe::Pass of_tokens = pass;
  of_tokens.tokens = tokens;
  of_tokens.first_position = begin;
  at::Tensor router_loss;
  if (cache != nullptr) {
    moe::check_decodes(state_->config.moe);
    state_->prepare(*cache, x_btc);
    for (size_t i = 0; i < state_->blocks.size(); ++i) {
      CacheSlot slot{cache->keys[i], cache->values[i], begin};
      x_btc = state_->blocks[i]->forward(x_btc, of_tokens, &slot).x;
    }
    cache->length += length;
  } else {
    for (const auto& block : state_->blocks) {
      // An input without gradient (a frozen embedding) cannot start a block's backward. Its block
      // keeps its activations.
      const bool recompute =
          checkpoint_activations && at::GradMode::is_enabled() && x_btc.requires_grad();
      const BlockOutput made = recompute ? checkpointed_forward(block, x_btc, of_tokens)
                                         : block->forward(x_btc, of_tokens);
      x_btc = made.x;
      if (made.router_loss.defined())
        router_loss = router_loss.defined() ? router_loss + made.router_loss : made.router_loss;
    }
  }
  const LayerScope part("norm");
  return {state_->norm->forward(x_btc), router_loss};
}

at::Tensor GPT::head_logits(const at::Tensor& features) {
  const auto logits = state_->head ? state_->head->forward(features)
                                   : dovetail::ops::linear(features, state_->embed->weight);
  return logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
}

LossSum GPT::loss(const at::Tensor& tokens, const moe::Pass& pass) {
  check_tokens(tokens, "(batch, tokens + 1)");
  user_check(tokens.size(1) >= 2, "gpt: tokens of a loss are [{}]; each row needs at least 2",
             fmt::join(tokens.sizes(), ", "));
  const auto length = tokens.size(1) - 1;
  const auto targets = tokens.narrow(1, 1, length);
  const auto padding = tokens == kPaddingToken;
  const auto inputs = tokens.narrow(1, 0, length).masked_fill(padding.narrow(1, 0, length), 0);
  moe::Pass of_loss = pass;
  of_loss.measuring = !pass.training;
  const auto [x_btc, router_loss] = run_blocks(inputs, nullptr, of_loss);
  const LayerScope part("head");
  const auto sum = dovetail::ops::linear_cross_entropy(
      x_btc.reshape({-1, state_->config.width}), state_->head_weight(),
      copied_to(targets.reshape({-1}), x_btc.device()));
  // Counting tokens on a GPU would wait for the GPU.
  const int64_t num_targets = tokens.is_cuda() ? 0 : count_targets(tokens);
  if (!router_loss.defined()) return {sum, num_targets, {}};
  // A tensor, since a recorded step has another number of targets in each replay.
  // On the CPU it is a scalar that a GPU takes without waiting.
  const at::Tensor weight = targets.ne(kPaddingToken).sum().to(router_loss.scalar_type());
  return {sum, num_targets, router_loss * weight};
}

int64_t count_targets(const at::Tensor& tokens) {
  check_tokens(tokens, "(batch, tokens + 1)");
  const at::Tensor targets = tokens.narrow(1, 1, tokens.size(1) - 1);
  // Nothing can be counted on the meta device: all targets count.
  if (tokens.is_meta()) return targets.numel();
  const c10::impl::ExcludeDispatchKeyGuard not_recorded(c10::DispatchKey::Fake);
  return targets.ne(kPaddingToken).sum().item<int64_t>();
}

at::Tensor GPT::logits(const at::Tensor& tokens) { return head_logits(features(tokens)); }

at::Tensor GPT::logits_with_cache(const at::Tensor& tokens, KvCache& cache) {
  const at::NoGradGuard no_grad;
  return head_logits(features(tokens, &cache));
}

void GPT::set_compute_dtype(at::ScalarType dtype) {
  user_check(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kDouble,
             "gpt: {} is not a compute dtype; use float32, bfloat16 or float64",
             c10::toString(dtype));
  const auto wide_dtype = dtype == at::kBFloat16 ? at::kFloat : dtype;
  for (const auto& module : modules(/*include_self=*/false)) {
    const bool stays_wide = module->as<Norm>() != nullptr || module->as<moe::Router>() != nullptr;
    const auto target = stays_wide ? wide_dtype : dtype;
    for (auto& parameter : module->parameters(/*recurse=*/false)) {
      if (parameter.scalar_type() == target) continue;
      parameter.mutable_grad().reset();
      parameter.set_data(parameter.detach().to(target));
    }
  }
}

}  // namespace dovetail::models
