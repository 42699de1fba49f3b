#include "dovetail/models/size.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/kept_memory.h"
#include "dovetail/base/machine.h"
#include "dovetail/moe/experts.h"
#include "dovetail/mx/feed_forward.h"
#include "dovetail/mx/operand.h"
#include "dovetail/ops/gemm.h"

namespace dovetail::models {
namespace {

int64_t qkv_width(const ModelConfig& c) { return (c.heads + 2 * c.kv_heads) * c.head_dim; }

int64_t norm_size(const ModelConfig& c) {
  return c.norm == "layernorm" && c.bias ? 2 * c.width : c.width;
}

// Resident memory outside of tensors, measured by training a model of width 1. 8 MB are pages of
// libraries that the first step touches. The rest is autograd's nodes, stacks and small objects.
// oneDNN computes products in bfloat16. It generates code for each shape if the CPU has bfloat16
// instructions.
constexpr int64_t kBeside = int64_t{12} << 20, kBesideBFloat16 = int64_t{24} << 20;

/// One feed-forward, and the share of the tokens that it processes: k / E for each of E experts.
struct FeedForwardPart {
  int64_t width;
  bool routed;
  double share;
  mx::LinearRecipe up, down;
};

struct BlockParts {
  bool has_experts;
  mx::LinearRecipe qkv, out;
  std::vector<FeedForwardPart> ffns;
};

/// Returns the blocks with their recipes. `linears` has the recipes in the order of
/// `quantizable_linears`; if it is empty, no Linear is quantized.
std::vector<BlockParts> blocks_of(const ModelConfig& c,
                                  const std::vector<mx::LinearRecipe>& linears) {
  size_t used = 0;
  const auto next = [&] {
    if (linears.empty()) return mx::LinearRecipe{};
    DOVETAIL_CHECK(used < linears.size(), "{} recipes for {} blocks", linears.size(), c.layers);
    return linears[used++];
  };
  std::vector<BlockParts> blocks;
  for (int64_t i = 0; i < c.layers; ++i) {
    BlockParts& block = blocks.emplace_back();
    block.qkv = next();
    block.out = next();
    const auto add = [&](int64_t width, bool routed, double share) {
      FeedForwardPart part = {width, routed, share, {}, {}};
      part.up = next();
      part.down = next();
      block.ffns.push_back(part);
    };
    block.has_experts = moe::has_experts(c.moe, i);
    if (!block.has_experts) {
      add(c.ffn_width, false, 1);
      continue;
    }
    const double share = static_cast<double>(c.moe.k) / static_cast<double>(c.moe.experts);
    for (int64_t e = 0; e < c.moe.experts; ++e) add(c.moe.ffn_width, true, share);
    if (c.moe.shared_experts > 0) add(c.moe.shared_experts * c.moe.ffn_width, false, 1);
  }
  DOVETAIL_CHECK(used == linears.size(), "{} recipes for {} blocks", linears.size(), c.layers);
  return blocks;
}

/// Parameters of one block:
///
/// - matrix, vector: parameters of matrices; of norms and biases
/// - wide: parameters that stay in float32
/// - routed: parameters of experts that are not shared
/// - matrix_beside, vector_beside: parameters that one token does not use
struct BlockSize {
  int64_t matrix = 0, vector = 0, wide = 0, routed = 0;
  double matrix_beside = 0, vector_beside = 0;
  int64_t total() const { return matrix + vector; }
};

BlockSize block_size(const ModelConfig& c, const BlockParts& block) {
  BlockSize size;
  size.matrix = c.width * (qkv_width(c) + c.heads * c.head_dim);
  size.wide = 2 * norm_size(c);
  if (block.has_experts) {
    const int64_t router = moe::router_matrices(c.moe) * c.moe.experts * c.width;
    size.matrix += router;
    size.wide += router;
  }
  size.vector = 2 * norm_size(c) + (c.bias ? qkv_width(c) + c.width : 0);
  for (const FeedForwardPart& ffn : block.ffns) {
    const int64_t up = mx::up_width(c.activation, ffn.width), matrix = c.width * (up + ffn.width);
    size.matrix += matrix;
    if (ffn.routed) size.routed += matrix + (c.bias ? up + c.width : 0);
    size.matrix_beside += (1 - ffn.share) * static_cast<double>(matrix);
    if (!c.bias) continue;
    size.vector += up + c.width;
    size.vector_beside += (1 - ffn.share) * static_cast<double>(up + c.width);
  }
  return size;
}

/// Ways in which a block's routed experts run. kGrouped: one operation (moe/experts.h).
/// kQuantizedGroup: one operation of quantized Linears (mx/linear_group.h). kModules: one after
/// another.
enum class ExpertsRun { kNone, kGrouped, kQuantizedGroup, kModules };

/// `element` is the bytes per element of the compute dtype.
ExpertsRun experts_run(const BlockParts& block, int64_t element) {
  if (!block.has_experts) return ExpertsRun::kNone;
  const FeedForwardPart& first = block.ffns.front();
  const auto routed = [&](auto is) {
    return std::ranges::all_of(block.ffns,
                               [&](const FeedForwardPart& ffn) { return !ffn.routed || is(ffn); });
  };
  if (routed([](const auto& ffn) { return !ffn.up.quantizes() && !ffn.down.quantizes(); }))
    return ExpertsRun::kGrouped;
  const auto delays = [](const mx::LinearRecipe& recipe) {
    return std::ranges::any_of(mx::kOperands,
                               [&](mx::Operand of) { return recipe.of(of).history > 0; });
  };
  const bool alike = routed([&](const auto& ffn) {
    return ffn.up == first.up && ffn.down == first.down && ffn.up.quantizes() &&
           ffn.down.quantizes() && !delays(ffn.up) && !delays(ffn.down);
  });
  const bool by_onednn =
      element == 2 && mx::emulates_in_bfloat16() && !ops::multiplies_bfloat16_rows();
  return alike && !by_onednn ? ExpertsRun::kQuantizedGroup : ExpertsRun::kModules;
}

/// Returns the places of a layer's rows whose sizes stay on a GPU (moe/device_rows.h). A capacity
/// that follows the loads is the one of an even load.
double device_places(const moe::Config& moe, int64_t tokens) {
  const moe::RoutingSpec spec = moe::routing_spec(moe);
  const int64_t choices = tokens * moe.k;
  if (!moe.pad_to_capacity || spec.drop == moe::Drop::kNone)
    return static_cast<double>(choices + moe.experts);
  const int64_t even = (choices + moe.experts - 1) / moe.experts;
  const int64_t slots = moe::capacity(spec, tokens, moe.experts, even);
  return static_cast<double>(moe.experts * std::max<int64_t>(slots, 1));
}

/// Returns the bytes that one place keeps for backward. It keeps the row, the result of `up`, the
/// activation and the expert's result. The choice adds its weight and indices.
double device_place_bytes(const ModelConfig& c, int64_t element) {
  const int64_t ffn = c.moe.ffn_width;
  const int64_t elements = 2 * c.width + mx::up_width(c.activation, ffn) + ffn;
  return static_cast<double>(elements * element) + 2.0 * sizeof(float) + sizeof(int64_t) +
         2.0 * sizeof(int32_t);
}

/// Returns the bytes that backward of a layer's experts on a GPU adds, at most, to those kept. Each
/// product frees the rows that its successor does not read.
double device_workspace(const ModelConfig& c, int64_t tokens, int64_t element) {
  const int64_t ffn = c.moe.ffn_width, up_width = mx::up_width(c.activation, ffn);
  const double places = device_places(c.moe, tokens), width = static_cast<double>(c.width),
               hidden = static_cast<double>(ffn), up = static_cast<double>(up_width),
               matrix = static_cast<double>(c.moe.experts) * width;
  return static_cast<double>(element) *
         std::max({places * width,                              // combine
                   places * hidden + matrix * hidden,           // down
                   places * (up - width) + matrix * hidden,     // activation
                   matrix * (hidden + up) - places * hidden});  // up
}

/// Returns the bytes per token that a block keeps for backward. `element` is the bytes per element
/// of the compute dtype. `places`: places per token of a GPU's experts; 0: experts of a CPU.
double block_bytes(const ModelConfig& c, const BlockParts& block, int64_t element, double places) {
  constexpr double kFloat = sizeof(float), kIndex = sizeof(int64_t);
  const auto bytes_of = [&](int64_t elements) { return static_cast<double>(elements * element); };
  // A quantized Linear recomputes its input from the preceding operation. Otherwise the input is
  // kept.
  const auto input = [&](const mx::LinearRecipe& recipe, int64_t elements) {
    return recipe.quantizes() ? 0.0 : bytes_of(elements);
  };
  // Inputs of both norms, queries, keys, values, and attention's result, which attention.out reads.
  double bytes =
      bytes_of(2 * c.width + qkv_width(c) + c.heads * c.head_dim) + input(block.qkv, c.width);
  const ExpertsRun run = experts_run(block, element);
  if (block.has_experts) bytes += places * device_place_bytes(c, element);
  for (const FeedForwardPart& ffn : block.ffns) {
    if (ffn.routed && places > 0) continue;
    double kept = bytes_of(mx::up_width(c.activation, ffn.width));
    if (ffn.routed && run != ExpertsRun::kModules) {
      kept += kFloat + kIndex + sizeof(int32_t);  // weight, place and token of a choice
      // The experts' rows, and their results, which the gradients of the weights read.
      if (run == ExpertsRun::kQuantizedGroup) kept += bytes_of(2 * c.width);
    } else {
      kept += input(ffn.down, ffn.width);
    }
    if (!block.has_experts) kept += input(ffn.up, c.width);
    if (ffn.routed && run == ExpertsRun::kModules) {
      // Kept for an expert: its rows, as codes if it is quantized, and its result, which the
      // weight's gradient reads. Also that weight, and their product in float32, which ATen's
      // index_add keeps.
      kept += ffn.up.quantizes() ? static_cast<double>(c.width) * (1 + 1.0 / mx::kBlock)
                                 : bytes_of(c.width);
      kept += bytes_of(c.width) + static_cast<double>(c.width + 1) * kFloat + 2 * kIndex;
    }
    bytes += ffn.share * kept;
  }
  if (block.has_experts) {
    // Input of router and shared experts in float32, and a copy in the compute dtype if that is
    // another one. A GPU's experts do not read the copy. Scores and logits.
    const bool copies =
        element < static_cast<int64_t>(sizeof(float)) && (places == 0 || c.moe.shared_experts > 0);
    bytes += static_cast<double>(c.width) * kFloat + (copies ? bytes_of(c.width) : 0);
    bytes += 3 * static_cast<double>(c.moe.experts) * kFloat;
  }
  // rstd (and mean) of both norms, log-sum-exp of each head.
  const auto statistics = (c.norm == "layernorm" ? 4 : 2) + c.heads;
  return bytes + static_cast<double>(statistics) * kFloat;
}

/// Returns the rows per token that a rank keeps if experts are spread over `ranks` ranks.
double exchanged_rows(const moe::Config& moe, int64_t ranks) {
  // Padded: received rows, and returned rows, which the gradients of their weights need.
  if (moe.pad_to_capacity) return 2.0 * static_cast<double>(moe.k);
  // Received rows: a token sends one to each rank that has some of its k different experts.
  const double experts = static_cast<double>(moe.experts),
               own = experts / static_cast<double>(ranks);
  double none = 1;  // share of the tokens without an expert on a rank
  for (int64_t i = 0; i < moe.k; ++i)
    none *= std::max(0.0, 1 - own / std::max(own, experts - static_cast<double>(i)));
  return static_cast<double>(ranks) * (1 - none);
}

/// Returns the rows of logits that linear_cross_entropy holds at once.
int64_t logits_rows(int64_t tokens, int64_t vocab_size, int64_t element) {
  constexpr int64_t kChunkBytes = int64_t{8} << 20, kLeastRows = 512;
  return std::clamp(kChunkBytes / (vocab_size * element), std::min(tokens, kLeastRows), tokens);
}

/// Returns the bytes of the kernels' buffers. A product packs its operands into three panels of at
/// most 8 MiB, or all of a small operand (ops/gemm_simd.cpp). Each thread has a block of rows and
/// one head's keys and values with their gradients.
int64_t kernel_buffers(const ModelConfig& c, int64_t tokens, int64_t rows_of_logits, int threads) {
  constexpr int64_t kFloat = sizeof(float), kPanels = 3 * (int64_t{8} << 20),
                    kRows = 112 * 768 * kFloat;
  const int64_t ffn = c.moe.experts > 0 ? c.moe.ffn_width : c.ffn_width;
  const int64_t widest = std::max({c.width, ffn, c.heads * c.head_dim});
  const int64_t operand = std::max(widest * std::max(tokens, mx::up_width(c.activation, ffn)),
                                   c.width * std::max(c.vocab_size, rows_of_logits));
  return std::min(kPanels, operand * kFloat) +
         threads * (kRows + 5 * c.context * c.head_dim * kFloat);
}

}  // namespace

ModelSize model_size(const ModelConfig& c) {
  const auto table = c.vocab_size * c.width;
  const auto positions = c.positions == "learned" ? c.context * c.width : 0;
  ModelSize size;
  // `met`: matrix parameters that one token uses. `beside`: parameters of any kind that it does not
  // use.
  double met = static_cast<double>(table), beside = 0;
  for (const BlockParts& block : blocks_of(c, {})) {
    const BlockSize of_block = block_size(c, block);
    size.parameters_without_embedding += of_block.total();
    met += static_cast<double>(of_block.matrix) - of_block.matrix_beside;
    beside += of_block.matrix_beside + of_block.vector_beside;
  }
  size.parameters_without_embedding += norm_size(c);
  size.parameters = size.parameters_without_embedding + table + positions + (c.tied ? 0 : table);
  size.active_parameters = size.parameters - std::llround(beside);
  const auto attention = c.layers * c.heads * c.head_dim * c.context;
  size.flops_per_token = 6.0 * met + 6.0 * static_cast<double>(attention);
  return size;
}

int64_t MemoryEstimate::total() const {
  return with_kept(std::max(of_step(), weights + optimizer + all_gradients + checkpoint)) + beside;
}

int64_t MemoryEstimate::while_saving() const { return with_kept(of_step() + checkpoint) + beside; }

MemoryEstimate memory_estimate(const ModelConfig& c, const MemoryEstimateOptions& options) {
  constexpr int64_t kFloat = sizeof(float);
  const int64_t element = options.bfloat16 ? 2 : kFloat;
  const auto tokens = options.micro_batch * c.context;
  const std::vector<BlockParts> blocks = blocks_of(c, options.linears);
  const auto all_parameters = model_size(c).parameters;
  int64_t parameters = all_parameters;  // parameters of this rank
  int64_t wide = norm_size(c);          // parameters that stay in float32
  for (const BlockParts& block : blocks) {
    const BlockSize size = block_size(c, block);
    wide += size.wide;
    parameters -= size.routed * (options.expert_ranks - 1) / options.expert_ranks;
  }
  const auto table = c.vocab_size * c.width * element, stream = tokens * c.width * element;

  MemoryEstimate estimate;
  estimate.weights = (parameters - wide) * element + wide * kFloat;
  estimate.optimizer =
      (2 * parameters * kFloat + (options.bfloat16 ? (parameters - wide) * kFloat : 0)) /
      options.optimizer_ranks;

  int64_t all_blocks = 0, largest_block = 0;
  const double places =
      options.device_rows ? device_places(c.moe, tokens) / static_cast<double>(tokens) : 0;
  for (const BlockParts& block : blocks) {
    auto bytes =
        static_cast<int64_t>(static_cast<double>(tokens) * block_bytes(c, block, element, places));
    if (options.expert_ranks > 1 && block.has_experts)
      bytes += static_cast<int64_t>(exchanged_rows(c.moe, options.expert_ranks) *
                                    static_cast<double>(tokens * c.width * element));
    all_blocks += options.recompute ? stream : bytes;
    largest_block = std::max(largest_block, bytes);
  }
  if (options.recompute) all_blocks += largest_block;
  const auto sums = parameters * kFloat / options.gradient_ranks;
  // Bucket that waits to be scattered. The largest is the embedding's.
  const auto bucket = options.gradient_ranks > 1 ? c.vocab_size * c.width * kFloat : 0;
  const auto gradients = options.bfloat16 && !options.accumulate && !options.distributed
                             ? estimate.weights
                             : sums + bucket;
  // Gradients that outlive a micro-batch. Without them, gradients of later blocks are allocated as
  // activations are freed.
  const auto held = options.accumulate || options.distributed ? sums : 0;

  // Beginning of backward. Forward computes the head's gradients for its input and its matrix.
  const auto rows_of_logits = logits_rows(tokens, c.vocab_size, element);
  const auto logits = rows_of_logits * c.vocab_size * element;
  const auto head_workspace = stream + logits;  // the head's input and a chunk of logits
  // Workspace in backward of the last feed-forward.
  // - A quantized ffn.down holds the gradients of the activation and of ffn.up at the same time. If
  //   its quantizer reads whole tensors, the activation is added.
  // - A quantized ffn.up holds two copies of its gradient and one of its input, but no result.
  // - The gradient of a matrix has a copy.
  // - Copies are float32 on a CPU without bfloat16 products.
  const int64_t copy = mx::emulates_in_bfloat16() ? element : kFloat;
  int64_t ffn_workspace = 0, routed_workspace = 0, rows_workspace = 0;
  for (const FeedForwardPart& ffn : blocks.back().ffns) {
    const auto up = mx::up_width(c.activation, ffn.width);
    const bool by_rows = ffn.down.activation.format && ffn.down.activation.is_microscaling();
    auto row_bytes = std::max(up, ffn.width) * element;
    if (ffn.down.quantizes())
      row_bytes = std::max(row_bytes, ((by_rows ? 1 : 2) * ffn.width + up) * element);
    if (ffn.up.gradient.format) row_bytes = std::max(row_bytes, (2 * up + c.width) * copy);
    const auto rows = static_cast<int64_t>(static_cast<double>(tokens) * ffn.share);
    const ExpertsRun run = experts_run(blocks.back(), element);
    if (ffn.routed && options.device_rows) {
      routed_workspace = static_cast<int64_t>(device_workspace(c, tokens, element));
      continue;
    }
    if (ffn.routed && run == ExpertsRun::kQuantizedGroup) {
      // All experts at once: two copies of a gradient and one of an input, for `down` or for `up`.
      // Also the gradients of the matrices.
      routed_workspace += rows * std::max(up * (element + 2 * copy) + c.width * copy,
                                          c.width * (element + 2 * copy) + ffn.width * copy) +
                          c.width * ((ffn.width + up) * element + up * copy);
      continue;
    }
    if (ffn.routed && run == ExpertsRun::kGrouped) {
      // Gradients of the matrices of all experts. A piece of experts has the activation, its
      // gradient and the gradient of `up`'s result. Its last expert may exceed the limit of rows.
      const int64_t piece = std::min(static_cast<int64_t>(static_cast<double>(tokens) * c.moe.k),
                                     2 * rows + moe::expert_rows_at_once(options.threads));
      rows_workspace = std::max(rows_workspace, piece * (2 * ffn.width + up) * element);
      routed_workspace += c.width * (ffn.width + up) * element;
      continue;
    }
    const auto matrix_bytes = element + (ffn.down.weight.format ? copy : 0);
    ffn_workspace = std::max(ffn_workspace, rows * row_bytes + matrix_bytes * c.width * ffn.width);
  }
  routed_workspace += rows_workspace;
  // Sums of the gradients for their tokens.
  if (routed_workspace > 0) routed_workspace += tokens * c.width * kFloat;
  ffn_workspace = std::max(ffn_workspace, routed_workspace);
  const auto begin = MemoryEstimate{.gradients = held + table,
                                    .activations = all_blocks + stream,
                                    .workspace = stream + std::max(head_workspace, ffn_workspace)};
  // End of backward. A tied matrix has two gradients for a moment: one of the head, one of the
  // embedding.
  const auto end = MemoryEstimate{.gradients = gradients + (c.tied || held > 0 ? table : 0),
                                  .workspace = stream};
  const auto& peak = begin.of_step() > end.of_step() ? begin : end;
  estimate.gradients = peak.gradients;
  estimate.activations = peak.activations;
  estimate.workspace = peak.workspace;
  estimate.all_gradients = gradients;
  estimate.beside = (options.bfloat16 && has_bfloat16_instructions() ? kBesideBFloat16 : kBeside) +
                    kernel_buffers(c, tokens, rows_of_logits, options.threads);
  estimate.checkpoint = options.checkpoints ? 3 * all_parameters * kFloat : 0;
  return estimate;
}

}  // namespace dovetail::models
