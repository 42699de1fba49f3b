#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace dovetail::moe {

/// Seed of the random draws of a training step, by value or by address. A recorded step
/// (plan/record/capture.h) passes an address, so that each replay of it reads the current seed.
class StepSeed {
 public:
  StepSeed(uint64_t value = 0) : value_(value) {}
  /// Makes a seed that is read from `place`, which must stay valid.
  static StepSeed at(const uint64_t* place) {
    StepSeed out;
    out.place_ = place;
    return out;
  }
  /// Returns the seed of the current step.
  uint64_t now() const { return place_ != nullptr ? *place_ : value_; }

 private:
  uint64_t value_;
  const uint64_t* place_ = nullptr;
};

/// Information about a forward pass that expert layers need in addition to their input x. The
/// defaults describe evaluation, which draws no random numbers.
struct Pass {
  bool training = false;  ///< true in training: routers draw random numbers
  /// True while a validation loss is computed; Config::eval_capacity_factor then applies.
  bool measuring = false;
  StepSeed seed = {};  ///< random draws depend only on seed, layer and token index
  /// Index of x's first token in the batch of the step, counted over all ranks and micro-batches.
  int64_t first_token = 0;
  /// Position of x's first token in its sequence, in evaluation: the number of tokens in the
  /// key-value cache.
  int64_t first_position = 0;
  int64_t maximum_tokens = 0;  ///< maximum number of tokens of any rank in this pass; 0: unknown
  bool again = false;  ///< true if backward recomputes the pass: its load is not counted twice
  /// Token ids, shaped as x without its last dimension. Hash routing reads them.
  at::Tensor tokens = {};
  /// Sums a float64 tensor over all ranks, which call it together. Empty if there is only one rank.
  std::function<void(at::Tensor&)> sum_over_ranks = {};
};

}  // namespace dovetail::moe
