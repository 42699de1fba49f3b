#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dovetail/models/config.h"
#include "dovetail/models/loss.h"
#include "dovetail/moe/parallel_experts.h"
#include "dovetail/moe/pass.h"

namespace dovetail {

struct BlockOutput;

/// Keys (rotated) and values of earlier positions, for decoding: one pair (B, S, Hkv, D) a block,
/// filled up to `length`. Starts empty; `features` allocates S = the model's context.
struct KvCache {
  std::vector<at::Tensor> keys, values;
  int64_t length = 0;
};

/// Decoder-only transformer. Legend: B batch, T tokens, C width, H heads, D head_dim, V vocab.
///
/// x = embed[tokens] (+ positions); for each block x += attention(norm(x)), x += ffn(norm(x));
/// logits = head(norm(x)). Parameters: embed.weight (V, C), positions.weight (context, C; learned
/// positions only), blocks.<i>.attention_norm, blocks.<i>.attention.qkv ((H + 2 Hkv) D, C),
/// blocks.<i>.attention.out (C, H D), blocks.<i>.ffn_norm, blocks.<i>.ffn.up (F or, gate then up, 2
/// F, C), blocks.<i>.ffn.down (C, F), or blocks.<i>.moe.router.weight (E, C) and .experts.<e>.up,
/// .down and .shared.up, .down in their place, norm, head.weight (V, C; untied only), each .weight
/// and, where the config has biases, .bias.
///
/// With a cache as without: the experts of a token never depend on later ones. Routers that break
/// this throw UserError where there is a cache (moe::check_decodes).
///
/// Token ids may stand on the CPU whatever the model's device; they are moved. Shapes that do not
/// fit, sequences longer than the context and unknown ids (checked where the tokens are on the CPU)
/// throw UserError.
class GPT : public torch::nn::Module {
 public:
  /// Every size in `config` resolved (see resolve_model_config); parameters float32, uninitialised;
  /// on the meta device they take no memory. With `ranks` the experts are spread over them, and all
  /// ranks call the model together.
  explicit GPT(const ModelConfig& config, c10::Device device = c10::kCPU,
               std::shared_ptr<const moe::ExpertRanks> ranks = nullptr);
  ~GPT() override;

  /// tokens (B, T + 1) int64: predicts tokens[:, 1:] from tokens[:, :-1]. -100 is padding: as a
  /// target it is left out of sum and weight, as an input it reads as token 0. Tokens on a GPU are
  /// not counted, which would wait for it: their weight is 0.
  ///
  /// In a recorded step (base/operation.h) the weight is that of the recorded tokens: count it with
  /// `count_targets`.
  LossSum loss(const at::Tensor& tokens, const moe::Pass& pass = {});

  /// (B, T) int64 -> logits (B, T, V) float32 (float64 under float64).
  at::Tensor logits(const at::Tensor& tokens);
  /// The same for the newest tokens only, reading and extending `cache`.
  at::Tensor logits_with_cache(const at::Tensor& tokens, KvCache& cache);

  /// What the head reads, (B, T, C), for callers that need few logits of many tokens; `cache` as
  /// above, not differentiable then.
  at::Tensor features(const at::Tensor& tokens, KvCache* cache = nullptr);
  at::Tensor head_logits(const at::Tensor& features);  ///< (..., C) -> (..., V) float32

  /// Recompute each block in backward instead of keeping its activations.
  bool checkpoint_activations = false;

  /// The dtype of the matrices with their biases (Linear and embedding weights) and of the
  /// activations: float32 (default), bfloat16, or float64 for exactness tests. Norm weights and
  /// biases stay float32 under bfloat16. Drops gradients. The optimizer keeps float32 masters.
  void set_compute_dtype(at::ScalarType dtype);

  const ModelConfig& config() const;
  const std::shared_ptr<const moe::ExpertRanks>& expert_ranks()
      const;  ///< null: all experts are here
  /// What the parameter of this name and size holds of the whole one, where that is spread over
  /// ranks.
  std::optional<moe::ExpertSlice> expert_slice(const std::string& parameter,
                                               at::IntArrayRef sizes) const;

 private:
  /// `features`, and the sum of the routers' losses.
  BlockOutput run_blocks(const at::Tensor& tokens, KvCache* cache, const moe::Pass& pass);

  struct State;
  std::unique_ptr<State> state_;
};

/// Those of tokens[:, 1:] that are not padding; tokens (B, T + 1) int64.
int64_t count_targets(const at::Tensor& tokens);

/// Fills every parameter as a function of (seed, its name, element index): the same for any thread
/// or rank count, dtype and device. Normal with config.init_std; projections into the residual
/// stream scaled by 1 / sqrt(2 layers) (Radford et al. 2019); norms 1, biases 0. `noise` adds as
/// much of every matrix's deviation, from other normal numbers: how far apart do runs end that
/// begin almost alike?
void initialize(GPT& model, uint64_t seed, double noise = 0);

}  // namespace dovetail
