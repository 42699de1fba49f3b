#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "dovetail/models/block.h"
#include "dovetail/moe/pass.h"

namespace dovetail::models {

/// Runs block->forward(x_btc, pass) and keeps only x_btc (B, T, C) for backward. Backward computes
/// the block's other activations again (Chen et al. 2016). The gradients have the same bits as
/// without recomputation. Throws InternalError unless `x_btc` requires grad: otherwise autograd
/// would not run the block's backward.
BlockOutput checkpointed_forward(const std::shared_ptr<Block>& block, const at::Tensor& x_btc,
                                 const moe::Pass& pass = {});

}  // namespace dovetail::models
