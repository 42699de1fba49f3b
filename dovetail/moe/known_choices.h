#pragma once

#include "dovetail/moe/routing.h"

namespace dovetail::moe {

/// Returns a Routing whose choices are known: `expert` and `slot` of `route` for the same logits
/// and spec. It is differentiable as the result of `route` is. `count` is undefined.
Routing routing_of_choices(const at::Tensor& logits, const at::Tensor& expert,
                           const at::Tensor& slot, const RoutingSpec& spec);

}  // namespace dovetail::moe
