#include <thrust/iterator/counting_iterator.h>

#include <algorithm>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#include <cub/device/device_select.cuh>
#include <span>

#include "dovetail/embedding/cuda/launch.h"
#include "dovetail/embedding/cuda/row.cuh"

// A row's occurrences must have the order (sample of the whole batch, feature, position in the
// bag). So ids are listed bag by bag, with the feature varying fastest. Then a stable sort orders
// them by rows.

namespace dovetail::embedding::cuda {
namespace {

/// One thread for each bag, in input order. There, the bags of a feature are consecutive.
__global__ void __launch_bounds__(kThreads)
    count_ids(CudaGradient part, int64_t features, uint32_t* bag_counts) {
  const int64_t input = int64_t{blockIdx.x} * kThreads + threadIdx.x, samples = part.batch.samples;
  if (input >= features * samples) return;
  bag_counts[part.first_bag + input % samples * features + input / samples] =
      static_cast<uint32_t>(part.batch.offsets[input + 1] - part.batch.offsets[input]);
}

__global__ void __launch_bounds__(kThreads)
    list_ids(CudaGradient part, CudaPack pack, const uint32_t* bag_begins, uint32_t* keys,
             CudaOccurrence* occurrences) {
  const int64_t input = int64_t{blockIdx.x} * kThreads + threadIdx.x, samples = part.batch.samples;
  if (input >= pack.num_features * samples) return;
  const CudaFeature feature = pack.features[input / samples];
  const int64_t bag = part.first_bag + input % samples * pack.num_features + input / samples;
  const int64_t begin = part.batch.offsets[input], end = part.batch.offsets[input + 1],
                first = bag_begins[bag];
  const float mean = feature.mean && end > begin ? 1.0f / static_cast<float>(end - begin) : 1.0f;
  const int64_t first_row = pack.tables[feature.table].first_row;
  for (int64_t i = begin; i < end; ++i) {
    keys[first + i - begin] = static_cast<uint32_t>(first_row + part.batch.values[i]);
    const float weight = part.batch.weights == nullptr ? 1.0f : part.batch.weights[i];
    occurrences[first + i - begin] = {static_cast<uint32_t>(bag), weight * mean};
  }
}

struct BeginsRow {
  const uint32_t* keys;
  __device__ bool operator()(uint32_t i) const { return i == 0 || keys[i] != keys[i - 1]; }
};

cudaError_t scan_bags(void* scratch, size_t& bytes, uint32_t* bags, int64_t count,
                      cudaStream_t stream) {
  return cub::DeviceScan::ExclusiveSum(scratch, bytes, bags, bags, static_cast<int>(count), stream);
}

cudaError_t sort_keys(void* scratch, size_t& bytes, const uint32_t* keys, uint32_t* sorted,
                      const CudaOccurrence* occurrences, CudaOccurrence* sorted_occurrences,
                      int64_t count, int bits, cudaStream_t stream) {
  return cub::DeviceRadixSort::SortPairs(scratch, bytes, keys, sorted, occurrences,
                                         sorted_occurrences, static_cast<int>(count), 0, bits,
                                         stream);
}

cudaError_t find_rows(void* scratch, size_t& bytes, const uint32_t* keys, uint32_t* begins,
                      uint32_t* rows, int64_t count, cudaStream_t stream) {
  return cub::DeviceSelect::If(scratch, bytes, thrust::counting_iterator<uint32_t>(0), begins, rows,
                               static_cast<int>(count), BeginsRow{keys}, stream);
}

}  // namespace

size_t sort_scratch(int64_t bags, int64_t count, int row_bits) {
  size_t scan = 0, sort = 0, find = 0;
  scan_bags(nullptr, scan, nullptr, bags, nullptr);
  sort_keys(nullptr, sort, nullptr, nullptr, nullptr, nullptr, count, row_bits, nullptr);
  find_rows(nullptr, find, nullptr, nullptr, nullptr, count, nullptr);
  return std::max({scan, sort, find});
}

cudaError_t sort_occurrences(const CudaUpdateProblem& p, cudaStream_t stream) {
  size_t bytes = p.scratch_bytes;
  const std::span parts(p.parts, static_cast<size_t>(p.num_parts));
  for (const CudaGradient& part : parts)
    if (part.batch.samples > 0)
      count_ids<<<blocks_for(p.pack.num_features * part.batch.samples, INT32_MAX), kThreads, 0,
                  stream>>>(part, p.pack.num_features, p.bag_begins);
  if (const auto e = scan_bags(p.scratch, bytes, p.bag_begins, p.bags, stream); e != cudaSuccess)
    return e;
  for (const CudaGradient& part : parts)
    if (part.batch.samples > 0)
      list_ids<<<blocks_for(p.pack.num_features * part.batch.samples, INT32_MAX), kThreads, 0,
                 stream>>>(part, p.pack, p.bag_begins, p.keys, p.occurrences);
  const auto e = sort_keys(p.scratch, bytes, p.keys, p.sorted_keys, p.occurrences,
                           p.sorted_occurrences, p.count, p.row_bits, stream);
  if (e != cudaSuccess) return e;
  return find_rows(p.scratch, bytes, p.sorted_keys, p.row_begins, p.counts, p.count, stream);
}

}  // namespace dovetail::embedding::cuda
