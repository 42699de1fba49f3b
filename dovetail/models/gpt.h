#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dovetail/models/config.h"

namespace dovetail {

/// A loss as a sum and the number of tokens behind it, never a mean: sums and weights add over micro-batches and ranks.
struct LossSum {
  at::Tensor sum;      ///< scalar, float32 or float64, with gradient
  int64_t weight = 0;  ///< tokens
};

/// Keys and values of earlier positions, for decoding: one pair (B, S, Hkv, D) a block, filled up to `length`.
struct KvCache {
  std::vector<at::Tensor> keys, values;
  int64_t length = 0;
};

/// Decoder-only transformer. Legend: B batch, T tokens, C width, H heads, D head_dim, V vocab.
class GPT : public torch::nn::Module {
 public:
  /// Every size in `config` resolved (see resolve_model_config); parameters uninitialised.
  explicit GPT(const ModelConfig& config);

  /// tokens (B, T + 1) int64: predicts tokens[:, 1:] from tokens[:, :-1].
  LossSum loss(const at::Tensor& tokens);

  /// (B, T) int64 -> logits (B, T, V) float32.
  at::Tensor logits(const at::Tensor& tokens);
  /// The same for the newest tokens only, reading and extending `cache`.
  at::Tensor logits_with_cache(const at::Tensor& tokens, KvCache& cache);

  /// Recompute each block in backward instead of keeping its activations.
  bool checkpoint_activations = false;

  /// The dtype of the matrices (Linear and embedding weights) and of the activations: float32 (default), bfloat16, or float64
  /// for exactness tests. Norm weights and biases stay float32 under bfloat16. The optimizer keeps float32 masters.
  void set_compute_dtype(at::ScalarType dtype);

  const ModelConfig& config() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Fills every parameter as a function of (seed, its name, element index): the same for any thread or rank count. Normal with
/// config.init_std; projections into the residual stream scaled by 1 / sqrt(2 layers) (Radford et al. 2019); norms 1, biases 0.
void initialize(GPT& model, uint64_t seed);

/// Zeros (defaults that depend on other keys) resolved, everything checked (heads divide width, ...). Throws UserError naming model.<key>.
ModelConfig resolve_model_config(const ModelConfig& config, int64_t tokenizer_vocab);

}  // namespace dovetail
