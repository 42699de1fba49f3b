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

namespace dovetail::models {

struct BlockOutput;

/// Keys (rotated) and values of earlier positions, for decoding. Each block has one pair of shape
/// (B, S, Hkv, D), filled up to `length`. Starts empty; `features` allocates S = the model's
/// context.
struct KvCache {
  std::vector<at::Tensor> keys, values;
  int64_t length = 0;
};

/// Decoder-only transformer. Legend: B batch, T tokens, C width, H heads, D head_dim, V vocab, F
/// ffn_width, E experts.
///
/// x = embed[tokens] (+ positions). Each block computes x += attention(norm(x)), x += ffn(norm(x)).
/// logits = head(norm(x)). The parameters are
///
/// - embed.weight (V, C)
/// - positions.weight (context, C), only for learned positions
/// - blocks.<i>.attention_norm
/// - blocks.<i>.attention.qkv ((H + 2 Hkv) D, C)
/// - blocks.<i>.attention.out (C, H D)
/// - blocks.<i>.ffn_norm
/// - blocks.<i>.ffn.up (F, C), or (2 F, C): first the gate, then up
/// - blocks.<i>.ffn.down (C, F)
/// - instead of ffn: blocks.<i>.moe.router.weight (E, C), .experts.<e>.up and .down, .shared.up and
///   .down
/// - norm
/// - head.weight (V, C), only if untied
///
/// Names without a suffix have .weight and, if the config has biases, .bias.
///
/// A cache does not change results: the experts of a token never depend on later tokens. Routers
/// that break this throw UserError if there is a cache (moe::check_decodes).
///
/// Token ids may be on the CPU whatever the model's device; they are copied to it. Throws UserError
/// for wrong shapes, sequences longer than the context and unknown ids. Ids are only checked if the
/// tokens are on the CPU.
class GPT : public torch::nn::Module {
 public:
  /// `config` must be resolved (see resolve_model_config). Parameters are float32 and
  /// uninitialised. On the meta device they take no memory. With `ranks`, the experts are
  /// distributed over these ranks, and all ranks call the model together.
  explicit GPT(const ModelConfig& config, c10::Device device = c10::kCPU,
               std::shared_ptr<const moe::ExpertRanks> ranks = nullptr);
  ~GPT() override;

  /// Returns the loss of predicting tokens[:, 1:] from tokens[:, :-1]; tokens (B, T + 1) int64. The
  /// token -100 is padding. As a target it is left out of sum and weight; as an input it reads as
  /// token 0. Tokens on a GPU are not counted, since counting would wait for the GPU: their weight
  /// is 0.
  ///
  /// In a recorded step (base/operation.h), the weight is the weight of the recorded tokens. Count
  /// the targets with `count_targets` instead.
  LossSum loss(const at::Tensor& tokens, const moe::Pass& pass = {});

  /// Returns the logits of tokens (B, T) int64: (B, T, V) float32 (float64 under float64).
  at::Tensor logits(const at::Tensor& tokens);
  /// Same as `logits` for the newest tokens only. Reads and extends `cache`.
  at::Tensor logits_with_cache(const at::Tensor& tokens, KvCache& cache);

  /// Returns the input of the head, (B, T, C), for callers that need few logits of many tokens.
  /// Reads and extends `cache` if it is given; the result is then not differentiable.
  at::Tensor features(const at::Tensor& tokens, KvCache* cache = nullptr);
  at::Tensor head_logits(const at::Tensor& features);  ///< maps (..., C) to (..., V) float32

  /// True: recompute each block in backward instead of keeping its activations.
  bool checkpoint_activations = false;

  /// Sets the dtype of the activations, of Linear and embedding weights and of Linear biases.
  /// `dtype` is float32 (default), bfloat16, or float64 for exactness tests. Under bfloat16,
  /// weights and biases of norms stay float32. Drops gradients. The optimizer keeps float32
  /// masters.
  void set_compute_dtype(at::ScalarType dtype);

  const ModelConfig& config() const;
  /// Returns the ranks that share the experts, or null if this rank has all experts.
  const std::shared_ptr<const moe::ExpertRanks>& expert_ranks() const;
  /// Returns the slice of the whole parameter that this rank holds, if experts are distributed over
  /// ranks. `parameter` and `sizes` are its name and its shape on this rank. Returns nullopt for a
  /// parameter that is not distributed.
  std::optional<moe::ExpertSlice> expert_slice(const std::string& parameter,
                                               at::IntArrayRef sizes) const;

 private:
  /// Returns `features`, and the sum of the routers' losses.
  BlockOutput run_blocks(const at::Tensor& tokens, KvCache* cache, const moe::Pass& pass);

  struct State;
  std::unique_ptr<State> state_;
};

/// Counts the tokens in tokens[:, 1:] that are not padding; tokens (B, T + 1) int64.
int64_t count_targets(const at::Tensor& tokens);

/// Fills every parameter as a function of (seed, its name, element index). The values do not depend
/// on the number of threads or ranks, on the dtype or on the device. Matrices are normal with
/// config.init_std. Projections into the residual stream are scaled by 1 / sqrt(2 layers) (Radford
/// et al. 2019). Norms are 1, biases 0. `noise` adds other normal numbers to each matrix, with
/// `noise` times its deviation. Use it to measure how far
/// apart runs end if they begin almost alike.
void initialize(GPT& model, uint64_t seed, double noise = 0);

}  // namespace dovetail::models
