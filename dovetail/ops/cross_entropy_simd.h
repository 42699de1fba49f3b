#pragma once

#include <cstdint>

#include "dovetail/ops/storage.h"

namespace dovetail::ops {

/// Target of a row without loss.
constexpr int64_t kIgnoredTarget = -100;

/// Problem of the cross entropy of each row: losses[i] = log(sum(exp(logits[i]))) - logits[i,
/// targets[i]]. Logits are (rows, vocab), contiguous, in `storage`. The loss is 0 if the target is
/// `kIgnoredTarget`; every other target must be in [0, vocab). If `gradient`, logits are
/// overwritten with their gradients: softmax - one-hot, and zeros in ignored rows.
struct CrossEntropyProblem {
  int64_t rows, vocab;
  Storage storage;
  void* logits;
  const int64_t* targets;
  float* losses;
  bool gradient;
};
void cross_entropy_rows(const CrossEntropyProblem& problem);

}  // namespace dovetail::ops
