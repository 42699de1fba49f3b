#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dovetail/data/rows/row_config.h"
#include "dovetail/data/rows/row_decoder.h"

namespace dovetail {

/// B rows on CPU. D dense columns, F features and L labels in the order of the config.
struct RowBatch {
  at::Tensor dense;   ///< (B, D) float32
  at::Tensor values;  ///< (N) int64: the ids of feature 0 of all rows, then those of feature 1, ...
  at::Tensor offsets;  ///< (F * B + 1) int64: the ids of feature f in row b are values[offsets[f *
                       ///< B + b], offsets[f * B
                       ///< + b + 1])
  at::Tensor weights;  ///< (N) float32; undefined where no feature has weights
  at::Tensor labels;   ///< (B, L) float32, NaN where masked
  at::Tensor groups;   ///< (B) int64; undefined where the config names no group
};

/// What `standard` and `mean` of a dense column go by, of its numbers after log1p. Measured on
/// training rows, kept in the checkpoint, and never measured again.
struct DenseScale {
  std::string column;
  double mean = 0, deviation = 0;  ///< of the population: divided by the count
  bool operator==(const DenseScale&) const = default;
};

/// Throws UserError, naming `source`, unless `scales` are of the dense columns of the config in
/// their order.
void check_scales(const RowsConfig& config, const std::vector<DenseScale>& scales,
                  const std::string& source);

/// Row `row` of the kept rows of a block.
struct RowRef {
  std::shared_ptr<const RowBlock> block;
  int64_t row = 0;
};

/// Makes batches of decoded rows.
class RowAssembler {
 public:
  /// `scales` of the dense columns in their order. `decoder` must outlive this.
  RowAssembler(const RowsConfig& config, const RowDecoder& decoder,
               const std::vector<DenseScale>& scales);
  RowBatch batch(std::span<const RowRef> rows) const;

 private:
  /// What turns a number of a block into one of a batch: (x - shift) * scale, or `missing` for
  /// none.
  struct Transform {
    double shift = 0, scale = 1;
    float missing = 0;
  };
  void add_numbers(std::span<const RowRef> rows, RowBatch& batch) const;
  void add_ids(std::span<const RowRef> rows, RowBatch& batch) const;

  const RowDecoder& decoder_;
  std::vector<Transform> transforms_;
};

}  // namespace dovetail
