#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "dovetail/models/block.h"
#include "dovetail/moe/pass.h"

namespace dovetail::models {

/// Runs block->forward(x_btc, pass) and keeps only x_btc (B, T, C) for backward. Backward
/// recomputes the block (Chen et al. 2016). The gradients have the same bits as without
/// recomputation. `x_btc` must require grad (InternalError otherwise): autograd would else not run
/// the block's backward.
BlockOutput checkpointed_forward(const std::shared_ptr<Block>& block, const at::Tensor& x_btc,
                                 const moe::Pass& pass = {});

}  // namespace dovetail::models
