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

/// The parts of GPT. Legend: B batch, T tokens, C width, H heads, D head_dim.
namespace dovetail {

/// RMSNorm or LayerNorm over C, as the config says. weight (C); bias (C) or undefined. float32 even
/// under bfloat16 compute.
class Norm : public torch::nn::Module {
 public:
  Norm(const ModelConfig& config, c10::Device device);
  at::Tensor forward(const at::Tensor& x) const { return operation()->apply(x); }  ///< (..., C)
  /// x + branch and its norm, (..., C) each. An undefined branch counts as zero.
  NormedSum of_sum(const at::Tensor& x, const at::Tensor& branch) const;
  /// For a Linear to put in front of its product.
  std::shared_ptr<const RowOperation> operation() const;

  at::Tensor weight, bias;

 private:
  bool rms_;
  double eps_;
};

/// Rows looked up by id: the token embedding and learned positions. weight (rows, C).
class Embedding : public torch::nn::Module {
 public:
  Embedding(int64_t rows, int64_t width, c10::Device device);

  at::Tensor weight;
};

/// One block's part of a KvCache while decoding: (B, S, Hkv, D) each, `length` positions filled.
struct CacheSlot {
  at::Tensor keys, values;
  int64_t length = 0;
};

class Attention : public torch::nn::Module {
 public:
  Attention(const ModelConfig& config, const std::string& name, c10::Device device);
  /// (B, T, C) -> (B, T, C) of norm(x), or of x where `norm` is null. With a slot the T tokens
  /// follow the cached ones and are written behind them.
  at::Tensor forward(const at::Tensor& x_btc, const std::shared_ptr<const RowOperation>& norm,
                     CacheSlot* slot);

 private:
  int64_t heads_, kv_heads_, head_dim_, rotary_dim_;
  double theta_;
  std::shared_ptr<Linear> qkv_, out_;
};

/// What a block makes: x (B, T, C), and the losses of its router, a scalar; undefined where there
/// are none.
struct BlockOutput {
  at::Tensor x, router_loss;
};

/// Pre-norm block: x += attention(norm(x)); x += ffn(norm(x)), a feed-forward or a mixture of
/// experts.
class Block : public torch::nn::Module {
 public:
  /// `ranks`: as moe::Layer's.
  Block(const ModelConfig& config, int64_t index, c10::Device device,
        std::shared_ptr<const moe::ExpertRanks> ranks = nullptr);
  BlockOutput forward(const at::Tensor& x_btc, const moe::Pass& pass = {},
                      CacheSlot* slot = nullptr);

 private:
  std::string name_;  ///< "blocks.3"
  std::shared_ptr<Norm> attention_norm_, ffn_norm_;
  std::shared_ptr<Attention> attention_;
  std::shared_ptr<FeedForward> ffn_;  ///< one of these two
  std::shared_ptr<moe::Layer> moe_;
};

/// block->forward(x_btc, pass) keeping only x_btc: backward runs the block again (Chen et al.
/// 2016). The gradients are the same bits. `x_btc` must require grad, otherwise nothing would start
/// that backward.
BlockOutput checkpointed_forward(const std::shared_ptr<Block>& block, const at::Tensor& x_btc,
                                 const moe::Pass& pass = {});

}  // namespace dovetail
