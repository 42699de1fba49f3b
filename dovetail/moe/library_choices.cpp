#include "dovetail/moe/library_choices.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <string>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/moe/device_experts.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::moe {

void check_choices(const at::Tensor& expert, const at::Tensor& slot, int64_t experts) {
  for (const auto& [name, x] : {std::pair("expert_idx", expert), std::pair("slot", slot)})
    user_check(x.dim() == 2 && x.sizes() == expert.sizes() && x.scalar_type() == at::kInt &&
                   x.device() == expert.device() && (x.is_cpu() || x.is_cuda()),
               "moe: {} must be (T, k) int32 on the CPU or a CUDA device, but is {}", name,
               ops::describe(x));
  const std::string message = fmt::format("moe: expert_idx must lie in 0 to {}", experts - 1);
  const at::Tensor lies = ((expert.ge(0) & expert.lt(experts)) | slot.lt(0)).all();
  // A GPU stops at a wrong index. The host does not wait for the answer.
  if (lies.is_cuda()) return at::_assert_async(lies, message);
  user_check(lies.item<bool>(), "{}", message);
}

at::Tensor checked_experts(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& expert,
                           const at::Tensor& slot, const ExpertWeights& experts) {
  check_choices(expert, slot, static_cast<int64_t>(experts.experts()));
  return run_choices(x, weight, expert.contiguous(), slot.contiguous(), experts);
}

Dispatch checked_dispatch(const at::Tensor& expert, const at::Tensor& slot, int64_t experts) {
  check_choices(expert, slot, experts);
  return dispatch(expert.contiguous(), slot.contiguous(), experts);
}

}  // namespace dovetail::moe
