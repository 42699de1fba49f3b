#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "dovetail/moe/experts.h"
#include "dovetail/moe/routing.h"

/// Routing and experts as single operators, for traced tensors (base/traced.h) and the meta device.
/// Tracers see four plain operators with shapes: moe_route_forward, moe_route_backward,
/// moe_experts_forward and moe_experts_backward. Autograd nodes connect them. Backward of the
/// experts runs their forward again.
namespace dovetail::moe {

/// As `route`. Results are differentiable once.
Routing opaque_route(const at::Tensor& logits, const RoutingSpec& spec,
                     const RoutingInputs& inputs);

/// As `feed_forward` with the dispatch of expert and slot, (T, k) int32. Differentiable once.
at::Tensor opaque_experts(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& expert,
                          const at::Tensor& slot, const ExpertWeights& experts);

}  // namespace dovetail::moe
