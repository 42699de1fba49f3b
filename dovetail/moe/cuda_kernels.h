#pragma once

#include <cstdint>

#include "dovetail/moe/slot_order.h"
#include "dovetail/ops/rows_simd.h"

namespace dovetail::moe {

/// The k columns of the largest score + bias of each row, descending, ties to the lowest column;
/// NaN as -infinity.
struct ChooseProblem {
  bool wide;  ///< scores and bias are float64, else float32
  int64_t rows, columns, k;
  const void* scores;  ///< (rows, columns)
  const void* bias;    ///< (columns); null: 0
  const int32_t*
      groups;  ///< (rows, top_groups): a row's columns lie in these groups; null: anywhere
  int64_t top_groups, group_size;
  int32_t* chosen;  ///< (rows, k)
};

/// score[r][g] = the sum of the `summed` largest score + bias of the columns of group g; NaN as
/// -infinity.
struct GroupScoreProblem {
  bool wide;
  int64_t rows, groups, group_size;
  int summed;  ///< 1 or 2, at most group_size
  const void* scores;
  const void* bias;
  void* group_scores;  ///< (rows, groups)
};

/// Slots that the choices of a sequence take, one expert's counted from 0 in the order of the
/// sequence. Integer prefix sums over tiles of fixed size: the same on every GPU.
struct SlotProblem {
  SlotSequence sequence;
  int64_t experts;
  const int32_t* expert;  ///< (tokens, k)
  const bool* out;        ///< (tokens, k): takes no slot and gets -1; null: none
  const bool* drawn;      ///< (tokens): the second choice takes its slot and gets -1; null: none
  int64_t capacity;       ///< slots from this one on become -1; below 0: none
  int32_t* slot;          ///< (tokens, k)
  int32_t* tile_counts;   ///< (slot_tiles(tokens k), experts), zeros before
  int64_t* count;         ///< (experts): slots taken, those from `capacity` on too
};

/// Rows of kept choices sorted by expert: that of choice c, kept where slot[c] >= 0, is
/// begin[expert[c]] + rank[c].
struct RowsProblem {
  int64_t choices, k;
  const int32_t *expert, *rank;  ///< rank below 0: not kept
  const int64_t* begin;          ///< (experts)
  int64_t* choice;               ///< (rows)
  int32_t* token;                ///< (rows)
  int32_t* row;                  ///< (choices): -1 where not kept
};

/// `gather_rows` of rows_simd.h, to place[i] instead of i where `place` is not null, for `y` and
/// `other`.
struct PlacedRowsProblem {
  GatherRowsProblem rows;
  const int64_t* place;
};

/// y[t] = sum over the j with row[t][j] >= 0, in their order, of weight[row] x[place[row]]; y
/// (tokens, width) float32; weight null: 1; place null: row itself.
struct SumRowsProblem {
  Storage storage;
  int64_t tokens, width, k;
  const void* x;
  const int32_t* row;  ///< (tokens, k)
  const int64_t* place;
  const float* weight;
  float* y;
};

/// Our kernels for CUDA tensors: pointers are to the current GPU's memory, work is queued on
/// torch's current stream. They live in the library of dovetail/ops/cuda_kernels.h.
struct CudaKernels {
  void (*choose)(const ChooseProblem& problem);
  void (*score_groups)(const GroupScoreProblem& problem);
  void (*assign_slots)(const SlotProblem& problem);
  void (*sort_rows)(const RowsProblem& problem);
  void (*gather_rows)(const PlacedRowsProblem& problem);
  void (*sum_rows)(const SumRowsProblem& problem);
};

/// Null in a build without nvcc. Opens the library at the first call, which needs a GPU in use.
const CudaKernels* cuda_kernels();
/// Throws UserError naming `op` where the build has none: there is no other way for CUDA tensors.
const CudaKernels& cuda_kernels_for(const char* op);

/// The library's function, `const CudaKernels* dovetail_moe_cuda_kernels()`.
inline constexpr const char* kCudaEntry = "dovetail_moe_cuda_kernels";

}  // namespace dovetail::moe
