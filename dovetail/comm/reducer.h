#pragma once

#include <memory>
#include <vector>

#include "dovetail/comm/group.h"

namespace dovetail {

/// Sums gradients over the ranks in buckets, while backward is still running.
///
/// Parameters are put into buckets of `bucket_bytes` in reverse order of their list (backward's order); a bucket is reduced as
/// soon as all its gradients have been accumulated (post-accumulate-grad hooks). Sums, never means: the caller divides
/// by the global token count once. A parameter that got no gradient counts as zero. One-rank groups do nothing.
class GradientReducer {
 public:
  struct Options {
    int64_t bucket_bytes = 4 << 20;
  };
  GradientReducer(std::shared_ptr<Group> group, std::vector<at::Tensor> parameters, Options options);
  ~GradientReducer();

  /// Before the last backward of a step (earlier micro-batches only accumulate).
  void arm();
  /// After that backward: reduces what is left, waits, and leaves the sums in every parameter's `.grad()`.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dovetail
