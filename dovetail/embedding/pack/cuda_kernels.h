#pragma once

#include <cstddef>
#include <cstdint>

#include "dovetail/embedding/pack/row_optimizer.h"
#include "dovetail/ops/storage.h"

namespace dovetail::embedding {

/// Table on a GPU. The rows of all tables in a pack are numbered consecutively, one table after
/// another.
struct CudaTable {
  char* rows;    ///< rows in their stored format, row_bytes each
  float* state;  ///< optimizer state, state_width floats for each row
  int64_t first_row, dim, row_bytes, state_width;
  /// Fields of RowRounding. Only bfloat16 rows use them.
  uint64_t rounding_key;
  int64_t rounding_first_row, rounding_row_step, rounding_first_column;
};

struct CudaFeature {
  int64_t table, column;
  bool mean;
};

/// Layout of a pack (tables that are looked up together). The pointers are in GPU memory.
struct CudaPack {
  ops::Storage storage;  ///< dtype of the rows
  const CudaTable* tables;
  const CudaFeature* features;
  int64_t num_tables, num_features;
  int64_t widest;  ///< largest dim of all tables, at most kCudaDim
};

/// Maximum elements of a row: the lanes of one warp hold it in their registers.
inline constexpr int64_t kCudaDim = 1024;

/// Jagged batch on the GPU. Its features are the pack's features.
struct CudaBatch {
  const int64_t *values, *offsets;
  const float* weights;  ///< null if the batch has no weights
  int64_t ids, samples;
};

/// Sets *bad to 1 if the batch violates the rules of check_jagged.
struct CudaCheckProblem {
  CudaBatch batch;
  int64_t features;
  const int64_t* rows;  ///< rows of each feature's table, (features); kAnyKey where any id is valid
  int32_t* bad;         ///< the caller sets it to 0
};

/// Arguments of `pool` (lookup.h). The result has the same bits as on the CPU.
struct CudaPoolProblem {
  CudaPack pack;
  CudaBatch batch;
  float* y;  ///< (samples, columns)
  int64_t columns;
};

/// Micro-batch with the gradient of its pooled rows. Gradient rows are `gradient_stride` floats
/// apart.
struct CudaGradient {
  CudaBatch batch;
  const float* gradient;
  int64_t gradient_stride;
  /// Number of its first bag among the bags of all micro-batches. Bags are numbered by (sample,
  /// feature), with the feature varying fastest.
  int64_t first_bag;
};

/// Occurrence of one id in a batch: its bag, and the factor for the bag's gradient.
struct CudaOccurrence {
  uint32_t bag;
  float scale;
};

/// Arguments of `update` (lookup.h). A row with at most kCudaSerial occurrences is summed in their
/// order. The occurrences of any other row are cut into kCudaParts consecutive parts. Part lengths
/// differ by at most one. Each part is summed in order, then the part sums are added in order. So
/// no bit depends on the GPU, on the cut into micro-batches or on other tables in the pack.
struct CudaUpdateProblem {
  CudaPack pack;
  UpdateScalars scalars;
  int64_t num_parts;
  /// The micro-batches, (num_parts): the same elements in host memory and in GPU memory.
  const CudaGradient *parts, *parts_on_gpu;
  /// Total bags and ids of all parts, each below 2^31. There is at least one id.
  int64_t bags, count;
  /// Row numbers of all tables are below 2^row_bits, at most 2^32.
  int row_bits;
  uint32_t* bag_begins;          ///< (bags + 1). Scratch memory, like all arrays below
  uint32_t *keys, *sorted_keys;  ///< (count)
  CudaOccurrence *occurrences, *sorted_occurrences;  ///< (count)
  uint32_t* row_begins;  ///< (count): first occurrence of each distinct row
  uint32_t* long_rows;   ///< (count)
  uint32_t* counts;      ///< (2), 0 before the call: distinct rows; rows with more than kCudaSerial
                         ///< occurrences
  void* scratch;         ///< update_scratch(...) bytes
  size_t scratch_bytes;
};

inline constexpr uint32_t kCudaSerial = 256;
inline constexpr int kCudaParts = 16;

/// Kernels for tables on a GPU. They queue work on torch's current stream. Their code is in the
/// kernel library that dovetail/ops/cuda_kernels.h opens.
struct CudaKernels {
  void (*check)(const CudaCheckProblem& problem);
  void (*pool)(const CudaPoolProblem& problem);
  size_t (*update_scratch)(int64_t bags, int64_t count, int row_bits);
  void (*update)(const CudaUpdateProblem& problem);
};

/// Returns the kernels. The first call opens the library and requires a GPU in use. Throws
/// UserError in a build without nvcc, since tables on a GPU have no fallback.
const CudaKernels& cuda_kernels();
/// Returns true if this build has the kernels.
bool has_cuda_kernels();

/// Name of the library's entry function, `const CudaKernels* dovetail_embedding_cuda_kernels()`.
inline constexpr const char* kCudaEntry = "dovetail_embedding_cuda_kernels";

}  // namespace dovetail::embedding
