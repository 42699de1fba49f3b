#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace dovetail::moe {

/// The seed of a step: a number, or where it stands. A recorded step reads it there anew each time.
class StepSeed {
 public:
  StepSeed(uint64_t value = 0) : value_(value) {}
  static StepSeed at(const uint64_t* place) {
    StepSeed out;
    out.place_ = place;
    return out;
  }
  uint64_t now() const { return place_ != nullptr ? *place_ : value_; }

 private:
  uint64_t value_;
  const uint64_t* place_ = nullptr;
};

/// What a forward pass tells its layers of experts beside x. As it stands by default nothing is
/// drawn: evaluation.
struct Pass {
  bool training = false;   ///< draws are made
  bool measuring = false;  ///< a loss, in evaluation: model.moe.eval_capacity_factor applies
  StepSeed seed = {};      ///< draws depend on it, the layer and the token's index alone
  int64_t first_token =
      0;  ///< index of x's first token in the batch of the step, over all ranks and micro-batches
  int64_t first_position = 0;  ///< cached tokens before x, in evaluation
  int64_t most_tokens = 0;     ///< maximum over the ranks of tokens in this pass; 0: not known
  bool again = false;          ///< a recomputation in backward: counted already
  at::Tensor tokens = {};  ///< ids, shaped as x without its last dimension: hash routing reads them
  /// Adds up a float64 tensor over all ranks, which call it together; empty: there are no others.
  std::function<void(at::Tensor&)> sum_over_ranks = {};
};

}  // namespace dovetail::moe
