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

/// Batch of B rows on the CPU, as a recommender model reads it. D is the number of dense columns
/// (numbers), F of features (lists of ids) and L of labels. All are in the order of the config.
struct RowBatch {
  at::Tensor dense;   ///< (B, D) float32
  at::Tensor values;  ///< (N) int64: ids of feature 0 of all rows, then ids of feature 1, and so on
  /// (F * B + 1) int64. Ids of feature f in row b are `values[i]`, i from `offsets[f * B + b]` up
  /// to, but without, `offsets[f * B + b + 1]`.
  at::Tensor offsets;
  at::Tensor weights;  ///< (N) float32, weight of each id; undefined if no feature has weights
  /// (B, L) float32. NaN: the row has no such label, and the loss must ignore it (missing_label =
  /// "mask").
  at::Tensor labels;
  /// (B) int64, equal for rows of one group, such as a user. Undefined if the config names no
  /// group.
  at::Tensor groups;
};

/// Mean and standard deviation of a dense column, to compute transform = "standard" and missing =
/// "mean" (DenseConfig). They are measured after log1p, if the column has that transform. A run
/// measures them on its training rows, stores them in its checkpoints and never measures them
/// again.
struct DenseScale {
  std::string column;
  double mean = 0, deviation = 0;  ///< population values: sums are divided by the count
  bool operator==(const DenseScale&) const = default;
};

/// Throws UserError unless `scales` has the dense columns of the config, in their order. `source`
/// names the origin of the scales in the error.
void check_scales(const RowsConfig& config, const std::vector<DenseScale>& scales,
                  const std::string& source);

/// Reference to a decoded row of a block.
struct RowRef {
  std::shared_ptr<const RowBlock> block;
  int64_t row = 0;  ///< index among the block's decoded rows; rows that were left out do not count
};

/// Assembles batches from decoded rows: scales numbers, fills in missing numbers and gathers ids.
class RowAssembler {
 public:
  /// `scales` has one entry per dense column of the config, in their order. `decoder`, which
  /// decoded the rows, must outlive this object.
  RowAssembler(const RowsConfig& config, const RowDecoder& decoder,
               const std::vector<DenseScale>& scales);
  /// Returns the batch of these rows, in this order.
  RowBatch batch(std::span<const RowRef> rows) const;

 private:
  /// Conversion of a dense column's number x in a block to its number in the batch: (x - shift) *
  /// scale. A missing number becomes `missing`.
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
