#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "dovetail/moe/routing.h"

namespace dovetail::moe {

/// Choices that were not dropped, sorted by expert and within one by slot.
struct Dispatch {
  std::vector<int64_t> begin;  ///< (E + 1): expert e has rows [begin[e], begin[e + 1])
  at::Tensor choice;           ///< (rows) int64: t k + j, of choice j of token t
  at::Tensor token;            ///< (rows) int64

  int64_t rows() const { return begin.back(); }
  at::Tensor of_expert(const at::Tensor& per_row, int64_t expert) const {
    const auto e = static_cast<size_t>(expert);
    return per_row.narrow(0, begin[e], begin[e + 1] - begin[e]);
  }
};
Dispatch dispatch(const Routing& routing);

}  // namespace dovetail::moe
