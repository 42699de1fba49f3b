#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace dovetail::moe {

/// Choices that were not dropped, sorted by expert and within one by slot.
struct Dispatch {
  std::vector<int64_t> begin;  ///< (E + 1): expert e has rows [begin[e], begin[e + 1])
  at::Tensor choice;           ///< (rows) int64: t k + j, of choice j of token t
  at::Tensor token;            ///< (rows) int32

  int64_t experts() const { return static_cast<int64_t>(begin.size()) - 1; }
  int64_t rows() const { return begin.back(); }
  int64_t first_row(int64_t expert) const { return begin[static_cast<size_t>(expert)]; }
  int64_t rows(int64_t expert) const { return first_row(expert + 1) - first_row(expert); }
  at::Tensor of_expert(const at::Tensor& per_row, int64_t expert) const {
    return per_row.narrow(0, first_row(expert), rows(expert));
  }
};
/// expert and slot (T, k) as of a Routing, on the CPU.
Dispatch dispatch(const at::Tensor& expert, const at::Tensor& slot, int64_t experts);

}  // namespace dovetail::moe
