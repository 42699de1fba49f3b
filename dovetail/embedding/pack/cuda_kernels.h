#pragma once

#include <cstddef>
#include <cstdint>

#include "dovetail/embedding/pack/row_optimizer.h"
#include "dovetail/ops/storage.h"

namespace dovetail::embedding {

/// A table on a GPU. Rows of all tables of a pack are numbered one table after another.
struct CudaTable {
  char* rows;    ///< as they are stored, row_bytes each
  float* state;  ///< state_width floats each
  int64_t first_row, dim, row_bytes, state_width;
  /// RowRounding, of bfloat16 rows.
  uint64_t rounding_key;
  int64_t rounding_first_row, rounding_row_step, rounding_first_column;
};

struct CudaFeature {
  int64_t table, column;
  bool mean;
};

/// A pack's layout, in the GPU's memory.
struct CudaPack {
  Storage storage;  ///< of rows
  const CudaTable* tables;
  const CudaFeature* features;
  int64_t num_tables, num_features;
  int64_t widest;  ///< the largest dim, at most kCudaDim
};

/// Elements of a row that the lanes of a warp hold between them.
inline constexpr int64_t kCudaDim = 1024;

/// A Jagged, its features those of the pack.
struct CudaBatch {
  const int64_t *values, *offsets;
  const float* weights;  ///< or null
  int64_t ids, samples;
};

/// *bad = 1 unless the batch is as check_jagged asks.
struct CudaCheckProblem {
  CudaBatch batch;
  int64_t features;
  const int64_t* rows;  ///< (features), kAnyKey where any id is good
  int32_t* bad;         ///< 0 before
};

/// `pool` of lookup.h, with its bits.
struct CudaPoolProblem {
  CudaPack pack;
  CudaBatch batch;
  float* y;  ///< (samples, columns)
  int64_t columns;
};

/// A micro-batch with the gradient of its pooled rows, rows `gradient_stride` floats apart.
struct CudaGradient {
  CudaBatch batch;
  const float* gradient;
  int64_t gradient_stride;
  int64_t first_bag;  ///< of its bags among those of all micro-batches: (sample, feature), the
                      ///< feature running first
};

/// An id of a batch: its bag, and what the bag's gradient is multiplied by.
struct CudaOccurrence {
  uint32_t bag;
  float scale;
};

/// `update` of lookup.h. A row of at most kCudaSerial occurrences has the sum of their order; one
/// of more is summed in kCudaParts parts that follow one another and are equally long within one,
/// which are added in their order. So no bit depends on the GPU, on how a batch was cut or on what
/// else is in the pack.
struct CudaUpdateProblem {
  CudaPack pack;
  UpdateScalars scalars;
  int64_t num_parts;
  const CudaGradient *parts, *parts_on_gpu;  ///< the same
  int64_t bags, count;           ///< bags and ids of all parts, each below 2^31; ids at least one
  int row_bits;                  ///< rows of all tables are numbers below 2^row_bits, at most 2^32
  uint32_t* bag_begins;          ///< (bags + 1), as scratch, as are all below
  uint32_t *keys, *sorted_keys;  ///< (count)
  CudaOccurrence *occurrences, *sorted_occurrences;  ///< (count)
  uint32_t* row_begins;  ///< (count): of each distinct row, its first occurrence
  uint32_t* long_rows;   ///< (count)
  uint32_t* counts;      ///< (2), 0 before: distinct rows, and those that are long
  void* scratch;         ///< update_scratch bytes
  size_t scratch_bytes;
};

inline constexpr uint32_t kCudaSerial = 256;
inline constexpr int kCudaParts = 16;

/// Our kernels for tables on a GPU: work is queued on torch's current stream. They live in the
/// library of dovetail/ops/cuda_kernels.h.
struct CudaKernels {
  void (*check)(const CudaCheckProblem& problem);
  void (*pool)(const CudaPoolProblem& problem);
  size_t (*update_scratch)(int64_t bags, int64_t count, int row_bits);
  void (*update)(const CudaUpdateProblem& problem);
};

/// Throws UserError in a build without nvcc: there is no other way for tables on a GPU. Opens the
/// library at the first call, which needs a GPU in use.
const CudaKernels& cuda_kernels();
/// Whether this build has them.
bool has_cuda_kernels();

/// The library's function, `const CudaKernels* dovetail_embedding_cuda_kernels()`.
inline constexpr const char* kCudaEntry = "dovetail_embedding_cuda_kernels";

}  // namespace dovetail::embedding
