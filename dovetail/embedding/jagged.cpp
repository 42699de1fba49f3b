#include "dovetail/embedding/jagged.h"

#include <ATen/ATen.h>

#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/parallel.h"
#include "dovetail/ops/dispatch.h"

namespace dovetail::embedding {

namespace {

void check_tensor(const char* name, const at::Tensor& x, int64_t size, at::ScalarType dtype) {
  user_check(
      x.defined() && x.dim() == 1 && x.size(0) == size && x.scalar_type() == dtype && x.is_cpu() && x.is_contiguous(),
      "embedding: {} must be ({}) {}, contiguous, on the CPU, but is {}", name, size, c10::toString(dtype),
      describe(x));
}

/// What is wrong with one feature, looked for once it is known that something is.
void throw_first(const Jagged& batch, int64_t feature, int64_t rows) {
  const int64_t* offsets = batch.offsets.const_data_ptr<int64_t>() + feature * batch.samples;
  const int64_t* values = batch.values.const_data_ptr<int64_t>();
  for (int64_t sample = 0; sample < batch.samples; ++sample) {
    user_check(
        offsets[sample] <= offsets[sample + 1] && offsets[sample] >= 0 && offsets[sample + 1] <= batch.values.size(0),
        "embedding: the bag of feature {}, sample {} goes from {} to {}, but offsets must ascend from 0 to the number "
        "of ids, {}",
        feature, sample, offsets[sample], offsets[sample + 1], batch.values.size(0));
    for (int64_t i = offsets[sample]; i < offsets[sample + 1]; ++i)
      user_check(values[i] >= 0 && values[i] < rows,
                 "embedding: id {} of feature {}, sample {} is outside of its table, which has {} rows", values[i],
                 feature, sample, rows);
  }
}

/// One sign bit for all differences that must not be negative: without a branch, so that the loops are vectors.
bool feature_is_good(const Jagged& batch, int64_t feature, int64_t rows) {
  const int64_t* offsets = batch.offsets.const_data_ptr<int64_t>() + feature * batch.samples;
  const int64_t ids = batch.values.size(0);
  if (offsets[0] < 0 || offsets[batch.samples] > ids) return false;
  uint64_t signs = 0;
#pragma omp simd reduction(| : signs)
  for (int64_t b = 0; b < batch.samples; ++b)
    signs |= static_cast<uint64_t>(offsets[b + 1]) - static_cast<uint64_t>(offsets[b]);
  if (signs >> 63) return false;
  if (rows == kAnyKey) return true;
  const int64_t* values = batch.values.const_data_ptr<int64_t>();
  const auto last_row = static_cast<uint64_t>(rows - 1);
#pragma omp simd reduction(| : signs)
  for (int64_t i = offsets[0]; i < offsets[batch.samples]; ++i) {
    const auto id = static_cast<uint64_t>(values[i]);
    signs |= id | (last_row - id);
  }
  return signs >> 63 == 0;
}

}  // namespace

void check_jagged(const Jagged& batch, at::ArrayRef<int64_t> rows) {
  user_check(batch.features == static_cast<int64_t>(rows.size()) && batch.samples >= 0,
             "embedding: the batch has {} features of {} samples, but the tables take {} features", batch.features,
             batch.samples, rows.size());
  user_check(batch.values.defined(), "embedding: the batch has no values");
  check_tensor("values", batch.values, batch.values.numel(), at::kLong);
  check_tensor("offsets", batch.offsets, batch.features * batch.samples + 1, at::kLong);
  if (batch.weights.defined()) check_tensor("weights", batch.weights, batch.values.numel(), at::kFloat);
  const int64_t* offsets = batch.offsets.const_data_ptr<int64_t>();
  const int64_t last = offsets[batch.features * batch.samples];
  user_check(offsets[0] == 0 && last == batch.values.numel(),
             "embedding: offsets must go from 0 to the number of ids, {}, but go from {} to {}", batch.values.numel(),
             offsets[0], last);
  parallel_pieces(batch.features, 4, [&](int64_t begin, int64_t end) {
    for (int64_t f = begin; f < end; ++f) {
      const int64_t limit = rows[static_cast<size_t>(f)];
      if (!feature_is_good(batch, f, limit)) throw_first(batch, f, limit);
    }
  });
}

Jagged samples_of(const Jagged& batch, int64_t first, int64_t count) {
  DOVETAIL_CHECK(first >= 0 && count >= 0 && first + count <= batch.samples, "samples {} to {} of {}", first,
                 first + count, batch.samples);
  if (count == batch.samples) return batch;
  Jagged part{.values = {},
              .offsets = at::zeros({batch.features * count + 1}, batch.offsets.options()),
              .weights = {},
              .features = batch.features,
              .samples = count};
  const int64_t* offsets = batch.offsets.const_data_ptr<int64_t>();
  auto* next = part.offsets.mutable_data_ptr<int64_t>();
  std::vector<at::Tensor> values, weights;
  for (int64_t f = 0; f < batch.features; ++f) {
    const int64_t* bag = offsets + f * batch.samples + first;
    for (int64_t b = 0; b < count; ++b, ++next) next[1] = next[0] + bag[b + 1] - bag[b];
    values.push_back(batch.values.narrow(0, bag[0], bag[count] - bag[0]));
    if (batch.weights.defined()) weights.push_back(batch.weights.narrow(0, bag[0], bag[count] - bag[0]));
  }
  part.values = values.empty() ? batch.values : at::cat(values);
  if (batch.weights.defined()) part.weights = weights.empty() ? batch.weights : at::cat(weights);
  return part;
}

Jagged side_by_side(const std::vector<Jagged>& batches) {
  if (batches.size() == 1) return batches.front();
  Jagged all = {.features = batches.front().features};
  const bool weighted = batches.front().weights.defined();
  for (const Jagged& batch : batches) all.samples += batch.samples;
  all.offsets = at::zeros({all.features * all.samples + 1}, at::kLong);
  auto* next = all.offsets.mutable_data_ptr<int64_t>();
  std::vector<at::Tensor> values = {batches.front().values.narrow(0, 0, 0)}, weights;
  if (weighted) weights.push_back(batches.front().weights.narrow(0, 0, 0));
  for (int64_t f = 0; f < all.features; ++f) {
    for (const Jagged& batch : batches) {
      const int64_t* bag = batch.offsets.const_data_ptr<int64_t>() + f * batch.samples;
      const int64_t ids = bag[batch.samples] - bag[0], before = *next - bag[0];
      for (int64_t b = 1; b <= batch.samples; ++b) next[b] = bag[b] + before;
      next += batch.samples;
      values.push_back(batch.values.narrow(0, bag[0], ids));
      if (weighted) weights.push_back(batch.weights.narrow(0, bag[0], ids));
    }
  }
  all.values = at::cat(values);
  if (weighted) all.weights = at::cat(weights);
  return all;
}

Jagged features_of(const Jagged& batch, const std::vector<int64_t>& features) {
  if (static_cast<int64_t>(features.size()) == batch.features) return batch;
  const auto count = static_cast<int64_t>(features.size());
  Jagged part{.values = {},
              .offsets = at::zeros({count * batch.samples + 1}, batch.offsets.options()),
              .weights = {},
              .features = count,
              .samples = batch.samples};
  auto* next = part.offsets.mutable_data_ptr<int64_t>();
  std::vector<at::Tensor> values = {batch.values.narrow(0, 0, 0)}, weights;
  for (const int64_t f : features) {
    const int64_t* bag = batch.offsets.const_data_ptr<int64_t>() + f * batch.samples;
    const int64_t ids = bag[batch.samples] - bag[0], before = *next - bag[0];
    for (int64_t b = 1; b <= batch.samples; ++b) next[b] = bag[b] + before;
    next += batch.samples;
    values.push_back(batch.values.narrow(0, bag[0], ids));
    if (batch.weights.defined()) weights.push_back(batch.weights.narrow(0, bag[0], ids));
  }
  part.values = at::cat(values);
  if (batch.weights.defined()) part.weights = weights.empty() ? batch.weights.narrow(0, 0, 0) : at::cat(weights);
  return part;
}

}  // namespace dovetail::embedding
