#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <string>

#include "dovetail/moe/config.h"
#include "dovetail/moe/pass.h"
#include "dovetail/moe/routing.h"

namespace dovetail::moe {

/// Router: maps each token to its experts by the method model.moe.router. Logits are x weight^T, in
/// float32 for any dtype of x (float64 for float64).
///
///   top_k          route()
///   noisy_top_k    route(); in training with noise added to the logits (Shazeer et al. 2017):
///                  logits + normal noise * (softplus(x noise_weight^T) + 0.01)
///   sinkhorn, base route() in training; in evaluation the experts of the largest scores
///   balanced       in turn, whatever the token; in evaluation by its position in the sequence
///   expert_choice  route_by_experts() over the tokens of one pass; no other method reads later
///                  tokens
///   hash           by the token's id and the layer's name alone; each weight is 1 / k
///
/// Parameters: weight (E, C), except for hash; noise_weight (E, C) for noisy_top_k. Buffers: bias
/// (E) float32, initially zeros, if bias_update_rate > 0.
class Router : public torch::nn::Module {
 public:
  /// `config` must come from `resolve`. `name` is the layer's name, e.g. "blocks.3.moe".
  Router(const Config& config, int64_t width, const std::string& name, c10::Device device);

  struct Output {
    Routing routing;
    /// Scalar: sum of the losses times their coefficients, as a mean over the tokens. Undefined for
    /// hash.
    at::Tensor loss;
  };
  /// Routes x (..., C), whose last dimension but one is the sequence. With load_scope =
  /// "global_batch" all ranks call it together.
  Output forward(const at::Tensor& x, const Pass& pass);

  /// Returns the routing options of a pass. Evaluation drops no choices, except for a loss with
  /// eval_capacity_factor.
  RoutingSpec spec_of(const Pass& pass) const;

  /// Resets the counts of load_scope = "global_batch"; called before a step's first forward pass.
  void begin_step() { step_counts_.reset(); }

  /// Updates bias += rate sign(mean of counts - counts): auxiliary-loss-free balance (Wang et al.
  /// 2024, DeepSeek-V3). counts: (E) float64, choices of each expert in a step, summed over all
  /// ranks.
  void update_bias(const at::Tensor& counts);

  at::Tensor weight, noise_weight;
  at::Tensor bias;  ///< undefined if bias_update_rate is 0

 private:
  Output by_hash(const at::Tensor& rows, const Pass& pass) const;
  Output by_logits(const at::Tensor& rows, int64_t sequence, const Pass& pass);
  at::Tensor hashed(const at::Tensor& tokens) const;
  at::Tensor draws(const Pass& pass, const at::Tensor& rows) const;
  at::Tensor noise(const Pass& pass, const at::Tensor& logits) const;
  at::Tensor load_loss(const Routing& routing, const Pass& pass);

  Config config_;
  RoutingSpec spec_;
  uint64_t name_key_;
  at::Tensor
      /// (E + 1) float64: counted choices of each expert in this step, then their sum.
      step_counts_;
};

}  // namespace dovetail::moe
