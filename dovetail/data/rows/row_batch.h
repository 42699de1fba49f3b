#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dovetail/data/rows/row_config.h"
#include "dovetail/data/rows/row_decoder.h"

namespace dovetail::data {

/// Batch of B rows on the CPU. Legend: D dense columns, F features and L labels, in the order of
/// the config.
struct RowBatch {
  at::Tensor dense;   ///< (B, D) float32
  at::Tensor values;  ///< (N) int64: ids of feature 0 of all rows, then ids of feature 1, and so on
  /// (F * B + 1) int64. Ids of feature f in row b are `values[i]`, i from `offsets[f * B + b]` up
  /// to, but without, `offsets[f * B + b + 1]`.
  at::Tensor offsets;
  at::Tensor weights;  ///< (N) float32; undefined if no feature has weights
  at::Tensor labels;   ///< (B, L) float32; NaN: masked
  at::Tensor groups;   ///< (B) int64; undefined if the config names no group
};

/// Mean and deviation of a dense column after log1p, for the settings `standard` and `mean`. They
/// are measured on the training rows, kept in the checkpoint and never measured a second time.
struct DenseScale {
  std::string column;
  double mean = 0, deviation = 0;  ///< population values: divided by the count
  bool operator==(const DenseScale&) const = default;
};

/// Throws UserError, naming `source`, unless `scales` has the config's dense columns in their
/// order.
void check_scales(const RowsConfig& config, const std::vector<DenseScale>& scales,
                  const std::string& source);

/// Reference to row `row` among the kept rows of a block.
struct RowRef {
  std::shared_ptr<const RowBlock> block;
  int64_t row = 0;
};

/// Assembles batches of decoded rows.
class RowAssembler {
 public:
  /// `scales` has the dense columns in their order. `decoder` must outlive this object.
  RowAssembler(const RowsConfig& config, const RowDecoder& decoder,
               const std::vector<DenseScale>& scales);
  RowBatch batch(std::span<const RowRef> rows) const;

 private:
  /// Conversion of a block's number x to the batch's number: (x - shift) * scale. A missing number
  /// becomes `missing`.
  struct Transform {
    double shift = 0, scale = 1;
    float missing = 0;
  };
  void add_numbers(std::span<const RowRef> rows, RowBatch& batch) const;
  void add_ids(std::span<const RowRef> rows, RowBatch& batch) const;

  const RowDecoder& decoder_;
  std::vector<Transform> transforms_;
};

}  // namespace dovetail::data
