#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>

#include "dovetail/models/config.h"
#include "dovetail/moe/layer.h"
#include "dovetail/mx/feed_forward.h"
#include "dovetail/mx/linear.h"
#include "dovetail/ops/functions.h"

/// Modules of GPT. In shapes, a batch has B sequences of T tokens, and C is the width. There are H
/// heads, and Hkv heads of keys and values. D is the number of elements of a head, S the maximum
/// number of tokens of a sequence.
namespace dovetail::models {

/// RMSNorm or LayerNorm over C, as configured. Parameters: weight (C), and bias (C) or undefined.
/// They are float32 even if the model computes in bfloat16.
class Norm : public torch::nn::Module {
 public:
  Norm(const ModelConfig& config, c10::Device device);
  /// Returns the norm of x, (..., C).
  at::Tensor forward(const at::Tensor& x) const { return operation()->apply(x); }
  /// Returns the sum x + branch and the norm of this sum, each (..., C). An undefined branch counts
  /// as zero.
  ops::NormedSum of_sum(const at::Tensor& x, const at::Tensor& branch) const;
  /// Returns the norm as an operation on rows. A Linear applies it to its input before the product.
  std::shared_ptr<const ops::RowOperation> operation() const;

  at::Tensor weight, bias;

 private:
  bool rms_;
  double eps_;
};

/// Table of the token embeddings, or of the embeddings of learned positions. Parameter: weight
/// (rows, C).
class Embedding : public torch::nn::Module {
 public:
  Embedding(int64_t rows, int64_t width, c10::Device device);

  at::Tensor weight;
};

/// One block's part of a KvCache (models/gpt.h) during decoding. `keys` and `values` are (B, S,
/// Hkv, D) each.
struct CacheSlot {
  at::Tensor keys, values;
  int64_t length = 0;  ///< number of tokens in the cache: positions [0, length) are filled
};

/// Causal self-attention.
class Attention : public torch::nn::Module {
 public:
  /// `name` is the module's name, e.g. "blocks.3.attention".
  Attention(const ModelConfig& config, const std::string& name, c10::Device device);
  /// Returns the attention over norm(x), or over x if `norm` is null: (B, T, C) -> (B, T, C).
  /// `slot` is null without a cache. Otherwise the T tokens follow the cached tokens. Their keys
  /// and values are written to positions [length, length + T) of the cache. The caller then updates
  /// the slot's length.
  at::Tensor forward(const at::Tensor& x_btc, const std::shared_ptr<const ops::RowOperation>& norm,
                     CacheSlot* slot);

 private:
  int64_t heads_, kv_heads_, head_dim_, rotary_dim_;
  double theta_;
  std::shared_ptr<mx::Linear> qkv_, out_;
};

/// Output of a block.
struct BlockOutput {
  /// x: (B, T, C). router_loss: scalar, loss of the block's router (moe::Layer::Output). It is
  /// undefined if the block has no router.
  at::Tensor x, router_loss;
};

/// Pre-norm block: x += attention(norm(x)), then x += ffn(norm(x)). Here ffn is a feed-forward or a
/// mixture-of-experts layer.
class Block : public torch::nn::Module {
 public:
  /// `index` is the number of the block in the model, from 0. `ranks` are the ranks that share the
  /// experts; null: this process has all experts.
  Block(const ModelConfig& config, int64_t index, c10::Device device,
        std::shared_ptr<const moe::ExpertRanks> ranks = nullptr);
  BlockOutput forward(const at::Tensor& x_btc, const moe::Pass& pass = {},
                      CacheSlot* slot = nullptr);

 private:
  std::string name_;  ///< example: "blocks.3"
  std::shared_ptr<Norm> attention_norm_, ffn_norm_;
  std::shared_ptr<Attention> attention_;
  std::shared_ptr<mx::FeedForward> ffn_;  ///< null if the block has experts
  std::shared_ptr<moe::Layer> moe_;       ///< null if the block has a feed-forward
};

}  // namespace dovetail::models
