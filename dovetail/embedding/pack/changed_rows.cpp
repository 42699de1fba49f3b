#include "dovetail/embedding/pack/changed_rows.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <bit>

namespace dovetail::embedding {

int64_t ChangedRows::count() const {
  int64_t count = 0;
  for (const uint64_t word : bits_) count += std::popcount(word);
  return count;
}

at::Tensor ChangedRows::within(int64_t begin, int64_t end) const {
  std::vector<int64_t> rows;
  for (int64_t first = begin / 64 * 64; first < end; first += 64) {
    for (uint64_t word = bits_[static_cast<size_t>(first / 64)]; word != 0; word &= word - 1) {
      const int64_t row = first + std::countr_zero(word);
      if (row >= begin && row < end) rows.push_back(row);
    }
  }
  return at::tensor(rows, at::kLong);
}

}  // namespace dovetail::embedding
