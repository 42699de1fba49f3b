#pragma once

#include <string>

#include "dovetail/moe/routing.h"

/// Routing in few kernels of a GPU (cuda_kernels.h).
namespace dovetail::moe::gpu {

/// Returns the reason why `route` below does not cover logits x (T, E). Empty if it does. Reasons:
///
/// - x is not float32, has no tokens or more than kMostRoutedExperts experts
/// - another selection than top-k, or chosen experts
/// - draws, drops by probability, tokens that are not in the order of their index
/// - weights normalized after a drop
/// - a load loss of each sequence
/// - a capacity that depends on counts
std::string fused_route_obstacle(const at::Tensor& x, const RoutingSpec& spec,
                                 const RoutingInputs& inputs);

/// Does the same as moe::route, for contiguous x without an obstacle. Differentiable once. The
/// meta device has shapes alone. Throws UserError in a build without GPU kernels.
Routing route(const at::Tensor& x, const RoutingSpec& spec, const at::Tensor& bias);

/// Returns Routing::kept of choices that no draw drops. count: Routing::count.
at::Tensor kept_choices(const at::Tensor& count, const RoutingSpec& spec, int64_t capacity);

}  // namespace dovetail::moe::gpu
