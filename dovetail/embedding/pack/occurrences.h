#pragma once

#include <cstdint>
#include <vector>

namespace dovetail::embedding {

/// Micro-batch as raw pointers: its Jagged, and the gradient of the lookup's result. Gradient rows
/// are `gradient_stride` floats apart.
struct MicroBatch {
  const int64_t *values, *offsets;
  const float* weights;  ///< null if the batch has no weights
  int64_t samples;
  const float* gradient;
  int64_t gradient_stride;
};

/// Occurrence of one id. `gradient` belongs to its bag, or to the id itself without pooling. The
/// row's gradient is `scale` * `gradient`.
struct Occurrence {
  const float* gradient;
  float scale;
};

/// A table's part of the pooled output.
struct TableColumns {
  /// Features that look into the table, and the first column of each in the pooled output.
  std::vector<int64_t> features, columns;
  bool mean;
  bool unpooled;
};

/// Sort key of an occurrence: the row in the upper 32 bits, the index of the occurrence in the
/// lower 32.
constexpr uint64_t key_of(uint64_t row, uint64_t index) { return row << 32 | index; }
constexpr uint64_t row_of(uint64_t key) { return key >> 32; }
constexpr uint64_t index_of(uint64_t key) { return key & 0xffffffff; }

/// Counts the occurrences of a table's rows in samples [0, sample) of a micro-batch.
int64_t count_occurrences(const TableColumns& table, const MicroBatch& batch, int64_t sample);

/// Writes keys and occurrences of samples [begin, end) to `keys` and `occurrences`. The order is
/// (sample, feature, position in the bag). Cutting a batch into micro-batches does not change this
/// order. `first` is the index of the first occurrence.
void list_occurrences(const TableColumns& table, const MicroBatch& batch, int64_t begin,
                      int64_t end, uint64_t first, uint64_t* keys, Occurrence* occurrences);

/// Sorts keys by row. Rows are below 2^row_bits, and the keys come in ascending order of index. The
/// radix sort reads only the row bits and keeps the order of indices. `scratch` has room for
/// `count` keys. Returns the array that holds the result: `keys` or `scratch`.
uint64_t* sort_keys(uint64_t* keys, uint64_t* scratch, int64_t count, int row_bits);

}  // namespace dovetail::embedding
