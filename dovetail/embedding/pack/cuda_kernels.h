#pragma once

#include <cstddef>
#include <cstdint>

#include "dovetail/base/host_device.h"
#include "dovetail/embedding/pack/row_optimizer.h"
#include "dovetail/ops/storage.h"

namespace dovetail::embedding {

/// Table on a GPU. The rows of all tables in a pack (PackSpec in table.h) are numbered
/// consecutively, one table after another. `first_row` is the number of this table's first row, and
/// `count` the number of its rows. `dim` is the number of elements of a row.
struct CudaTable {
  char* rows;    ///< rows in their stored format, row_bytes each
  float* state;  ///< optimizer state, state_width floats for each row
  int64_t first_row, count, dim, row_bytes, state_width;
  /// Fields of RowRounding (row_format.h) for stochastic rounding. Only bfloat16 rows use them.
  int64_t rounding_first_row, rounding_row_step, rounding_first_column;
  const uint32_t* row_of;
};

/// Feature of a pack. `table` is the index of its table. `column` is the first column of its pooled
/// rows in the output. `mean` is true for Pooling::kMean and false for kSum.
struct CudaFeature {
  int64_t table, column;
  bool mean;
};

/// Layout of a pack (tables that are looked up together). The pointers are to GPU memory.
struct CudaPack {
  ops::Storage storage;  ///< dtype of the rows
  const CudaTable* tables;
  const CudaFeature* features;
  int64_t num_tables, num_features;
  int64_t widest;  ///< largest dim of all tables, at most kCudaDim
  bool one_each;   ///< true if no table has two features
};

/// Maximum elements of a row: the lanes of one warp hold it in their registers.
inline constexpr int64_t kCudaDim = 1024;

/// Batch (Jagged in jagged.h) on the GPU, with `ids` ids in `samples` samples. Its features are the
/// pack's features.
struct CudaBatch {
  const int64_t *values, *offsets;
  const float* weights;  ///< null if the batch has no weights
  int64_t ids, samples;
};

/// Arguments of CudaKernels::check, which checks a batch by the rules of check_jagged.
struct CudaCheckProblem {
  CudaBatch batch;
  int64_t features;
  /// Number of rows of each feature's table, (features); kAnyKey for tables where any id is valid.
  const int64_t* rows;
  int32_t* bad;  ///< set to 1 if the batch breaks a rule; the caller sets it to 0 before
};

/// Arguments of CudaKernels::pool, which computes `pool` of lookup.h. The result has the same bits
/// as on the CPU.
struct CudaPoolProblem {
  CudaPack pack;
  CudaBatch batch;
  float* y;  ///< (samples, columns)
  int64_t columns;
};

/// Micro-batch with the gradient of its pooled rows, (samples, columns). Rows of the gradient are
/// `gradient_stride` floats apart.
struct CudaGradient {
  CudaBatch batch;
  const float* gradient;
  int64_t gradient_stride;
  /// Number of the micro-batch's first bag among the bags of all micro-batches in the update. A bag
  /// has the ids of one feature in one sample. Bags are numbered by (sample, feature), with the
  /// feature varying fastest.
  int64_t first_bag;
  int64_t first_id;  ///< number of ids in the micro-batches before this one
};

/// Occurrence of one id in an update. It adds `scale` times its bag's gradient to the gradient of
/// the id's row.
struct CudaOccurrence {
  uint32_t bag;  ///< number of the bag, counted as for CudaGradient::first_bag
  float scale;   ///< weight of the id (1 without weights), divided by the bag's size for a mean
};

/// Arguments of CudaKernels::update, which computes `update` of lookup.h. A row's gradient is the
/// sum over its n occurrences:
/// - n <= kCudaSerial: all occurrences are added one after the other.
/// - n > kCudaSerial: the occurrences are cut into kCudaParts consecutive ranges, whose lengths
///   differ by at most one. The occurrences of each range are added in order. Then the sums of the
///   ranges are added in order.
///
/// So no bit depends on the GPU, on the cut into micro-batches or on other tables in the pack.
struct CudaUpdateProblem {
  CudaPack pack;
  UpdateScalars scalars;
  /// RowRounding::key of each table, (num_tables) on the GPU. Null unless rows are bfloat16.
  const uint64_t* rounding_keys;
  /// Number of micro-batches.
  int64_t num_parts;
  /// The micro-batches, (num_parts): the same elements in host memory and in GPU memory.
  const CudaGradient *parts, *parts_on_gpu;
  /// Number of bags and number of ids in all micro-batches, each below 2^31. There is at least one
  /// id.
  int64_t bags, count;
  /// Number of bits of a row number, at most 32: all row numbers are below 2^row_bits.
  int row_bits;

