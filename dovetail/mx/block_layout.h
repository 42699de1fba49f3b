#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace dovetail::mx {

/// Elements that share a scale, {down, across}. {1, n}: n elements of the last dimension. {n, 1}: n
/// elements of the first dimension. {n, n}: squares of a matrix. {0, 0}: the whole tensor.
using BlockShape = std::array<int64_t, 2>;

/// A tensor as a matrix (rows, cols) whose blocks are rectangles.
struct BlockLayout {
  int64_t rows, cols, row_block, col_block;

  int64_t blocks_down() const { return (rows + row_block - 1) / row_block; }
  int64_t blocks_across() const { return (cols + col_block - 1) / col_block; }
};

/// Returns the layout of a tensor of these sizes. Needs at least one dimension.
inline BlockLayout block_layout(at::IntArrayRef sizes, BlockShape block) {
  const int64_t elements = c10::multiply_integers(sizes);
  const int64_t rows =
      block[1] == 1 ? sizes.front() : elements / std::max<int64_t>(sizes.back(), 1);
  const int64_t cols = elements / std::max<int64_t>(rows, 1);
  if (block[0] == 0) block = {std::max<int64_t>(rows, 1), std::max<int64_t>(cols, 1)};
  return {rows, cols, block[0], block[1]};
}

/// Returns the sizes of the tensor of scales; the whole tensor has a scalar.
inline std::vector<int64_t> scale_sizes(at::IntArrayRef sizes, BlockShape block) {
  if (block[0] == 0) return {};
  std::vector<int64_t> result = sizes.vec();
  if (block[0] > 1) result.front() = (result.front() + block[0] - 1) / block[0];
  if (block[1] > 1) result.back() = (result.back() + block[1] - 1) / block[1];
  return result;
}

}  // namespace dovetail::mx
