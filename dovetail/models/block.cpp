#include "dovetail/models/block.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <utility>

#include "dovetail/base/layer_scope.h"
#include "dovetail/ops/functions.h"

namespace dovetail::models {

Norm::Norm(const ModelConfig& config, c10::Device device)
    : rms_(config.norm == "rmsnorm"), eps_(config.norm_eps) {
  const auto options = torch::dtype(torch::kFloat32).device(device);
  weight = register_parameter("weight", torch::empty({config.width}, options));
  if (config.bias && !rms_)
    bias = register_parameter("bias", torch::empty({config.width}, options));
}

std::shared_ptr<const ops::RowOperation> Norm::operation() const {
  return rms_ ? ops::rms_norm_operation(weight, eps_)
              : ops::layer_norm_operation(weight, bias, eps_);
}

ops::NormedSum Norm::of_sum(const at::Tensor& x, const at::Tensor& branch) const {
  return rms_ ? ops::rms_norm_of_sum(x, branch, weight, eps_)
              : ops::layer_norm_of_sum(x, branch, weight, bias, eps_);
}

Embedding::Embedding(int64_t rows, int64_t width, c10::Device device) {
  weight = register_parameter(
      "weight", torch::empty({rows, width}, torch::dtype(torch::kFloat32).device(device)));
}

Attention::Attention(const ModelConfig& config, const std::string& name, c10::Device device)
    : heads_(config.heads),
      kv_heads_(config.kv_heads),
      head_dim_(config.head_dim),
      rotary_dim_(rotary_dim(config)),
      theta_(config.rotary_theta) {
  qkv_ = register_module("qkv", mx::make_linear({.in = config.width,
                                                 .out = (heads_ + 2 * kv_heads_) * head_dim_,
                                                 .bias = config.bias,
                                                 .name = name + ".qkv",
                                                 .device = device}));
  out_ =
      register_module("out", mx::make_linear({.in = heads_ * head_dim_,
                                              .out = config.width,
                                              .bias = config.bias,
                                              .name = name + ".out",
                                              .device = device,
                                              .input_stays = true}));  // attention keeps its result
}

at::Tensor Attention::forward(const at::Tensor& x_btc,
                              const std::shared_ptr<const ops::RowOperation>& norm,
                              CacheSlot* slot) {
  const auto batch = x_btc.size(0), tokens = x_btc.size(1);
  const ops::AttentionOptions options{.rotary_dim = rotary_dim_, .theta = theta_};
  const at::Tensor qkv = qkv_->forward(x_btc, norm);
  at::Tensor mixed;
  if (slot == nullptr) {
    mixed = ops::attention(qkv, heads_, kv_heads_, options);
  } else {
    const auto parts = qkv.view({batch, tokens, heads_ + 2 * kv_heads_, head_dim_})
                           .split_with_sizes({heads_, kv_heads_, kv_heads_}, 2);
    auto q = parts[0], k = parts[1];
    if (rotary_dim_ > 0) {
      q = ops::rotate(q, slot->length, options);
      k = ops::rotate(k, slot->length, options);
    }
    const auto end = slot->length + tokens;
    slot->keys.narrow(1, slot->length, tokens).copy_(k);
    slot->values.narrow(1, slot->length, tokens).copy_(parts[2]);
    mixed = ops::attention(q, slot->keys.narrow(1, 0, end), slot->values.narrow(1, 0, end));
  }
  return out_->forward(mixed.reshape({batch, tokens, heads_ * head_dim_}));
}

Block::Block(const ModelConfig& config, int64_t index, c10::Device device,
             std::shared_ptr<const moe::ExpertRanks> ranks)
    : name_(fmt::format("blocks.{}", index)) {
  attention_norm_ = register_module("attention_norm", std::make_shared<Norm>(config, device));
  attention_ = register_module("attention",
                               std::make_shared<Attention>(config, name_ + ".attention", device));
  ffn_norm_ = register_module("ffn_norm", std::make_shared<Norm>(config, device));
  if (moe::has_experts(config.moe, index)) {
    moe_ =
        register_module("moe", std::make_shared<moe::Layer>(
                                   config.moe, moe::Layer::Options{.width = config.width,
                                                                   .activation = config.activation,
                                                                   .bias = config.bias,
                                                                   .name = name_ + ".moe",
                                                                   .device = device,
                                                                   .ranks = std::move(ranks)}));
  } else {
    ffn_ = register_module("ffn", std::make_shared<mx::FeedForward>(
                                      mx::FeedForward::Options{.in = config.width,
                                                               .width = config.ffn_width,
                                                               .activation = config.activation,
                                                               .bias = config.bias,
                                                               .name = name_ + ".ffn",
                                                               .device = device}));
  }
}

BlockOutput Block::forward(const at::Tensor& x_btc, const moe::Pass& pass, CacheSlot* slot) {
  const LayerScope block(name_);
  // A GPU has one kernel for a residual sum and its norm. On a CPU, a Linear computes the norm's
  // rows while it quantizes them.
  const bool joins_sums = x_btc.is_cuda();
  ops::NormedSum residual{.sum = x_btc, .normal = {}};
  at::Tensor branch;
  {
    const LayerScope part("attention");
    if (joins_sums) {
      residual = attention_norm_->of_sum(x_btc, {});
      branch = attention_->forward(residual.normal, nullptr, slot);
    } else {
      residual.sum = x_btc + attention_->forward(x_btc, attention_norm_->operation(), slot);
    }
  }
  const LayerScope part(ffn_ ? "ffn" : "moe");
  if (joins_sums) residual = ffn_norm_->of_sum(residual.sum, branch);
  const at::Tensor& x = residual.sum;
  if (ffn_) {
    const at::Tensor y =
        joins_sums ? ffn_->forward(residual.normal) : ffn_->forward(x, ffn_norm_->operation());
    return {x + y, {}};
  }
  // Router and experts read the result of the norm.
  const moe::Layer::Output made =
      moe_->forward(joins_sums ? residual.normal : ffn_norm_->forward(x), pass);
  return {x + made.y, made.loss};
}

}  // namespace dovetail::models