  // All arrays below are scratch memory on the GPU.

  /// bag_begins[b] is the index of bag b's first occurrence in `keys`, (bags + 1). The element
  /// after the last bag is `count`. Null if CudaPack::one_each.
  uint32_t* bag_begins;
  /// Row number of each occurrence, (count). `keys` are in the order of bags, or in the order of
  /// the ids if CudaPack::one_each. `sorted_keys` are sorted by row. If no micro-batch has samples,
  /// the caller has listed `keys` and `occurrences`.
  uint32_t *keys, *sorted_keys;
  /// The occurrences in these two orders, (count) each.
  CudaOccurrence *occurrences, *sorted_occurrences;
  /// For each distinct row, the index of its first occurrence in `sorted_keys`. Room for (count).
  uint32_t* row_begins;
  /// Indices in row_begins of the rows with more than kCudaSerial occurrences. Room for (count).
  uint32_t* long_rows;
  /// Number of entries in row_begins, and number of entries in long_rows. The caller sets both to
  /// 0.
  uint32_t* counts;
  /// Memory for sorting, CudaKernels::update_scratch(bags, count, row_bits) bytes.
  void* scratch;
  size_t scratch_bytes;
};

/// Maximum number of occurrences of a row whose gradients are added one after the other.
inline constexpr uint32_t kCudaSerial = 256;
/// Number of ranges into which a row's occurrences are cut if they are more than kCudaSerial.
inline constexpr int kCudaParts = 16;

/// Move of rows through one slot, a place for one row in a table. A record is a row with its
/// optimizer state. It has the stored row, padded to kRecordAlign bytes, then the state, padded
/// likewise. Records begin at multiples of kRecordAlign.
struct CudaRowMove {
  static constexpr int64_t kNone = -1, kZeros = -2, kRecordAlign = 16;
  /// First byte in CudaMoveProblem::out of the record of the row that leaves the slot. kNone: the
  /// row in the slot is not needed any more.
  int64_t out;
  /// First byte in CudaMoveProblem::in of the record that comes into the slot after that. kZeros:
  /// zeros. kNone: the slot does not change.
  int64_t in;
  uint32_t table, slot;
  uint32_t row;  ///< number of the row that comes, for CudaMoveProblem::row_of
};

/// Returns the bytes of a part of a record: a stored row or its state, with `bytes` bytes.
DOVETAIL_HOST_DEVICE constexpr int64_t padded(int64_t bytes) {
  return (bytes + CudaRowMove::kRecordAlign - 1) / CudaRowMove::kRecordAlign *
         CudaRowMove::kRecordAlign;
}

/// Arguments of CudaKernels::move, which carries out moves of different slots. All arrays are in
/// GPU memory.
struct CudaMoveProblem {
  CudaPack pack;
  const CudaRowMove* moves;
  int64_t count;  ///< number of moves, at least one
  const char* in;
  char* out;
  /// Numbers of the rows in all slots, (slots of all tables): `row_of` of the first table. Slots of
  /// all tables are numbered consecutively. The moves write the numbers of the rows that come.
  /// Null: the numbers are not needed.
  uint32_t* row_of;
};

/// Kernels for tables on a GPU. They queue work on torch's current stream. Their code is in the
/// kernel library that dovetail/ops/cuda_kernels.h opens.
struct CudaKernels {
  void (*check)(const CudaCheckProblem& problem);
  void (*pool)(const CudaPoolProblem& problem);
  /// Returns the bytes for CudaUpdateProblem::scratch.
  size_t (*update_scratch)(int64_t bags, int64_t count, int row_bits);
  void (*update)(const CudaUpdateProblem& problem);
  void (*move)(const CudaMoveProblem& problem);
};

/// Returns the kernels. The first call opens the library and requires that load_gpu (base/gpu.h)
/// has succeeded. Throws UserError in a build without nvcc, since tables on a GPU have no fallback.
const CudaKernels& cuda_kernels();
/// Returns true if this build has the kernels.
bool has_cuda_kernels();

/// Name of the library's entry function, `const CudaKernels* dovetail_embedding_cuda_kernels()`.
inline constexpr const char* kCudaEntry = "dovetail_embedding_cuda_kernels";

}  // namespace dovetail::embedding
