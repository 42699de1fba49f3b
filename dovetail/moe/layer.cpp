#include "dovetail/moe/layer.h"

#include <fmt/format.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/types.h>

#include <algorithm>

#include "dovetail/base/error.h"
#include "dovetail/moe/experts.h"
#include "dovetail/ops/dispatch.h"

namespace dovetail::moe {

Layer::Layer(const Config& config, const Options& options) : config_(config), activation_(options.activation) {
  DOVETAIL_CHECK(config.experts > 0 && config.ffn_width > 0, "{}: {} experts of width {}", options.name, config.experts,
                 config.ffn_width);
  const auto feed_forward = [&](int64_t width, const std::string& name) {
    return std::make_shared<FeedForward>(FeedForward::Options{.in = options.width,
                                                              .width = width,
                                                              .activation = options.activation,
                                                              .bias = options.bias,
                                                              .name = options.name + "." + name,
                                                              .device = options.device});
  };
  router_ = register_module("router", std::make_shared<Router>(config, options.width, options.name, options.device));
  torch::nn::ModuleList experts;
  register_module("experts", experts);
  for (int64_t e = 0; e < config.experts; ++e) {
    experts_.push_back(feed_forward(config.ffn_width, fmt::format("experts.{}", e)));
    experts->push_back(experts_.back());
  }
  if (config.shared_experts > 0)
    shared_ = register_module("shared", feed_forward(config.shared_experts * config.ffn_width, "shared"));
  reset_load();
}

Layer::Output Layer::forward(const at::Tensor& x, const Pass& pass) {
  const at::Tensor rows = x.reshape({-1, x.size(-1)});
  const auto [routing, loss] = router_->forward(x, pass);
  Output out;
  out.loss = loss;
  if (x.is_meta()) {
    out.y = at::empty_like(x);
    return out;
  }
  const Dispatch to = dispatch(routing.expert, routing.slot, config_.experts);
  const auto* count = routing.count.const_data_ptr<int64_t>();
  if (!pass.again) {
    for (size_t e = 0; e < experts_.size(); ++e) {
      load_.count[e] += count[e];
      load_.dropped += count[e];
    }
    load_.dropped -= to.rows();
  }
  const bool quantized = std::ranges::any_of(
      experts_, [](const auto& expert) { return expert->up().quantized() || expert->down().quantized(); });
  at::Tensor y = use_kernel(Kernel::kExperts, rows) && !quantized ? grouped(rows, routing.weight, to)
                                                                  : one_by_one(rows, routing.weight, to);
  y = y.to(x.scalar_type());
  if (shared_) y = y + shared_->forward(rows);
  out.y = y.view(x.sizes());
  return out;
}

at::Tensor Layer::grouped(const at::Tensor& rows, const at::Tensor& weight, const Dispatch& to) const {
  ExpertWeights experts{.activation = activation_};
  for (const auto& expert : experts_) {
    experts.up.push_back(expert->up().weight);
    experts.down.push_back(expert->down().weight);
    if (!expert->up().options().bias) continue;
    experts.up_bias.push_back(expert->up().bias);
    experts.down_bias.push_back(expert->down().bias);
  }
  return feed_forward(rows, weight, to, experts);
}

at::Tensor Layer::one_by_one(const at::Tensor& rows, const at::Tensor& weight, const Dispatch& to) const {
  const at::Tensor weights = weight.reshape({-1, 1});
  at::Tensor y = at::zeros(rows.sizes(), weights.options().requires_grad(false));
  // Experts without a token run too: their gradients are zeros, and every rank has the same ones.
  for (int64_t e = 0; e < config_.experts; ++e) {
    const at::Tensor token = to.of_expert(to.token, e), choice = to.of_expert(to.choice, e);
    const at::Tensor of_expert = experts_[static_cast<size_t>(e)]->forward(rows.index_select(0, token));
    y.index_add_(0, token, of_expert * weights.index_select(0, choice));
  }
  return y;
}

}  // namespace dovetail::moe
