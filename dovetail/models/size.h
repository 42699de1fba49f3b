#pragma once

#include <cstdint>

#include "dovetail/models/config.h"

namespace dovetail {

/// What a model costs, computed from its sizes alone (no tensor is made).
struct ModelSize {
  int64_t parameters = 0;
  int64_t parameters_without_embedding = 0;
  /// Training FLOPs of one token, forward and backward: 6 per matrix weight plus 6 * layers * heads * head_dim * context for causal
  /// attention (half of 12; Chowdhery et al. 2022, appendix B). Recomputation is not counted (model FLOPs, not hardware FLOPs).
  double flops_per_token = 0;
};
ModelSize model_size(const ModelConfig& config);

struct MemoryEstimateOptions {
  int64_t micro_batch = 1;  ///< samples at once
  bool bfloat16 = false;
  bool recompute = false;
  bool distributed = false;  ///< reduction buckets
};
/// Bytes of one training step at its peak: weights, masters, gradients, moments, activations, workspace.
struct MemoryEstimate {
  int64_t weights = 0, gradients = 0, optimizer = 0, activations = 0, workspace = 0;
  int64_t total() const { return weights + gradients + optimizer + activations + workspace; }
};
MemoryEstimate memory_estimate(const ModelConfig& config, const MemoryEstimateOptions& options);

}  // namespace dovetail
