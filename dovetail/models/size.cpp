#include "dovetail/models/size.h"

#include <algorithm>
#include <iterator>

#include "dovetail/base/error.h"

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

/// The recipes of a block's Linears.
struct BlockRecipes {
  mx::LinearRecipe qkv, out, up, down;
};

BlockRecipes block_recipes(const MemoryEstimateOptions& options, int64_t block) {
  if (options.linears.empty()) return {};
  const mx::LinearRecipe* first = &options.linears[static_cast<size_t>(4 * block)];
  return {first[0], first[1], first[2], first[3]};
}

/// Bytes per token that a block keeps for backward, `element` bytes to an element of the compute dtype.
int64_t block_bytes(const ModelConfig& c, const BlockRecipes& recipes, int64_t element) {
  const auto mixed = c.heads * c.head_dim;
  // A quantized Linear makes its input from what is in front of it again; else that is kept.
  const auto input = [&](const mx::LinearRecipe& recipe, int64_t elements) {
    return recipe.quantizes() ? 0 : elements * element;
  };
  // Inputs of both norms; queries, keys and values; attention's result, which attention.out reads; ffn.up.
  int64_t bytes = (2 * c.width + qkv_width(c) + mixed + ffn_up_width(c)) * element;
  bytes += input(recipes.qkv, c.width) + input(recipes.up, c.width) + input(recipes.down, c.ffn_width);
  // rstd (and mean) of both norms, log-sum-exp of each head.
  const auto statistics = (c.norm == "layernorm" ? 4 : 2) + c.heads;
  return bytes + statistics * static_cast<int64_t>(sizeof(float));
}

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

  DOVETAIL_CHECK(options.linears.empty() || std::ssize(options.linears) == 4 * c.layers, "{} recipes for {} blocks",
                 options.linears.size(), c.layers);
  int64_t all_blocks = 0, largest_block = 0;
  for (int64_t block = 0; block < c.layers; ++block) {
    const auto bytes = tokens * block_bytes(c, block_recipes(options, block), element);
    all_blocks += options.recompute ? stream : bytes;
    largest_block = std::max(largest_block, bytes);
  }
  if (options.recompute) all_blocks += largest_block;
  const auto gradients =
      options.bfloat16 && !options.accumulate && !options.distributed ? estimate.weights : parameters * kFloat;
  // Gradients that outlive a micro-batch; without them those of later blocks are made as activations go.
  const auto held = options.accumulate || options.distributed ? gradients : 0;

  // Beginning of backward. The head's gradients, of its input and matrix, are made in forward.
  const auto logits = logits_rows(tokens, c.vocab_size, element) * c.vocab_size * element;
  const auto head_workspace = stream + logits;  // the head's input, a chunk of logits
  // In backward of the last feed-forward. ffn.down, quantized, has the gradients of the activation and of ffn.up beside
  // each other and, if its quantizer reads whole tensors, the activation. ffn.up, quantized, has two copies of its
  // gradient beside it and one of its input, but no result any more. Beside the gradient of a matrix stands its copy.
  const BlockRecipes last = block_recipes(options, c.layers - 1);
  const auto up = ffn_up_width(c);
  const bool by_rows = last.down.activation.format && last.down.activation.is_microscaling();
  auto ffn_elements = std::max(up, c.ffn_width);
  if (last.down.quantizes()) ffn_elements = std::max(ffn_elements, (by_rows ? 1 : 2) * c.ffn_width + up);
  if (last.up.gradient.format) ffn_elements = std::max(ffn_elements, 2 * up + c.width);
  const auto matrices = last.down.weight.format ? 2 : 1;
  const auto ffn_workspace = (tokens * ffn_elements + matrices * c.width * c.ffn_width) * element;
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
