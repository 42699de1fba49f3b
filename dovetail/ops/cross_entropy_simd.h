#pragma once

#include <cstdint>

#include "dovetail/ops/storage.h"

namespace dovetail {

/// losses[i] = log(sum(exp(logits[i]))) - logits[i, targets[i]], zero where the target is
/// `kIgnoredTarget`. With `gradient`, logits (rows, vocab), contiguous, are overwritten with
/// softmax - one-hot (zero for ignored rows). Every other target must lie in [0, vocab).
constexpr int64_t kIgnoredTarget = -100;

struct CrossEntropyProblem {
  int64_t rows, vocab;
  Storage storage;
  void* logits;
  const int64_t* targets;
  float* losses;
  bool gradient;
};
void cross_entropy_rows(const CrossEntropyProblem& problem);

}  // namespace dovetail
