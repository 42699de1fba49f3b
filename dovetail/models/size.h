#pragma once

#include <cstdint>

#include "dovetail/models/config.h"
#include "dovetail/mx/recipe.h"

namespace dovetail::models {

/// Number of parameters and FLOPs of a model, computed from its config without creating a tensor.
/// Configs must be resolved (resolve_model_config).
struct ModelSize {
  int64_t parameters = 0;
  /// Parameters of the blocks and the last norm: without token embedding, position embedding and
  /// head (Kaplan et al. 2020).
  int64_t parameters_without_embedding = 0;
  /// Parameters that one token uses. In blocks with E experts, a token uses k of them.
  int64_t active_parameters = 0;
  /// Training FLOPs of one token, forward and backward. They are 6 per matrix weight that the token
  /// uses. The head's matrix counts, even if tied; the lookup in the embedding does not. Causal
  /// attention adds 6 * layers * heads * head_dim * context (half of 12; Chowdhery et al. 2022,
  /// appendix B). Recomputation is not counted (model FLOPs, not hardware FLOPs).
  double flops_per_token = 0;
};
ModelSize model_size(const ModelConfig& config);

struct MemoryEstimateOptions {
  int64_t micro_batch = 1;  ///< samples per micro-batch
  /// True: a step has several micro-batches. The gradients stay in memory while the next one runs.
  bool accumulate = false;
  bool bfloat16 = false;  ///< true: the compute dtype is bfloat16, otherwise float32
  /// Number formats of the Linears of all blocks, in the order of `mx::quantizable_linears`. Empty:
  /// no Linear is quantized.
  std::vector<mx::LinearRecipe> linears = {};
  bool recompute = false;  ///< true: backward recomputes each block (GPT::checkpoint_activations)
  /// True: gradients are summed over ranks, in float32 buckets (comm/buckets.h).
  bool distributed = false;
  int64_t optimizer_ranks = 1;  ///< ranks that share the optimizer's state
  int64_t gradient_ranks = 1;   ///< ranks that share the sums of gradients
  /// Ranks over which experts are distributed. The estimate assumes an even load: each rank
  /// processes as many rows as if it had all experts.
  int64_t expert_ranks = 1;
  bool checkpoints = false;  ///< this rank writes checkpoints
  int threads = 1;
};

/// Bytes that training takes, beyond what the process has before the model exists. The peak of a
/// step is at the beginning or at the end of backward. The beginning has all activations, but only
/// gradients of the head. The end has all gradients, but no activations. Gradients, activations and
/// workspace are for the larger of the two. The estimate is for the fused CPU kernels.
/// docs/models.md derives the formula. Tests compare it with allocated and with resident memory.
struct MemoryEstimate {
  int64_t weights = 0;        ///< weights in the compute dtype
  int64_t gradients = 0;      ///< gradients alive at the step's peak
  int64_t optimizer = 0;      ///< Adam's two moments; with bfloat16 also the float32 masters
  int64_t activations = 0;    ///< activations kept for backward, at the step's peak
  int64_t workspace = 0;      ///< temporaries: gradients of activations, a chunk of logits
  int64_t checkpoint = 0;     ///< float32 copy of weights and moments while it is written to disk
  int64_t all_gradients = 0;  ///< gradients alive when that copy is made
  /// Everything except tensors: kernel buffers, code, stacks, prefetched rows.
  int64_t beside = 0;

  /// Returns the larger of two sums: at the step's peak, and while the checkpoint's copy is made.
  int64_t total() const;
  /// Returns the sum at the peak of a step during which the checkpoint's copy is still being
  /// written. It may exceed total().
  int64_t while_saving() const;
  /// Returns the sum of all tensors at the step's peak, without checkpoint.
  int64_t of_step() const { return weights + gradients + optimizer + activations + workspace; }
};
MemoryEstimate memory_estimate(const ModelConfig& config, const MemoryEstimateOptions& options);

}  // namespace dovetail::models
