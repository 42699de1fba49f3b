#pragma once

#include <cstdint>
#include <vector>

namespace dovetail::embedding {

/// A micro-batch as pointers: its Jagged and the gradient of what was looked up, rows
/// `gradient_stride` floats apart.
struct MicroBatch {
  const int64_t *values, *offsets;
  const float* weights;  ///< or null
  int64_t samples;
  const float* gradient;
  int64_t gradient_stride;
};

/// One id of a batch: the gradient of the bag it stands in, or without pooling its own, and what
/// that is multiplied by to be the gradient of the row.
struct Occurrence {
  const float* gradient;
  float scale;
};

/// A table as the batch sees it.
struct TableColumns {
  std::vector<int64_t> features,
      columns;  ///< its features and where each begins in the pooled output
  bool mean;
  bool unpooled;
};

/// An occurrence of a row is a key: the row in the upper 32 bits, its index in the order of
/// occurrences in the lower.
constexpr uint64_t key_of(uint64_t row, uint64_t index) { return row << 32 | index; }
constexpr uint64_t row_of(uint64_t key) { return key >> 32; }
constexpr uint64_t index_of(uint64_t key) { return key & 0xffffffff; }

/// The occurrences of a table's rows in samples [0, sample) of a micro-batch.
int64_t count_occurrences(const TableColumns& table, const MicroBatch& batch, int64_t sample);

/// Writes keys and occurrences of samples [begin, end) in the order (sample, feature, position in
/// the bag), the order that does not change when a batch is cut into micro-batches; `first` is the
/// index of the first. `keys` and `occurrences` are where it is written.
void list_occurrences(const TableColumns& table, const MicroBatch& batch, int64_t begin,
                      int64_t end, uint64_t first, uint64_t* keys, Occurrence* occurrences);

/// Sorts keys that stand in the order of their indices by rows below 2^row_bits: a radix sort of
/// the rows' bits alone, which keeps the order of indices. `scratch` has room for `count`; the
/// sorted keys lie in the one that is returned.
uint64_t* sort_keys(uint64_t* keys, uint64_t* scratch, int64_t count, int row_bits);

}  // namespace dovetail::embedding
