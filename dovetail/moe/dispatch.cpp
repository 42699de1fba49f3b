#include "dovetail/moe/dispatch.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

namespace dovetail::moe {

Dispatch dispatch(const at::Tensor& expert_of, const at::Tensor& slot_of, int64_t expert_count) {
  const int64_t choices = expert_of.numel(), k = expert_of.size(1);
  const auto experts = static_cast<size_t>(expert_count);
  const auto* expert = expert_of.const_data_ptr<int32_t>();
  const auto* slot = slot_of.const_data_ptr<int32_t>();
  // Every expert's slots side by side, up to its last; a draw may have left some empty.
  std::vector<int64_t> first(experts + 1, 0);
  for (int64_t i = 0; i < choices; ++i) {
    if (slot[i] < 0) continue;
    auto& slots = first[static_cast<size_t>(expert[i]) + 1];
    slots = std::max<int64_t>(slots, slot[i] + 1);
  }
  std::partial_sum(first.begin(), first.end(), first.begin());
  std::vector<int64_t> in_slot(static_cast<size_t>(first.back()), -1);
  int64_t rows = 0;
  for (int64_t i = 0; i < choices; ++i) {
    if (slot[i] < 0) continue;
    in_slot[static_cast<size_t>(first[static_cast<size_t>(expert[i])] + slot[i])] = i;
    ++rows;
  }

  Dispatch out;
  out.begin.reserve(experts + 1);
  out.choice = at::empty({rows}, at::kLong);
  out.token = at::empty({rows}, at::kInt);
  auto* choice = out.choice.mutable_data_ptr<int64_t>();
  auto* token = out.token.mutable_data_ptr<int32_t>();
  int64_t row = 0;
  for (size_t e = 0; e < experts; ++e) {
    out.begin.push_back(row);
    for (auto at = static_cast<size_t>(first[e]); at < static_cast<size_t>(first[e + 1]); ++at) {
      if (in_slot[at] < 0) continue;
      choice[row] = in_slot[at];
      token[row++] = static_cast<int32_t>(in_slot[at] / k);
    }
  }
  out.begin.push_back(row);
  return out;
}

}  // namespace dovetail::moe
