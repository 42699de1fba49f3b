#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace dovetail::embedding {

/// Sparse input of a batch: any number of ids for each feature and sample. The layout is TorchRec's
/// KeyedJaggedTensor. The ids of feature f and sample b (a bag) are values[begin] to values[end -
/// 1]. Here begin = offsets[f * samples + b], and end is the next offset.
struct Jagged {
  at::Tensor values;   ///< (N) int64: ids
  at::Tensor offsets;  ///< (features * samples + 1) int64, ascending from 0 to N
  at::Tensor weights;  ///< (N) float32, one for each id; undefined: all weights are 1
  int64_t features = 0, samples = 0;
};

/// Number of rows to pass to check_jagged for a hashed table (hashed.h). Its ids are keys, and any
/// 64 bits are a valid key.
constexpr int64_t kAnyKey = 0;

/// Checks a batch. The tensors must be contiguous on `device`, with the shapes and dtypes that
/// Jagged lists. Offsets must ascend from 0 to N. `rows[f]` is the number of rows of feature f's
/// table. Ids of feature f must be in [0, rows[f]), unless rows[f] is kAnyKey. Throws UserError
/// otherwise, naming feature, sample and id where possible. If `device` is a GPU, waits for it.
void check_jagged(const Jagged& batch, at::ArrayRef<int64_t> rows, at::Device device = at::kCPU);
/// Like check_jagged, but does not look at offsets and ids.
void check_shapes(const Jagged& batch, at::ArrayRef<int64_t> rows, at::Device device);

/// Returns a tensor on `device`; an undefined one stays undefined. A copy from the CPU to a GPU
/// goes through pinned memory. It runs on the current stream, and nothing waits for it.
at::Tensor on(const at::Tensor& x, at::Device device);
/// Returns the batch on `device`, copied in the same way.
Jagged on(const Jagged& batch, at::Device device);

/// Returns samples [first, first + count) of a batch as a batch of its own.
Jagged samples_of(const Jagged& batch, int64_t first, int64_t count);

/// Concatenates batches with the same features. The result has the samples of the first batch, then
/// the samples of the second, and so on.
Jagged side_by_side(const std::vector<Jagged>& batches);

/// Returns the batch with only these features, in this order. `features` are feature numbers.
Jagged features_of(const Jagged& batch, const std::vector<int64_t>& features);

}  // namespace dovetail::embedding
