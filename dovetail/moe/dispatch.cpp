#include "dovetail/moe/dispatch.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace dovetail::moe {

Dispatch dispatch(const Routing& routing) {
  const int64_t choices = routing.expert.numel(), k = routing.expert.size(1);
  const auto* expert = routing.expert.const_data_ptr<int32_t>();
  const auto* slot = routing.slot.const_data_ptr<int32_t>();
  Dispatch out;
  out.begin.assign(static_cast<size_t>(routing.count.numel()) + 1, 0);
  for (int64_t i = 0; i < choices; ++i) {
    if (slot[i] >= 0) ++out.begin[static_cast<size_t>(expert[i]) + 1];
  }
  for (size_t e = 1; e < out.begin.size(); ++e) out.begin[e] += out.begin[e - 1];

  out.choice = at::empty({out.rows()}, at::kLong);
  auto* choice = out.choice.mutable_data_ptr<int64_t>();
  std::vector<int64_t> next(out.begin.begin(), out.begin.end() - 1);
  for (int64_t i = 0; i < choices; ++i) {
    if (slot[i] >= 0) choice[next[static_cast<size_t>(expert[i])]++] = i;
  }
  for (size_t e = 0; e + 1 < out.begin.size(); ++e)
    std::sort(choice + out.begin[e], choice + out.begin[e + 1],
              [slot](int64_t a, int64_t b) { return slot[a] < slot[b]; });
  out.token = at::floor_divide(out.choice, k);
  return out;
}

}  // namespace dovetail::moe
