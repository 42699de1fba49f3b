#include "dovetail/embedding/pack/occurrences.h"

#include <algorithm>
#include <array>
#include <utility>

namespace dovetail::embedding {

namespace {

constexpr int kMaxDigitBits = 10;

/// Lists the usual case without a loop over bags: one feature, one id in each bag. Returns false in
/// other cases.
bool list_single(const TableColumns& table, const MicroBatch& batch, int64_t begin, int64_t end,
                 uint64_t first, uint64_t* keys, Occurrence* occurrences) {
  if (table.features.size() != 1 || batch.weights) return false;
  const int64_t* offsets = batch.offsets + table.features[0] * batch.samples;
  if (offsets[end] - offsets[begin] != end - begin) return false;
  uint64_t uneven = 0;
#pragma omp simd reduction(| : uneven)
  for (int64_t b = begin; b < end; ++b)
    uneven |= static_cast<uint64_t>(offsets[b + 1] - offsets[b]) ^ 1;
  if (uneven) return false;
  const int64_t* values = batch.values + offsets[begin];
  const int64_t first_row = table.unpooled ? offsets[begin] : begin;
  const float* gradient = batch.gradient + first_row * batch.gradient_stride + table.columns[0];
  for (int64_t i = 0; i < end - begin; ++i) {
    keys[i] = key_of(static_cast<uint64_t>(values[i]), first + static_cast<uint64_t>(i));
    occurrences[i] = {gradient + i * batch.gradient_stride, 1.0f};
  }
  return true;
}

}  // namespace

int64_t count_occurrences(const TableColumns& table, const MicroBatch& batch, int64_t sample) {
  int64_t count = 0;
  for (const int64_t f : table.features)
    count += batch.offsets[f * batch.samples + sample] - batch.offsets[f * batch.samples];
  return count;
}

void list_occurrences(const TableColumns& table, const MicroBatch& batch, int64_t begin,
                      int64_t end, uint64_t first, uint64_t* keys, Occurrence* occurrences) {
  if (list_single(table, batch, begin, end, first, keys, occurrences)) return;
  for (int64_t b = begin; b < end; ++b) {
    for (size_t k = 0; k < table.features.size(); ++k) {
      const int64_t* bag = batch.offsets + table.features[k] * batch.samples + b;
      const float* gradient = batch.gradient + b * batch.gradient_stride + table.columns[k];
      const float scale = table.mean ? 1.0f / static_cast<float>(bag[1] - bag[0]) : 1.0f;
      for (int64_t i = bag[0]; i < bag[1]; ++i) {
        *keys++ = key_of(static_cast<uint64_t>(batch.values[i]), first++);
        *occurrences++ = {table.unpooled ? batch.gradient + i * batch.gradient_stride : gradient,
                          batch.weights ? batch.weights[i] * scale : scale};
      }
    }
  }
}

uint64_t* sort_keys(uint64_t* keys, uint64_t* scratch, int64_t count, int row_bits) {
  constexpr int64_t kFew = 64;
  if (count <= kFew) {
    std::sort(keys, keys + count);
    return keys;
  }
  const int passes = (row_bits + kMaxDigitBits - 1) / kMaxDigitBits;
  for (int pass = 0, done = 0; pass < passes; ++pass) {
    const int bits = (row_bits - done + passes - pass - 1) / (passes - pass), shift = 32 + done;
    const uint64_t mask = (uint64_t{1} << bits) - 1;
    std::array<uint32_t, size_t{1} << kMaxDigitBits> begins;
    std::fill_n(begins.begin(), mask + 1, 0);
    for (int64_t i = 0; i < count; ++i) ++begins[keys[i] >> shift & mask];
    uint32_t sum = 0;
    for (size_t digit = 0; digit <= mask; ++digit) sum += std::exchange(begins[digit], sum);
    for (int64_t i = 0; i < count; ++i) scratch[begins[keys[i] >> shift & mask]++] = keys[i];
    std::swap(keys, scratch);
    done += bits;
  }
  return keys;
}

}  // namespace dovetail::embedding
