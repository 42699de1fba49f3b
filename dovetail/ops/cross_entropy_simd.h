#pragma once

#include <cstdint>

#include "dovetail/ops/storage.h"

namespace dovetail::ops {

/// Cross entropy of each row: losses[i] = log(sum(exp(logits[i]))) - logits[i, targets[i]]. It is 0
/// if the target is `kIgnoredTarget`; every other target must be in [0, vocab). With `gradient`,
/// logits (rows, vocab), contiguous, are overwritten with softmax - one-hot, and with zeros in
/// ignored rows.
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

}  // namespace dovetail::ops
