#pragma once

#include <cstdint>

#include "dovetail/models/config.h"
#include "dovetail/mx/recipe.h"

namespace dovetail {

/// What a model costs, computed from its sizes alone (no tensor is made). Configs are resolved
/// ones.
struct ModelSize {
  int64_t parameters = 0;
  /// Of the blocks and the last norm: without token and position embedding and without the head
  /// (Kaplan et al. 2020).
  int64_t parameters_without_embedding = 0;
  /// Parameters that one token meets: of E experts it meets k.
  int64_t active_parameters = 0;
  /// Training FLOPs of one token, forward and backward: 6 per matrix weight that the token meets
  /// (the head's also when tied, the embedding's not) plus 6 * layers * heads * head_dim * context
  /// for causal attention (half of 12; Chowdhery et al. 2022, appendix B). Recomputation is not
  /// counted (model FLOPs, not hardware FLOPs).
  double flops_per_token = 0;
};
ModelSize model_size(const ModelConfig& config);

struct MemoryEstimateOptions {
  int64_t micro_batch = 1;  ///< samples at once
  bool accumulate =
      false;  ///< several micro-batches a step: the gradients stay while the next one runs
  bool bfloat16 = false;
  /// Of the Linears of all blocks, in the order of `quantizable_linears`; empty: none is quantized.
  std::vector<mx::LinearRecipe> linears = {};
  bool recompute = false;
  bool distributed = false;     ///< gradients in reduction buckets, float32
  int64_t optimizer_ranks = 1;  ///< ranks that share out the optimizer's state
  int64_t gradient_ranks = 1;   ///< ranks that share out the sums of gradients
  int64_t expert_ranks =
      1;  ///< ranks that experts are spread over; each has as many rows as if it had all of them
  bool checkpoints = false;  ///< this rank writes checkpoints
  int threads = 1;
};

/// Bytes that training takes beyond what the process has before there is a model. A step's peak
/// stands either at the beginning of backward (all activations, gradients of the head only) or at
/// its end (all gradients, no activations). For the fused CPU kernels: docs/models.md derives the
/// formula, and tests hold it against what is allocated and against resident memory.
struct MemoryEstimate {
  int64_t weights = 0;        ///< as computed with
  int64_t gradients = 0;      ///< alive at the step's peak
  int64_t optimizer = 0;      ///< both moments, and under bfloat16 the float32 masters
  int64_t activations = 0;    ///< kept for backward, at the step's peak
  int64_t workspace = 0;      ///< temporaries: gradients of activations, a chunk of logits
  int64_t checkpoint = 0;     ///< float32 copy of weights and moments that is being written
  int64_t all_gradients = 0;  ///< alive when this copy is made
  int64_t beside =
      0;  ///< everything but tensors: buffers of kernels, code, stacks, rows read ahead

  /// Maximum of a step's peak and of the moment at which the copy for a checkpoint is made.
  int64_t total() const;
  /// The same if the next step reaches its peak while the copy is still being written.
  int64_t while_saving() const;
  int64_t of_step() const { return weights + gradients + optimizer + activations + workspace; }
};
MemoryEstimate memory_estimate(const ModelConfig& config, const MemoryEstimateOptions& options);

}  // namespace dovetail
