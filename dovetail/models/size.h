#pragma once

#include <cstdint>

#include "dovetail/models/config.h"
#include "dovetail/mx/recipe.h"

namespace dovetail::models {

/// Cost of a model, computed from its sizes alone, without creating a tensor. Configs must be
/// resolved.
struct ModelSize {
  int64_t parameters = 0;
  /// Parameters of the blocks and the last norm: without token embedding, position embedding and
  /// head (Kaplan et al. 2020).
  int64_t parameters_without_embedding = 0;
  /// Parameters that one token uses, which are k of E experts.
  int64_t active_parameters = 0;
  /// Training FLOPs of one token, forward and backward. They are 6 per matrix weight that the token
  /// uses: the head's also if tied, the embedding's not. Causal attention adds 6 * layers * heads *
  /// head_dim * context (half of 12; Chowdhery et al. 2022, appendix B). Recomputation is not
  /// counted (model FLOPs, not hardware FLOPs).
  double flops_per_token = 0;
};
ModelSize model_size(const ModelConfig& config);

struct MemoryEstimateOptions {
  int64_t micro_batch = 1;  ///< samples per micro-batch
  /// Several micro-batches per step: the gradients stay in memory while the next one runs.
  bool accumulate = false;
  bool bfloat16 = false;
  /// Recipes of the Linears of all blocks, in the order of `quantizable_linears`. Empty: no Linear
  /// is quantized.
  std::vector<mx::LinearRecipe> linears = {};
  bool recompute = false;
  bool distributed = false;     ///< gradients in reduction buckets, float32
  int64_t optimizer_ranks = 1;  ///< ranks that share the optimizer's state
  int64_t gradient_ranks = 1;   ///< ranks that share the sums of gradients
  /// Ranks that experts are distributed over. Each processes as many rows as if it had all experts.
  int64_t expert_ranks = 1;
  bool checkpoints = false;  ///< this rank writes checkpoints
  int threads = 1;
};

/// Bytes that training takes, beyond what the process has before the model exists. The peak of a
/// step is at the beginning or at the end of backward. The beginning has all activations, but only
/// gradients of the head. The end has all gradients, but no activations. The estimate is for the
/// fused CPU kernels. docs/models.md derives the formula. Tests compare it with allocated and with
/// resident memory.
struct MemoryEstimate {
  int64_t weights = 0;        ///< weights in the compute dtype
  int64_t gradients = 0;      ///< gradients alive at the step's peak
  int64_t optimizer = 0;      ///< both moments; under bfloat16, the float32 masters, too
  int64_t activations = 0;    ///< activations kept for backward, at the step's peak
  int64_t workspace = 0;      ///< temporaries: gradients of activations, a chunk of logits
  int64_t checkpoint = 0;     ///< float32 copy of weights and moments while it is written
  int64_t all_gradients = 0;  ///< gradients alive when that copy is made
  /// Everything except tensors: kernel buffers, code, stacks, prefetched rows.
  int64_t beside = 0;

  /// Returns the maximum of a step's peak and of the moment at which the checkpoint's copy is made.
  int64_t total() const;
  /// Returns the maximum if the next step reaches its peak while that copy is still being written.
  int64_t while_saving() const;
  int64_t of_step() const { return weights + gradients + optimizer + activations + workspace; }
};
MemoryEstimate memory_estimate(const ModelConfig& config, const MemoryEstimateOptions& options);

}  // namespace dovetail::models
