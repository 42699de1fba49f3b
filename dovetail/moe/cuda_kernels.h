#pragma once

#include <cstdint>

#include "dovetail/moe/slot_order.h"
#include "dovetail/ops/rows_simd.h"

namespace dovetail::moe {

/// For each row: the k columns with the largest score + bias, in descending order. Ties go to the
/// lowest column. NaN counts as -infinity.
struct ChooseProblem {
  bool wide;  ///< true: scores and bias are float64, else float32
  int64_t rows, columns, k;
  const void* scores;  ///< (rows, columns)
  const void* bias;    ///< (columns); null: 0
  /// Groups that the columns of a row may come from, (rows, top_groups). Null: all groups.
  const int32_t* groups;
  int64_t top_groups, group_size;
  int32_t* chosen;  ///< (rows, k)
};

/// Computes score[r][g]: the sum of the `summed` largest score + bias in the columns of group g.
/// NaN counts as -infinity.
struct GroupScoreProblem {
  bool wide;
  int64_t rows, groups, group_size;
  int summed;  ///< 1 or 2, at most group_size
  const void* scores;
  const void* bias;
  void* group_scores;  ///< (rows, groups)
};

/// Assigns slots to the choices of a sequence. Each expert's slots are counted from 0 in the order
/// of the sequence. Integer prefix sums over tiles of fixed size give the same result on every GPU.
struct SlotProblem {
  SlotSequence sequence;
  int64_t experts;
  const int32_t* expert;  ///< (tokens, k)
  const bool* out;        ///< (tokens, k): choices that take no slot and get -1; null: none of them
  const bool* drawn;      ///< (tokens): the second choice takes a slot, but gets -1; null: never
  int64_t capacity;       ///< slots from `capacity` on become -1; negative: no limit
  int32_t* slot;          ///< (tokens, k)
  int32_t* tile_counts;   ///< (slot_tiles(tokens k), experts); the caller fills it with zeros
  int64_t* count;         ///< (experts): number of slots taken, including slots from `capacity` on
};

/// Sorts kept choices by expert. Choice c is kept if rank[c] >= 0; its row is then begin[expert[c]]
/// + rank[c].
struct RowsProblem {
  int64_t choices, k;
  const int32_t *expert, *rank;  ///< (choices); negative rank: not kept
  const int64_t* begin;          ///< (experts): first row of each expert
  int64_t* choice;               ///< (rows): choice of each row
  int32_t* token;                ///< (rows): token of each row
  int32_t* row;                  ///< (choices): row of each choice; -1 if not kept
};

/// Runs `gather_rows` of rows_simd.h with rows `place[i]` of `y` and `other` instead of rows i.
/// Null `place`: rows i.
struct PlacedRowsProblem {
  ops::GatherRowsProblem rows;
  const int64_t* place;
};

/// Computes y[t] = sum of weight[r] x[place[r]] over the rows r = row[t][j] >= 0, in the order of
/// j. y: (tokens, width) float32. Null `weight`: weights are 1. Null `place`: place[r] = r.
struct SumRowsProblem {
  ops::Storage storage;
  int64_t tokens, width, k;
  const void* x;
  const int32_t* row;  ///< (tokens, k)
  const int64_t* place;
  const float* weight;
  float* y;
};

/// Table of the kernels for CUDA tensors. Pointers refer to memory of the current GPU. Work is
/// queued on torch's current stream. The kernels are in the library that
/// dovetail/ops/cuda_kernels.h describes.
struct CudaKernels {
  void (*choose)(const ChooseProblem& problem);
  void (*score_groups)(const GroupScoreProblem& problem);
  void (*assign_slots)(const SlotProblem& problem);
  void (*sort_rows)(const RowsProblem& problem);
  void (*gather_rows)(const PlacedRowsProblem& problem);
  void (*sum_rows)(const SumRowsProblem& problem);
};

/// Returns the kernels, or null in a build without nvcc. The first call opens the library and needs
/// a GPU in use.
const CudaKernels* cuda_kernels();
/// Returns the kernels, or throws UserError naming `op` in a build without them. CUDA tensors have
/// no other implementation.
const CudaKernels& cuda_kernels_for(const char* op);

/// Name of the library's entry point, `const CudaKernels* dovetail_moe_cuda_kernels()`.
inline constexpr const char* kCudaEntry = "dovetail_moe_cuda_kernels";

}  // namespace dovetail::moe
