#pragma once

#include <cstdint>
#include <vector>

namespace dovetail::embedding {

/// Micro-batch as raw pointers: the tensors of its Jagged, and the gradient of the lookup's result.
/// Rows of the gradient are `gradient_stride` floats apart.
struct MicroBatch {
  const int64_t *values, *offsets;
  const float* weights;  ///< null if the batch has no weights
  int64_t samples;
  const float* gradient;
  int64_t gradient_stride;
};

/// Occurrence of one id in an update. Its bag has the ids of the same feature in the same sample.
/// The occurrence adds `scale` * `gradient` to the gradient of the id's row.
struct Occurrence {
  /// Gradient of the bag's pooled row; under Pooling::kNone, gradient of the id's own output row.
  const float* gradient;
  float scale;  ///< weight of the id (1 without weights), divided by the bag's size for a mean
};

/// Columns of the lookup's output that come from one table.
struct TableColumns {
  /// Features that look into the table, and the first column of each in the pooled output.
  std::vector<int64_t> features, columns;
  bool mean;      ///< true for Pooling::kMean
  bool unpooled;  ///< true for Pooling::kNone
};

/// Returns the sort key of an occurrence. Its row is in the upper 32 bits. In the lower 32 bits is
/// its index among all occurrences of the table in the update.
constexpr uint64_t key_of(uint64_t row, uint64_t index) { return row << 32 | index; }
constexpr uint64_t row_of(uint64_t key) { return key >> 32; }
constexpr uint64_t index_of(uint64_t key) { return key & 0xffffffff; }

/// Returns the number of occurrences of a table's rows in samples [0, sample) of a micro-batch.
int64_t count_occurrences(const TableColumns& table, const MicroBatch& batch, int64_t sample);

/// Lists the occurrences of a table's rows in samples [begin, end) of a micro-batch, and their sort
/// keys. Writes them to `occurrences` and `keys` from the first element on. The order is (sample,
/// feature, position in the bag). Cutting a batch into micro-batches does not change this order.
/// The first occurrence gets index `first` in its key, the next `first` + 1, and so on.
void list_occurrences(const TableColumns& table, const MicroBatch& batch, int64_t begin,
                      int64_t end, uint64_t first, uint64_t* keys, Occurrence* occurrences);

/// Sorts keys by row, then by index. Rows are below 2^row_bits, and the keys come in ascending
/// order of index. The radix sort reads only the row bits and keeps the order of indices. `scratch`
/// has room for `count` keys. Returns the array that holds the result: `keys` or `scratch`.
uint64_t* sort_keys(uint64_t* keys, uint64_t* scratch, int64_t count, int row_bits);

}  // namespace dovetail::embedding
