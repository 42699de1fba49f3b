#include "dovetail/models/size.h"

#include <algorithm>

namespace dovetail {
namespace {

/// Parameters of one block: those of matrices, and those of norms and biases.
struct BlockSize {
  int64_t matrix = 0, vector = 0;
  int64_t total() const { return matrix + vector; }
};

int64_t qkv_width(const ModelConfig& c) { return (c.heads + 2 * c.kv_heads) * c.head_dim; }

int64_t norm_size(const ModelConfig& c) { return c.norm == "layernorm" && c.bias ? 2 * c.width : c.width; }

BlockSize block_size(const ModelConfig& c) {
  const auto mixed = c.heads * c.head_dim, up = ffn_up_width(c);
  BlockSize size;
  size.matrix = c.width * (qkv_width(c) + mixed + up + c.ffn_width);
  size.vector = 2 * norm_size(c) + (c.bias ? qkv_width(c) + c.width + up + c.width : 0);
  return size;
}

/// Elements per token that one block keeps for backward (in the compute dtype), float32 statistics beside them, and
/// elements in a quantized copy.
struct BlockActivations {
  int64_t elements = 0, statistics = 0, quantized = 0;
};

BlockActivations block_activations(const ModelConfig& c, const mx::LinearRecipe& linears) {
  const auto mixed = c.heads * c.head_dim;
  BlockActivations kept;
  // Inputs of both norms; queries, keys and values; attention's result; ffn.up.
  kept.elements = 2 * c.width + qkv_width(c) + mixed + ffn_up_width(c);
  // Inputs of qkv, attention.out (which attention keeps too) and ffn.up. That of ffn.down is made again in backward.
  if (linears.activation.format) kept.quantized = 2 * c.width + mixed;
  // Inputs of qkv, ffn.up and, unless a quantized Linear makes it again, ffn.down.
  if (!linears.activation.format) kept.elements += 2 * c.width + (linears.quantizes() ? 0 : c.ffn_width);
  // rstd (and mean) of both norms, log-sum-exp of each head.
  kept.statistics = (c.norm == "layernorm" ? 4 : 2) + c.heads;
  return kept;
}

/// Bytes of codes with their scales.
int64_t quantized_bytes(int64_t elements) { return elements + elements / mx::kBlock; }

/// Rows of logits that linear_cross_entropy holds at once.
int64_t logits_rows(int64_t tokens, int64_t vocab_size, int64_t element) {
  constexpr int64_t kChunkBytes = int64_t{8} << 20, kLeastRows = 512;
  return std::clamp(kChunkBytes / (vocab_size * element), std::min(tokens, kLeastRows), tokens);
}

}  // namespace

ModelSize model_size(const ModelConfig& c) {
  const auto block = block_size(c);
  const auto table = c.vocab_size * c.width;
  const auto positions = c.positions == "learned" ? c.context * c.width : 0;
  ModelSize size;
  size.parameters_without_embedding = c.layers * block.total() + norm_size(c);
  size.parameters = size.parameters_without_embedding + table + positions + (c.tied ? 0 : table);
  const auto attention = c.layers * c.heads * c.head_dim * c.context;
  size.flops_per_token =
      6.0 * static_cast<double>(c.layers * block.matrix + table) + 6.0 * static_cast<double>(attention);
  return size;
}

MemoryEstimate memory_estimate(const ModelConfig& c, const MemoryEstimateOptions& options) {
  constexpr int64_t kFloat = sizeof(float);
  const int64_t element = options.bfloat16 ? 2 : kFloat;
  const auto tokens = options.micro_batch * c.context;
  const auto parameters = model_size(c).parameters;
  const auto norms = (2 * c.layers + 1) * norm_size(c);  // float32 always
  const auto table = c.vocab_size * c.width * element, stream = tokens * c.width * element;

  MemoryEstimate estimate;
  estimate.weights = (parameters - norms) * element + norms * kFloat;
  estimate.optimizer = 2 * parameters * kFloat + (options.bfloat16 ? (parameters - norms) * kFloat : 0);

  const auto kept = block_activations(c, options.linears);
  const auto block_bytes =
      tokens * (kept.elements * element + kept.statistics * kFloat + quantized_bytes(kept.quantized));
  const auto all_blocks = options.recompute ? c.layers * stream + block_bytes : c.layers * block_bytes;
  const auto gradients =
      options.bfloat16 && !options.accumulate && !options.distributed ? estimate.weights : parameters * kFloat;
  // Gradients that outlive a micro-batch; without them those of later blocks are made as activations go.
  const auto held = options.accumulate || options.distributed ? gradients : 0;

  // Beginning of backward. The head's gradients, of its input and matrix, are made in forward.
  const auto logits = logits_rows(tokens, c.vocab_size, element) * c.vocab_size * element;
  const auto head_workspace = stream + logits;  // the head's input, a chunk of logits
  // In backward of ffn.down. Quantized it makes the activation again, whose gradient and that of ffn.up stand beside
  // it.
  const auto ffn_elements =
      options.linears.quantizes() ? 2 * c.ffn_width + ffn_up_width(c) : std::max(ffn_up_width(c), c.ffn_width);
  const auto ffn_workspace = (tokens * ffn_elements + c.width * c.ffn_width) * element;
  const auto begin = MemoryEstimate{.gradients = held + table,
                                    .activations = all_blocks + stream,
                                    .workspace = stream + std::max(head_workspace, ffn_workspace)};
  // Its end: a tied matrix has two gradients for a moment, that of the head and that of the embedding.
  const auto end = MemoryEstimate{.gradients = gradients + (c.tied || held > 0 ? table : 0), .workspace = stream};
  const auto& peak = begin.total() > end.total() ? begin : end;
  estimate.gradients = peak.gradients;
  estimate.activations = peak.activations;
  estimate.workspace = peak.workspace;
  estimate.checkpoint = options.checkpoints ? 3 * parameters * kFloat : 0;
  return estimate;
}

}  // namespace dovetail
