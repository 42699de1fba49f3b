#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <string>

#include "dovetail/moe/config.h"
#include "dovetail/moe/pass.h"
#include "dovetail/moe/routing.h"

namespace dovetail::moe {

/// Router: maps each token to its experts. routing.h explains the terms and `route`. There are T
/// tokens x (T, C) and E experts. Logits (T, E) are x weight^T, in float32 for any dtype of x
/// (float64 for float64). The config key model.moe.router names the method:
///
///   top_k          route()
///   noisy_top_k    route(); in training with noise added to the logits (Shazeer et al. 2017):
///                  logits + normal noise * (softplus(x noise_weight^T) + 0.01)
///   sinkhorn, base route() in training; in evaluation the experts of the largest scores
///   balanced       experts in turn, for any tokens; in evaluation, in turn by the token's position
///                  in its sequence
///   expert_choice  route_by_experts() over the tokens of one pass. Only this method reads tokens
///                  that follow in the sequence
///   hash           the token's id and the layer's name alone decide; each weight is 1 / k
///
/// Parameters: weight (E, C), except for hash; noise_weight (E, C) for noisy_top_k. Buffers: bias
/// (E) float32, initially zeros, if bias_update_rate > 0.
class Router : public torch::nn::Module {
 public:
  /// `config` must be a result of `resolve` (moe/config.h). `width` is C. `name` is the layer's
  /// name, e.g. "blocks.3.moe".
  Router(const Config& config, int64_t width, const std::string& name, c10::Device device);

  struct Output {
    Routing routing;
    /// Scalar: the sum of the router's losses times their coefficients in the config (load_loss,
    /// z_loss and so on). Each loss is a mean over the tokens. Undefined for hash.
    at::Tensor loss;
  };
  /// Routes x (..., tokens of a sequence, C). In training with load_scope = "global_batch" all
  /// ranks call it together.
  Output forward(const at::Tensor& x, const Pass& pass);

  /// Returns the routing options of a pass. Training has the options of the config. Evaluation
  /// always chooses the experts of the largest scores. Its capacity depends on the pass:
  ///
  /// - A validation loss (Pass::measuring) with a positive eval_capacity_factor has a capacity by
  ///   this factor.
  /// - Any other evaluation has no capacity, so it drops no choices.
  RoutingSpec spec_of(const Pass& pass) const;

  /// Returns the reason why the host takes part in routing on a GPU in training. Empty if it only
  /// queues kernels.
  std::string host_obstacle() const;

  /// Resets the counts of choices that load_scope = "global_batch" sums over the micro-batches of a
  /// step. Call it before the step's first forward pass.
  void begin_step() { step_counts_.reset(); }

  /// Updates bias += bias_update_rate * sign(mean of counts - counts). This balances the load
  /// without a loss (Wang et al. 2024, DeepSeek-V3). counts: (E) float64, choices of each expert in
  /// a step, summed over all ranks.
  void update_bias(const at::Tensor& counts);

  at::Tensor weight, noise_weight;
  /// Added to scores only for the choice of experts (RoutingInputs::bias). Undefined if
  /// bias_update_rate is 0.
  at::Tensor bias;

 private:
  Output by_hash(const at::Tensor& rows, const Pass& pass) const;
  Output by_logits(const at::Tensor& rows, int64_t sequence, const Pass& pass);
  /// Returns the experts of `tokens` on `device`, (T, k) int32.
  at::Tensor hashed(const at::Tensor& tokens, at::Device device) const;
  at::Tensor draws(const Pass& pass, const at::Tensor& rows) const;
  at::Tensor noise(const Pass& pass, const at::Tensor& logits) const;
  at::Tensor load_loss(const Routing& routing, const Pass& pass);

  Config config_;
  RoutingSpec spec_;
  uint64_t name_key_;
  at::Tensor
      /// (E + 1) float64: counted choices of each expert in this step so far, then their sum.
      step_counts_;
};

}  // namespace dovetail::moe
