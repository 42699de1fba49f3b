#pragma once

#include <cstdint>

#include "dovetail/models/config.h"
#include "dovetail/mx/recipe.h"

namespace dovetail::models {

/// Number of parameters and FLOPs of a model, computed from its config without creating a tensor.
/// Configs must be resolved (resolve_model_config).
struct ModelSize {
  int64_t parameters = 0;
  /// Parameters of the blocks and of the norm before the head (Kaplan et al. 2020). Token
  /// embedding, position embedding and head are not counted.
  int64_t parameters_without_embedding = 0;
  /// Parameters that one token uses. In blocks with experts, it counts only as many experts as a
  /// token is routed to.
  int64_t active_parameters = 0;
  /// Training FLOPs of one token, forward and backward: 6 for each matrix weight that the token
  /// uses. The head's matrix counts, even if tied; the lookup in the embedding does not. Causal
  /// attention adds 6 * layers * heads * head_dim * context. (Full attention would add twice as
  /// many; Chowdhery et al. 2022, appendix B.) Recomputation is not counted (model FLOPs, not
  /// hardware FLOPs).
  double flops_per_token = 0;
};
ModelSize model_size(const ModelConfig& config);

struct MemoryEstimateOptions {
  int64_t micro_batch = 1;  ///< samples per micro-batch
  /// True: a step has several micro-batches. Sums of gradients stay in memory from one to the next.
  bool accumulate = false;
  bool bfloat16 = false;  ///< true: the compute dtype is bfloat16, otherwise float32
  /// Number formats of the Linears of all blocks, in the order of `mx::quantizable_linears`. Empty:
  /// no Linear is quantized.
  std::vector<mx::LinearRecipe> linears = {};
  bool recompute = false;  ///< true: backward recomputes each block (GPT::checkpoint_activations)
  /// True: gradients are summed over ranks, in float32 buckets (comm/buckets.h).
  bool distributed = false;
  int64_t optimizer_ranks = 1;  ///< ranks among which the optimizer's state is divided
  int64_t gradient_ranks = 1;   ///< ranks among which the sums of gradients are divided
  /// Ranks over which experts are distributed. The estimate assumes an even load: each rank
  /// processes as many rows as if it had all experts.
  int64_t expert_ranks = 1;
  /// True: rows and products of the experts have sizes that stay on a GPU (moe/device_experts.h).
  bool device_rows = false;
  bool checkpoints = false;  ///< true: this rank writes checkpoints
  int threads = 1;           ///< CPU threads; each has kernel buffers of its own
};

/// Bytes that training takes, beyond what the process has before the model exists. The peak of a
/// step is at the beginning or at the end of backward. At the beginning, all activations are in
/// memory, but only gradients of the head. At the end, all gradients are in memory, but no
/// activations. `gradients`, `activations` and `workspace` are the bytes at the larger of these two
/// peaks. The estimate is for the fused CPU kernels, and with `device_rows` for a GPU's experts.
/// docs/models.md derives the formula. Tests compare it with allocated and with resident memory.
struct MemoryEstimate {
  int64_t weights = 0;        ///< weights in the compute dtype
  int64_t gradients = 0;      ///< gradients alive at the step's peak
  int64_t optimizer = 0;      ///< Adam's two moments; with bfloat16 also the float32 masters
  int64_t activations = 0;    ///< activations kept for backward, at the step's peak
  int64_t workspace = 0;      ///< temporaries: gradients of activations, a chunk of logits
  int64_t checkpoint = 0;     ///< float32 copy of weights and moments while it is written to disk
  int64_t all_gradients = 0;  ///< gradients alive when the checkpoint's copy is made
  /// Everything except tensors: kernel buffers, code, stacks, prefetched rows of data.
  int64_t beside = 0;

  /// Returns the larger of two totals: at the step's peak, and while the checkpoint's copy is made.
  int64_t total() const;
  /// Returns the total at the peak of a step during which the checkpoint's copy is still being
  /// written. It may exceed total().
  int64_t while_saving() const;
  /// Returns the total of all tensors at the step's peak, without the checkpoint's copy.
  int64_t of_step() const { return weights + gradients + optimizer + activations + workspace; }
};
MemoryEstimate memory_estimate(const ModelConfig& config, const MemoryEstimateOptions& options);

}  // namespace dovetail::models
