#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <string>

#include "dovetail/moe/config.h"
#include "dovetail/moe/pass.h"
#include "dovetail/moe/routing.h"

namespace dovetail::moe {

/// From a token to its experts, as model.moe.router says. Logits are x weight^T, in float32
/// (float64 under float64) whatever the dtype of x.
///
///   top_k          route()
///   noisy_top_k    in training logits + normal noise * (softplus(x noise_weight^T) + 0.01)
///   (Shazeer et al. 2017) sinkhorn, base in training; in evaluation the experts of the largest
///   scores balanced       in turn, whatever the token; in evaluation by its position in the
///   sequence expert_choice  route_by_experts(), over the tokens of one pass: the only one that
///   reads later tokens hash           by the token's id and the layer's name alone, each of weight
///   1 / k
///
/// Parameters: weight (E, C), but for hash; noise_weight (E, C) with noisy_top_k. Buffers: bias (E)
/// float32, zeros at first, with bias_update_rate > 0.
class Router : public torch::nn::Module {
 public:
  /// `config` is a resolved one; `name` that of the layer, "blocks.3.moe".
  Router(const Config& config, int64_t width, const std::string& name, c10::Device device);

  struct Output {
    Routing routing;
    at::Tensor loss;  ///< scalar: the losses with their coefficients, a mean over the tokens;
                      ///< undefined: hash
  };
  /// x (..., C): sequences are along the last dimension but one. With load_scope = "global_batch"
  /// all ranks together.
  Output forward(const at::Tensor& x, const Pass& pass);

  /// Routing of a pass: nothing is dropped in evaluation, but for a loss by eval_capacity_factor.
  RoutingSpec spec_of(const Pass& pass) const;

  /// Before a step's first forward pass: what load_scope = "global_batch" counts begins again.
  void begin_step() { step_counts_.reset(); }

  /// bias += rate sign(mean of counts - counts): auxiliary-loss-free balance (Wang et al. 2024,
  /// DeepSeek-V3). counts (E) float64: choices of each expert in a step, over all ranks.
  void update_bias(const at::Tensor& counts);

  at::Tensor weight, noise_weight;
  at::Tensor bias;  ///< undefined without bias_update_rate

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
  at::Tensor step_counts_;  ///< (E + 1) float64: counted choices of the step, and their sum
};

}  // namespace dovetail::moe
