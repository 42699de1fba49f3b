#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace dovetail::embedding {

/// The sparse input of a batch, any number of ids per feature and sample, in the layout of
/// TorchRec's KeyedJaggedTensor: the bag of feature f and sample b is values[offsets[f * samples +
/// b]] up to, without it, values[offsets[f * samples + b + 1]].
struct Jagged {
  at::Tensor values;   ///< (N) int64: ids
  at::Tensor offsets;  ///< (features * samples + 1) int64, ascending from 0 to N
  at::Tensor weights;  ///< (N) float32, one for each id; or undefined: 1
  int64_t features = 0, samples = 0;
};

/// The rows of a table without a fixed vocabulary, for check_jagged: its ids are keys, any 64 bits.
constexpr int64_t kAnyKey = 0;

/// Throws UserError, with the feature, the sample and the id where one is to blame, unless the
/// tensors are contiguous on `device` with the shapes and dtypes above, offsets ascend from 0 to N
/// and every id of feature f lies in [0, rows[f]), unless that is kAnyKey. A GPU is waited for.
void check_jagged(const Jagged& batch, at::ArrayRef<int64_t> rows, at::Device device = at::kCPU);

/// Samples [first, first + count) of a batch: a micro-batch of its own.
Jagged samples_of(const Jagged& batch, int64_t first, int64_t count);

/// The samples of batches of the same features, one batch after another.
Jagged side_by_side(const std::vector<Jagged>& batches);

/// The features of a batch by their numbers, ascending.
Jagged features_of(const Jagged& batch, const std::vector<int64_t>& features);

}  // namespace dovetail::embedding
