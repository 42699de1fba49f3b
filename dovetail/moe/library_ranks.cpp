#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/library.h"
#include "dovetail/moe/library_choices.h"
#include "dovetail/moe/library_operator.h"
#include "dovetail/moe/parallel_experts.h"
#include "dovetail/ops/simd_level.h"

/// Registers experts over the ranks of a ProcessGroup of PyTorch: torch.classes.dovetail.
/// ExpertRanks, and the operators torch.ops.dovetail.moe_ranks* and moe_parallel_*.
namespace dovetail::moe {

namespace {

class LibraryRanks : public torch::CustomClassHolder {
 public:
  explicit LibraryRanks(std::shared_ptr<comm::Group> group) : group_(std::move(group)) {}

  comm::Group& group() const { return *group_; }
  /// Places `experts` experts on the ranks. Each expert is whole.
  Placement place(int64_t experts) const {
    user_check(experts >= group_->size(), "moe: {} experts for {} ranks; each rank needs one",
               experts, group_->size());
    return {.experts = experts, .ranks = group_->size(), .cut = 1};
  }
  /// Returns ranks that exchange rows on the device of x. All ranks call it together.
  ExpertRanks ranks_for(const at::Tensor& x, int64_t experts) {
    if (x.is_cuda() && !on_gpus_) on_gpus_ = comm::on_gpus(group_);
    return {.placement = place(experts),
            .group = x.is_cuda() ? on_gpus_ : group_,
            .nodes = std::nullopt,
            .dispatch = {},
            .combine = {}};
  }

 private:
  std::shared_ptr<comm::Group> group_, on_gpus_;
};
using Ranks = c10::intrusive_ptr<LibraryRanks>;

/// Connects the ranks of a ProcessGroup. They find each other through its store under `name`. Null:
/// one rank.
Ranks make_ranks(const std::optional<c10::intrusive_ptr<c10d::ProcessGroup>>& ranks,
                 const std::string& name, double timeout_s) {
  return c10::make_intrusive<LibraryRanks>(comm::group_over_store(
      ranks ? c10::make_intrusive<c10d::PrefixStore>(name, (*ranks)->getStore()) : nullptr,
      ranks ? (*ranks)->getRank() : 0, ranks ? (*ranks)->getSize() : 1, {.timeout_s = timeout_s}));
}

/// Throws UserError on all ranks unless `description` is the same on all.
void check_equal(const Ranks& ranks, const std::string& description) {
  const auto all = comm::all_gather_bytes(ranks->group(), description, 1024);
  for (size_t rank = 0; rank < all.size(); ++rank)
    user_check(all[rank] == all[0],
               "MoELayer: the ranks' arguments differ. Rank 0 has {}. Rank {} has {}", all[0], rank,
               all[rank]);
}

/// Returns [first, end): the experts of this rank.
std::vector<int64_t> own_experts(const Ranks& ranks, int64_t experts) {
  const Placement placement = ranks->place(experts);
  const int rank = ranks->group().rank();
  return {placement.first(rank), placement.first(rank + 1)};
}

at::Tensor run_over_ranks(std::string_view name, const at::Tensor& x, const at::Tensor& weight,
                          const at::Tensor& expert, const at::Tensor& slot,
                          const LocalExperts& local, int64_t experts, const Ranks& ranks) {
  const at::Tensor own_x = readable(name, x), own_weight = readable(name, weight),
                   own_expert = readable(name, expert), own_slot = readable(name, slot);
  user_check(own_x.dim() == 2 && !own_x.is_meta() && own_weight.sizes() == own_expert.sizes() &&
                 own_weight.size(0) == own_x.size(0),
             "{}: x must be (T, C) with memory, and weight (T, k) as expert_idx: x is {}, weight "
             "is {}, expert_idx is {}",
             name, ops::describe(own_x), ops::describe(own_weight), ops::describe(own_expert));
  check_choices(own_expert, own_slot, experts);
  return parallel_feed_forward(own_x, own_weight, own_expert.contiguous(), own_slot.contiguous(),
                               local, ranks->ranks_for(own_x, experts), {});
}

at::Tensor parallel_experts(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& expert,
                            const at::Tensor& slot, at::TensorList up, at::TensorList down,
                            at::TensorList up_bias, at::TensorList down_bias,
                            c10::string_view activation, int64_t experts, const Ranks& ranks) {
  constexpr std::string_view kName = "moe_parallel_experts";
  const std::vector<int64_t> own = own_experts(ranks, experts);
  user_check(static_cast<int64_t>(up.size()) == own[1] - own[0],
             "{}: this rank has {} of {} experts, but up has {} matrices", kName, own[1] - own[0],
             experts, up.size());
  LocalExperts local;
  local.weights = {.activation = {activation.data(), activation.size()},
                   .up = readable(kName, up),
                   .down = readable(kName, down),
                   .up_bias = readable(kName, up_bias),
                   .down_bias = readable(kName, down_bias)};
  return run_over_ranks(kName, x, weight, expert, slot, local, experts, ranks);
}

template <c10::DeviceType kDevice>
at::Tensor autocast_parallel_experts(const at::Tensor& x, const at::Tensor& weight,
                                     const at::Tensor& expert, const at::Tensor& slot,
                                     at::TensorList up, at::TensorList down, at::TensorList up_bias,
                                     at::TensorList down_bias, c10::string_view activation,
                                     int64_t experts, const Ranks& ranks) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(kDevice));
  const at::ScalarType dtype = at::autocast::get_autocast_dtype(kDevice);
  const auto cast = [dtype](const auto& given) {
    return at::autocast::cached_cast(dtype, given, kDevice);
  };
  return parallel_experts(cast(x), at::autocast::cached_cast(at::kFloat, weight, kDevice), expert,
                          slot, cast(up), cast(down), cast(up_bias), cast(down_bias), activation,
                          experts, ranks);
}

