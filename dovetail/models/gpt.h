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

/// Keys (rotated) and values of the tokens that the model has read, for decoding. A new cache is
/// empty; `GPT::features` allocates its tensors at the first call.
struct KvCache {
  /// One tensor per block: (B, S, Hkv, D), with S = the model's context.
  std::vector<at::Tensor> keys, values;
  int64_t length = 0;  ///< number of tokens in the cache: positions [0, length) are filled
};

/// Decoder-only transformer. Shapes: B sequences of a batch, T tokens, C width, H heads, Hkv heads
/// of keys and values, D elements of a head, V vocabulary, F ffn_width, E experts.
///
/// x = embed[tokens] (+ positions). Each block computes x += attention(norm(x)), x += ffn(norm(x)).
/// The head computes logits = head(norm(x)). The parameters are
///
/// - embed.weight (V, C)
/// - positions.weight (context, C), only for learned positions
/// - blocks.<i>.attention_norm
/// - blocks.<i>.attention.qkv ((H + 2 Hkv) D, C)
/// - blocks.<i>.attention.out (C, H D)
/// - blocks.<i>.ffn_norm
/// - blocks.<i>.ffn.up (F, C). With swiglu it is (2 F, C): F rows for the gate, then F rows for up.
/// - blocks.<i>.ffn.down (C, F)
/// - in blocks with experts, instead of ffn: blocks.<i>.moe.router.weight (E, C), .experts.<e>.up
///   and .down, .shared.up and .down
/// - norm
/// - head.weight (V, C), only if untied; otherwise the head uses embed.weight
///
/// A name without .weight stands for <name>.weight and, if the config has biases, <name>.bias.
///
/// Results with a KvCache equal the results without one. This requires that the experts of a token
/// do not depend on later tokens. If the config's router needs later tokens, a call with a cache
/// throws UserError (moe::check_decodes).
///
/// Token ids may be on the CPU whatever the model's device; they are copied to it. Functions throw
/// UserError for wrong shapes and for sequences longer than the context. They also throw it for
/// unknown ids, but only if the tokens are on the CPU.
class GPT : public torch::nn::Module {
 public:
  /// `config` must be resolved (resolve_model_config). Parameters are float32 and uninitialised. On
  /// the meta device they take no memory. With `ranks`, the experts are distributed over these
  /// ranks, and all ranks call the model together.
  explicit GPT(const ModelConfig& config, c10::Device device = c10::kCPU,
               std::shared_ptr<const moe::ExpertRanks> ranks = nullptr);
  ~GPT() override;

  /// Returns the loss of predicting tokens[:, 1:] from tokens[:, :-1]; tokens (B, T + 1) int64. The
  /// token -100 is padding. A target that is padding adds nothing to LossSum::sum and
  /// LossSum::weight. An input that is padding is read as token 0. If the tokens are on a GPU, the
  /// weight is 0: counting the targets would wait for the GPU.
  ///
  /// A step may be recorded once and replayed with other tokens (plan/record/capture.h). In
  /// replays, LossSum::weight remains the number of targets in the recorded tokens. Call
  /// `count_targets` for the number in the replayed tokens.
  LossSum loss(const at::Tensor& tokens, const moe::Pass& pass = {});

  /// Returns the logits of tokens (B, T) int64: (B, T, V) float32, or float64 if the model computes
  /// in float64.
  at::Tensor logits(const at::Tensor& tokens);
  /// Returns the logits of `tokens` (B, T), which follow the tokens in `cache`. Adds `tokens` to
  /// the cache. Not differentiable.
  at::Tensor logits_with_cache(const at::Tensor& tokens, KvCache& cache);

  /// Returns the input of the head, (B, T, C), for callers that need few logits of many tokens.
  /// With a `cache`, `tokens` follow the tokens in the cache and are added to it. The result is
  /// then not differentiable.
  at::Tensor features(const at::Tensor& tokens, KvCache* cache = nullptr);
  /// Applies the head to results of `features`: maps (..., C) to logits (..., V), float32 or
  /// float64 as in `logits`.
  at::Tensor head_logits(const at::Tensor& features);

  /// True: recompute each block in backward instead of keeping its activations.
  bool checkpoint_activations = false;

  /// Sets the dtype of the activations, of Linear and embedding weights and of Linear biases.
  /// `dtype` is float32 (default), bfloat16, or float64 for exactness tests. With bfloat16, the
  /// parameters of norms and routers stay float32, and the optimizer keeps float32 masters. Drops
  /// the gradients of parameters whose dtype changes.
  void set_compute_dtype(at::ScalarType dtype);

  const ModelConfig& config() const;
  /// Returns the ranks that share the experts, or null if this rank has all experts.
  const std::shared_ptr<const moe::ExpertRanks>& expert_ranks() const;
  /// Returns the slice of an expert's parameter that this rank holds, if experts are distributed
  /// over ranks. `parameter` and `sizes` are the parameter's name and its shape on this rank.
  /// Returns nullopt for a parameter that is not distributed.
  std::optional<moe::ExpertSlice> expert_slice(const std::string& parameter,
                                               at::IntArrayRef sizes) const;

 private:
  /// Returns the result of `features`, and the sum of the routers' losses.
  BlockOutput run_blocks(const at::Tensor& tokens, KvCache* cache, const moe::Pass& pass);

  struct State;
  std::unique_ptr<State> state_;
};

/// Counts the tokens in tokens[:, 1:] that are not padding; tokens (B, T + 1) int64.
int64_t count_targets(const at::Tensor& tokens);

/// Initializes every parameter as a function of (seed, its name, element index). The values do not
/// depend on the number of threads or ranks, on the dtype or on the device. Matrices are normal
/// with standard deviation config.init_std. Projections into the residual stream are scaled by 1 /
/// sqrt(2 layers) (Radford et al. 2019). Norms are 1, biases 0.
///
/// A positive `noise` adds normal random numbers to each matrix. Their standard deviation is
/// `noise` times the matrix's. Use it to measure how far two runs drift apart that begin almost
/// alike.
void initialize(GPT& model, uint64_t seed, double noise = 0);

}  // namespace dovetail::models
