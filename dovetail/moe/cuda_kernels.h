#pragma once

#include <cstdint>

#include "dovetail/moe/slot_order.h"
#include "dovetail/ops/rows_simd.h"

namespace dovetail::moe {

/// Sizes and options that kernel `route` and its gradient share.
struct RouteShape {
  int64_t tokens, experts, k;
  bool softmax;     ///< scores: softmax of the logits, else sigmoid
  bool normalized;  ///< weights: divided by the sum of the chosen scores
  bool by_vectors;  ///< rows of logits and of their gradient begin at multiples of 16 bytes
  float scale;      ///< factor of all weights
};
/// Largest number of experts of kernel `route`.
inline constexpr int64_t kMostRoutedExperts = 1024;
/// Returns the number of parts into which `route` divides the tokens; each part is summed on its
/// own. It depends on `tokens` alone, so that sums do not depend on the GPU.
inline int64_t route_parts(int64_t tokens) {
  constexpr int64_t kTokensPerPart = 32, kMaxParts = 512;
  const int64_t parts = (tokens + kTokensPerPart - 1) / kTokensPerPart;
  return parts < kMaxParts ? parts : kMaxParts;
}

/// Arguments of kernel `route`: scores, choices, weights and losses (moe/routing.h) of float32
/// logits, without dropped choices. At least one token.
struct RouteProblem {
  RouteShape shape;
  int64_t groups, top_groups;         ///< the choices are from the top_groups best of all groups
  int summed;                         ///< score of a group: sum of its 1 or 2 largest keys
  int64_t counted;                    ///< choices of a token that count as load: the first ones
  float load_factor;                  ///< experts / (tokens * counted)
  const float* logits;                ///< (tokens, experts)
  const float* bias;                  ///< (experts); null: 0
  int32_t* expert;                    ///< result (tokens, k)
  float* weight;                      ///< result (tokens, k)
  float *mean_score, *relative_load;  ///< results (experts)
  float *load_loss, *z_loss;          ///< results, one number each
  /// Workspace: (route_parts, experts) of shares and counts, (route_parts) of squares, one number.
  float *share_parts, *square_parts;
  int32_t *count_parts, *finished;
};

/// Arguments of kernel `route_gradient`. Null gradients are 0.
struct RouteGradientProblem {
  RouteShape shape;
  const float* logits;                                        ///< (tokens, experts)
  const int32_t* expert;                                      ///< (tokens, k)
  const float* relative_load;                                 ///< (experts)
  const float *dweight, *dmean_score, *dload_loss, *dz_loss;  ///< sizes as in RouteProblem
  float* dlogits;                                             ///< result (tokens, experts)
};

/// Arguments of kernel `choose`. For each row (token), it finds the k columns (experts) with the
/// largest score + bias, in descending order. Ties go to the lowest column. NaN counts as
/// -infinity.
struct ChooseProblem {
  bool wide;  ///< true: scores and bias are float64, else float32
  int64_t rows, columns, k;
  const void* scores;  ///< (rows, columns)
  const void* bias;    ///< (columns); null: 0
  /// Column groups that each row may choose from, (rows, top_groups). Null: all groups. A group is
  /// `group_size` neighbouring columns.
  const int32_t* groups;
  int64_t top_groups, group_size;
  int32_t* chosen;  ///< result (rows, k): columns
};

/// Arguments of kernel `score_groups`. A group is `group_size` neighbouring columns.
/// group_scores[r][g] becomes the sum of the `summed` largest values of score + bias in group g of
/// row r. NaN counts as -infinity.
struct GroupScoreProblem {
  bool wide;  ///< true: scores, bias and group_scores are float64, else float32
  int64_t rows, groups, group_size;
  int summed;          ///< 1 or 2, at most group_size
  const void* scores;  ///< (rows, groups * group_size)
  const void* bias;    ///< (groups * group_size); null: 0
  void* group_scores;  ///< result (rows, groups)
};

/// Arguments of kernel `assign_slots`. A choice is one of the k experts of a token. The kernel
/// numbers the choices of each expert from 0 in the order of `sequence`. The number is the slot of
/// the choice. Integer prefix sums over tiles of fixed size give the same result on every GPU.
struct SlotProblem {
  SlotSequence sequence;
  int64_t experts;
  const int32_t* expert;  ///< (tokens, k): expert of each choice
  /// (tokens, k): true: the choice takes no slot, and its entry of `slot` becomes -1; null: false
  /// for all.
  const bool* out;
  /// (tokens): true if a random draw drops the token's second choice. The dropped choice uses up a
  /// slot, but its entry of `slot` becomes -1. Null: no choice is dropped by a draw.
  const bool* drawn;
  int64_t capacity;      ///< slots numbered `capacity` or above become -1; negative: no limit
  int32_t* slot;         ///< result (tokens, k): slot of each choice
  int32_t* tile_counts;  ///< workspace (slot_tiles(tokens k), experts)
  int64_t* count;  ///< result (experts): slots taken, including slots numbered `capacity` or above
};

/// Arguments of kernel `place_rows`: places of choices, sorted by expert and then by rank. At least
/// one expert, and one token or place.
struct RowsProblem {
  int64_t tokens, k, experts, places;
  /// Positive: places of each expert. Choices of higher rank have none. 0: an expert has `spare`
  /// places more than choices, rounded up to `multiple`.
  int64_t capacity, spare, multiple;
  /// (tokens, k): expert of each choice, and its number among the choices of the expert. Negative:
  /// no place. Each expert's numbers are 0, 1 and so on.
  const int32_t *expert, *rank;
  const int64_t* count;  ///< (experts): number of choices that have a rank
  int64_t* begin;        ///< result (experts): first place of each expert
  int32_t* ends;         ///< result (experts): one past the last place
  int64_t* choice;       ///< result (places): t k + j for choice j of token t; tokens k: spare
  int32_t* token;        ///< result (places): token of the choice; 0: spare
  /// Result (tokens, k): -1 for each choice without a place, then the places, ascending.
  int32_t* places_of_token;
};

/// Arguments of kernel `gather_rows`. It computes ops::gather_rows (ops/rows_simd.h), but reads and
/// writes rows place[i] of `other` and `y` instead of rows i. Null `place`: rows i.
struct PlacedRowsProblem {
  ops::GatherRowsProblem rows;
  const int64_t* place;
};

/// Arguments of kernel `sum_rows`: y[t] = sum of weight[r] x[place[r]] over the rows r of token t.
/// The rows are the entries row[t][j] >= 0, in the order of j.
struct SumRowsProblem {
  ops::Storage storage;  ///< number format of x
  int64_t tokens, width, k;
  const void* x;         ///< (places, width)
  const int32_t* row;    ///< (tokens, k)
  const int64_t* place;  ///< (rows); null: place[r] = r
  const float* weight;   ///< (rows); null: weights are 1
  float* y;              ///< result (tokens, width) float32
};

/// Table of the kernels for CUDA tensors. Pointers refer to memory of the current GPU. Work is
/// queued on torch's current stream. The kernels are in a separate library, which
/// dovetail/ops/cuda_kernels.h describes.
struct CudaKernels {
  void (*route)(const RouteProblem& problem);
  void (*route_gradient)(const RouteGradientProblem& problem);
  void (*choose)(const ChooseProblem& problem);
  void (*score_groups)(const GroupScoreProblem& problem);
  void (*assign_slots)(const SlotProblem& problem);
  void (*place_rows)(const RowsProblem& problem);
  void (*gather_rows)(const PlacedRowsProblem& problem);
  void (*sum_rows)(const SumRowsProblem& problem);
};

/// Returns the kernels, or null in a build without nvcc. The first call opens the library; a GPU
/// must then be in use.
const CudaKernels* cuda_kernels();
/// Returns the kernels for operation `op`. Throws UserError naming `op` in a build without kernels,
/// since CUDA tensors have no other implementation.
const CudaKernels& cuda_kernels_for(const char* op);
/// Replaces the kernels. Tests use it to run the source of the kernels on a CPU.
void use_cuda_kernels(const CudaKernels& kernels);

/// Name of the library's entry point, `const CudaKernels* dovetail_moe_cuda_kernels()`.
inline constexpr const char* kCudaEntry = "dovetail_moe_cuda_kernels";

}  // namespace dovetail::moe