/// Experts are modules of Python. Operator moe_call_expert, which Python implements, runs expert e
/// of this rank on its rows.
at::Tensor parallel_modules(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& expert,
                            const at::Tensor& slot, int64_t call, int64_t experts,
                            const Ranks& ranks) {
  LocalExperts local;
  using CallExpert = at::Tensor(int64_t, int64_t, const at::Tensor&);
  static auto op = find_operator("dovetail::moe_call_expert", static_cast<CallExpert*>(nullptr));
  local.modules = [call](int64_t e, const at::Tensor& rows) { return op.call(call, e, rows); };
  return run_over_ranks("moe_parallel_modules", x, weight, expert, slot, local, experts, ranks);
}

}  // namespace

}  // namespace dovetail::moe

// words: off
TORCH_LIBRARY_FRAGMENT(dovetail, m) {
  m.class_<dovetail::moe::LibraryRanks>("ExpertRanks");
  dovetail::define<"moe_ranks", dovetail::moe::make_ranks>(m);
  dovetail::define<"moe_ranks_check_equal", dovetail::moe::check_equal>(m);
  dovetail::define<"moe_ranks_own_experts", dovetail::moe::own_experts>(m);
  m.def(
      "moe_parallel_experts(Tensor x, Tensor weight, Tensor expert_idx, Tensor slot, Tensor[] up, "
      "Tensor[] down, Tensor[] up_bias, Tensor[] down_bias, str activation, int num_experts, "
      "__torch__.torch.classes.dovetail.ExpertRanks ranks) -> Tensor",
      &dovetail::moe::parallel_experts);
  m.def(
      "moe_parallel_modules(Tensor x, Tensor weight, Tensor expert_idx, Tensor slot, int call, int "
      "num_experts, __torch__.torch.classes.dovetail.ExpertRanks ranks) -> Tensor",
      &dovetail::moe::parallel_modules);
  m.def("moe_call_expert(int call, int expert, Tensor rows) -> Tensor");
}
// words: on

TORCH_LIBRARY_IMPL(dovetail, AutocastCPU, m) {
  m.impl("moe_parallel_experts", &dovetail::moe::autocast_parallel_experts<c10::DeviceType::CPU>);
}
TORCH_LIBRARY_IMPL(dovetail, AutocastCUDA, m) {
  m.impl("moe_parallel_experts", &dovetail::moe::autocast_parallel_experts<c10::DeviceType::CUDA>);
}
