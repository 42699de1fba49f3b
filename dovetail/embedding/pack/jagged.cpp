#include "dovetail/embedding/pack/jagged.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/gpu.h"
#include "dovetail/base/threads.h"
#include "dovetail/embedding/pack/lookup_cuda.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::embedding {

namespace {

void check_tensor(const char* name, const at::Tensor& x, int64_t size, at::ScalarType dtype,
                  at::Device device) {
  user_check(x.defined() && x.dim() == 1 && x.size(0) == size && x.scalar_type() == dtype &&
                 x.device() == device && x.is_contiguous(),
             "embedding: {} must be ({}) {}, contiguous, on {}, but is {}", name, size,
             c10::toString(dtype), device.is_cpu() ? "the CPU" : device.str(), ops::describe(x));
}

/// Throws UserError for the first fault of a batch that has one. Checks all offsets before any id,
/// since a wrong offset puts ids into a bag of another feature.
void throw_first(const Jagged& batch, at::ArrayRef<int64_t> rows) {
  const int64_t* offsets = batch.offsets.const_data_ptr<int64_t>();
  const int64_t* values = batch.values.const_data_ptr<int64_t>();
  const int64_t ids = batch.values.size(0), bags = batch.features * batch.samples;
  for (int64_t bag = 0; bag < bags; ++bag)
    user_check(offsets[bag] <= offsets[bag + 1] && offsets[bag] >= 0 && offsets[bag + 1] <= ids,
               "embedding: the bag of feature {}, sample {} goes from {} to {}, but offsets must "
               "ascend from 0 to the number of ids, {}",
               bag / batch.samples, bag % batch.samples, offsets[bag], offsets[bag + 1], ids);
  for (int64_t bag = 0; bag < bags; ++bag) {
    const int64_t feature = bag / batch.samples, limit = rows[static_cast<size_t>(feature)];
    for (int64_t i = offsets[bag]; limit != kAnyKey && i < offsets[bag + 1]; ++i)
      user_check(
          values[i] >= 0 && values[i] < limit,
          "embedding: id {} of feature {}, sample {} is outside of its table, which has {} rows",
          values[i], feature, bag % batch.samples, limit);
  }
}

/// ORs the sign bits of all differences that must not be negative. Without branches, the loops
/// vectorize.
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

/// Consecutive bags of a batch.
struct BagRange {
  const Jagged* batch;
  int64_t first, count;
};

/// Concatenates the bags of all ranges. The result has weights if `like` has them.
Jagged join(const std::vector<BagRange>& ranges, const Jagged& like, int64_t features,
            int64_t samples) {
  Jagged joined{.values = {},
                .offsets = at::zeros({features * samples + 1}, like.offsets.options()),
                .weights = {},
                .features = features,
                .samples = samples};
  auto* next = joined.offsets.mutable_data_ptr<int64_t>();
  std::vector<at::Tensor> values = {like.values.narrow(0, 0, 0)}, weights;
  if (like.weights.defined()) weights.push_back(like.weights.narrow(0, 0, 0));
  for (const BagRange& range : ranges) {
    const int64_t* bag = range.batch->offsets.const_data_ptr<int64_t>() + range.first;
    const int64_t ids = bag[range.count] - bag[0], before = *next - bag[0];
    for (int64_t i = 1; i <= range.count; ++i) next[i] = bag[i] + before;
    next += range.count;
    values.push_back(range.batch->values.narrow(0, bag[0], ids));
    if (like.weights.defined()) weights.push_back(range.batch->weights.narrow(0, bag[0], ids));
  }
  joined.values = at::cat(values);
  if (like.weights.defined()) joined.weights = at::cat(weights);
  return joined;
}

}  // namespace

void check_shapes(const Jagged& batch, at::ArrayRef<int64_t> rows, at::Device device) {
  user_check(batch.features == static_cast<int64_t>(rows.size()) && batch.samples >= 0,
             "embedding: the batch has {} features of {} samples, but the tables take {} features",
             batch.features, batch.samples, rows.size());
  user_check(batch.values.defined(), "embedding: the batch has no values");
  check_tensor("values", batch.values, batch.values.numel(), at::kLong, device);
  check_tensor("offsets", batch.offsets, batch.features * batch.samples + 1, at::kLong, device);
  if (batch.weights.defined())
    check_tensor("weights", batch.weights, batch.values.numel(), at::kFloat, device);
}

void check_jagged(const Jagged& batch, at::ArrayRef<int64_t> rows, at::Device device) {
  check_shapes(batch, rows, device);
  if (!device.is_cpu()) return ContentsCheck(batch, rows).wait();
  const int64_t* offsets = batch.offsets.const_data_ptr<int64_t>();
  const int64_t last = offsets[batch.features * batch.samples];
  user_check(offsets[0] == 0 && last == batch.values.numel(),
             "embedding: offsets must go from 0 to the number of ids, {}, but go from {} to {}",
             batch.values.numel(), offsets[0], last);
  std::atomic<bool> good = true;
  parallel_pieces(batch.features, 4, [&](int64_t begin, int64_t end) {
    for (int64_t f = begin; f < end; ++f)
      if (!feature_is_good(batch, f, rows[static_cast<size_t>(f)])) good = false;
  });
  if (!good) throw_first(batch, rows);
}

at::Tensor on(const at::Tensor& x, at::Device device) {
  return x.defined() ? copied_to(x, device) : x;
}

Jagged on(const Jagged& batch, at::Device device) {
  return {.values = on(batch.values, device),
          .offsets = on(batch.offsets, device),
          .weights = on(batch.weights, device),
          .features = batch.features,
          .samples = batch.samples};
}

Jagged samples_of(const Jagged& batch, int64_t first, int64_t count) {
  DOVETAIL_CHECK(first >= 0 && count >= 0 && first + count <= batch.samples,
                 "samples {} to {} of {}", first, first + count, batch.samples);
  if (count == batch.samples) return batch;
  std::vector<BagRange> ranges;
  for (int64_t f = 0; f < batch.features; ++f)
    ranges.push_back({&batch, f * batch.samples + first, count});
  return join(ranges, batch, batch.features, count);
}

Jagged side_by_side(const std::vector<Jagged>& batches) {
  if (batches.size() == 1) return batches.front();
  const int64_t features = batches.front().features;
  int64_t samples = 0;
  for (const Jagged& batch : batches) samples += batch.samples;
  std::vector<BagRange> ranges;
  ranges.reserve(static_cast<size_t>(features) * batches.size());
  for (int64_t f = 0; f < features; ++f)
    for (const Jagged& batch : batches)
      ranges.push_back({&batch, f * batch.samples, batch.samples});
  return join(ranges, batches.front(), features, samples);
}

Jagged features_of(const Jagged& batch, const std::vector<int64_t>& features) {
  const auto count = static_cast<int64_t>(features.size());
  const bool ascend =
      std::ranges::adjacent_find(features, std::ranges::greater_equal()) == features.end();
  if (count == batch.features && ascend) return batch;
  std::vector<BagRange> ranges;
  ranges.reserve(features.size());
  for (const int64_t f : features) ranges.push_back({&batch, f * batch.samples, batch.samples});
  return join(ranges, batch, count, batch.samples);
}

}  // namespace dovetail::embedding
