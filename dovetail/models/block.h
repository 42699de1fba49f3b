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

/// Modules of GPT. Legend: B batch, T tokens, C width, H heads, D head_dim.
namespace dovetail::models {

/// RMSNorm or LayerNorm over C, as configured. Parameters: weight (C), and bias (C) or undefined.
/// They are float32 even under bfloat16 compute.
class Norm : public torch::nn::Module {
 public:
  Norm(const ModelConfig& config, c10::Device device);
  /// Returns the norm of x, (..., C).
  at::Tensor forward(const at::Tensor& x) const { return operation()->apply(x); }
  /// Returns x + branch and its norm, each (..., C). An undefined branch counts as zero.
  ops::NormedSum of_sum(const at::Tensor& x, const at::Tensor& branch) const;
  /// Returns the norm as an operation that a Linear applies to its input before the product.
  std::shared_ptr<const ops::RowOperation> operation() const;

  at::Tensor weight, bias;

 private:
  bool rms_;
  double eps_;
};

/// Rows looked up by id, for the token embedding and for learned positions. Parameter: weight
/// (rows, C).
class Embedding : public torch::nn::Module {
 public:
  Embedding(int64_t rows, int64_t width, c10::Device device);

  at::Tensor weight;
};

/// One block's part of a KvCache during decoding. Keys and values are (B, S, Hkv, D) each.
/// The first `length` positions are filled.
struct CacheSlot {
  at::Tensor keys, values;
  int64_t length = 0;
};

class Attention : public torch::nn::Module {
 public:
  Attention(const ModelConfig& config, const std::string& name, c10::Device device);
  /// Returns the attention over norm(x), or over x if `norm` is null: (B, T, C) -> (B, T, C). With
  /// a slot, the T tokens follow the cached tokens. Their keys and values are appended to the
  /// cache.
  at::Tensor forward(const at::Tensor& x_btc, const std::shared_ptr<const ops::RowOperation>& norm,
                     CacheSlot* slot);

 private:
  int64_t heads_, kv_heads_, head_dim_, rotary_dim_;
  double theta_;
  std::shared_ptr<mx::Linear> qkv_, out_;
};

/// Output of a block: x (B, T, C) and the losses of its router, a scalar. The scalar is undefined
/// if the block has no router losses.
struct BlockOutput {
  at::Tensor x, router_loss;
};

/// Pre-norm block: x += attention(norm(x)); x += ffn(norm(x)). The ffn is a feed-forward or a
/// mixture of experts.
class Block : public torch::nn::Module {
 public:
  /// `ranks` is passed to moe::Layer: the ranks that share the experts.
  Block(const ModelConfig& config, int64_t index, c10::Device device,
        std::shared_ptr<const moe::ExpertRanks> ranks = nullptr);
  BlockOutput forward(const at::Tensor& x_btc, const moe::Pass& pass = {},
                      CacheSlot* slot = nullptr);

 private:
  std::string name_;  ///< "blocks.3"
  std::shared_ptr<Norm> attention_norm_, ffn_norm_;
  std::shared_ptr<Attention> attention_;
  std::shared_ptr<mx::FeedForward> ffn_;  ///< null if the block has experts
  std::shared_ptr<moe::Layer> moe_;
};

}  // namespace dovetail::models
