#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace dovetail::moe {

/// What a forward pass tells its layers of experts beside x. As it stands by default nothing is drawn: evaluation.
struct Pass {
  bool training = false;    ///< draws are made
  uint64_t seed = 0;        ///< of a step: what is drawn depends on it, the layer and the token's index alone
  int64_t first_token = 0;  ///< index of x's first token in the batch of the step, over all ranks and micro-batches
  int64_t most_tokens = 0;  ///< the most that any rank has in this pass; 0: not known
  bool again = false;       ///< a recomputation in backward: counted already
  at::Tensor tokens = {};   ///< ids, shaped as x without its last dimension: hash routing reads them
  /// Adds up a float64 tensor over all ranks, which call it together; empty: there are no others.
  std::function<void(at::Tensor&)> sum_over_ranks = {};
};

}  // namespace dovetail::moe
