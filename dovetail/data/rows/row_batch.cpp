#include "dovetail/data/rows/row_batch.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "dovetail/base/error.h"

namespace dovetail::data {

void check_scales(const RowsConfig& config, const std::vector<DenseScale>& scales,
                  const std::string& source) {
  size_t i = 0;
  for (const DenseConfig& entry : config.dense)
    for (const std::string& column : entry.columns) {
      user_check(i < scales.size() && scales[i].column == column,
                 "{}: statistics of the dense columns are of others: `{}` has none; it was written "
                 "by another version or for another [rows]",
                 source, column);
      ++i;
    }
}

RowAssembler::RowAssembler(const RowsConfig& config, const RowDecoder& decoder,
                           const std::vector<DenseScale>& scales)
    : decoder_(decoder) {
  for (const DenseConfig& entry : config.dense)
    for (size_t c = 0; c < entry.columns.size(); ++c) {
      const DenseScale& column = scales[transforms_.size()];
      Transform t;
      if (entry.transform == "standard") {
        t.shift = column.mean;
        t.scale = column.deviation > 0 ? 1 / column.deviation : 1;
      }
      // ln(1 + 0) is 0. Only `standard` therefore shifts a missing number that counts as 0.
      t.missing =
          static_cast<float>(((entry.missing == "mean" ? column.mean : 0) - t.shift) * t.scale);
      transforms_.push_back(t);
    }
}

RowBatch RowAssembler::batch(std::span<const RowRef> rows) const {
  RowBatch batch;
  add_numbers(rows, batch);
  add_ids(rows, batch);
  if (!decoder_.has_groups()) return batch;
  batch.groups = at::empty({std::ssize(rows)}, at::kLong);
  auto* group = batch.groups.mutable_data_ptr<int64_t>();
  for (const RowRef& ref : rows) *group++ = ref.block->groups[static_cast<size_t>(ref.row)];
  return batch;
}

void RowAssembler::add_numbers(std::span<const RowRef> rows, RowBatch& batch) const {
  const int64_t num_dense = decoder_.num_dense(), num_labels = decoder_.num_labels();
  batch.dense = at::empty({std::ssize(rows), num_dense}, at::kFloat);
  batch.labels = at::empty({std::ssize(rows), num_labels}, at::kFloat);
  auto* dense = batch.dense.mutable_data_ptr<float>();
  auto* labels = batch.labels.mutable_data_ptr<float>();
  for (const RowRef& ref : rows) {
    const double* const numbers = ref.block->dense.data() + ref.row * num_dense;
    for (int64_t d = 0; d < num_dense; ++d) {
      const Transform& t = transforms_[static_cast<size_t>(d)];
      *dense++ =
          std::isnan(numbers[d]) ? t.missing : static_cast<float>((numbers[d] - t.shift) * t.scale);
    }
    labels = std::copy_n(ref.block->labels.data() + ref.row * num_labels, num_labels, labels);
  }
}

void RowAssembler::add_ids(std::span<const RowRef> refs, RowBatch& batch) const {
  const int64_t features = decoder_.num_features(), rows = std::ssize(refs);
  batch.offsets = at::empty({features * rows + 1}, at::kLong);
  auto* const offsets = batch.offsets.mutable_data_ptr<int64_t>();
  offsets[0] = 0;
  const auto span_of = [&](int64_t f, int64_t b) {
    const RowRef& ref = refs[static_cast<size_t>(b)];
    const uint32_t begin = ref.block->begin(ref.row, f, features);
    return std::pair{begin, ref.block->ends[static_cast<size_t>(ref.row * features + f)] - begin};
  };
  for (int64_t b = 0; b < rows; ++b)
    for (int64_t f = 0; f < features; ++f) offsets[f * rows + b + 1] = span_of(f, b).second;
  for (int64_t i = 0; i < features * rows; ++i) offsets[i + 1] += offsets[i];
  batch.values = at::empty({offsets[features * rows]}, at::kLong);
  auto* const ids = batch.values.mutable_data_ptr<int64_t>();
  float* weights = nullptr;
  if (decoder_.has_weights()) {
    batch.weights = at::empty({offsets[features * rows]}, at::kFloat);
    weights = batch.weights.mutable_data_ptr<float>();
  }
  for (int64_t b = 0; b < rows; ++b)
    for (int64_t f = 0; f < features; ++f) {
      const auto [begin, length] = span_of(f, b);
      const RowBlock& block = *refs[static_cast<size_t>(b)].block;
      std::copy_n(block.ids.data() + begin, length, ids + offsets[f * rows + b]);
      if (weights != nullptr)
        std::copy_n(block.weights.data() + begin, length, weights + offsets[f * rows + b]);
    }
}

}  // namespace dovetail::data
