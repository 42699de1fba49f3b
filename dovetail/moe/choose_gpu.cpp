#include "dovetail/moe/choose_gpu.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "dovetail/moe/choose.h"
#include "dovetail/moe/cuda_kernels.h"

namespace dovetail::moe::gpu {

namespace {

constexpr const char* kOp = "moe_route";

template <class T>
const T* pointer(const at::Tensor& x) {
  return x.defined() && !x.is_meta() ? x.const_data_ptr<T>() : nullptr;
}

const void* bytes(const at::Tensor& x) { return x.defined() ? x.const_data_ptr() : nullptr; }

/// Replaces NaN by -infinity.
at::Tensor comparable(const at::Tensor& scores) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return scores.nan_to_num(-kInfinity, kInfinity, -kInfinity);
}

at::Tensor largest(const at::Tensor& scores, const at::Tensor& bias, int64_t k,
                   const at::Tensor& groups, int64_t group_size) {
  at::Tensor chosen = at::empty({scores.size(0), k}, scores.options().dtype(at::kInt));
  if (scores.size(0) == 0 || scores.is_meta()) return chosen;
  cuda_kernels_for(kOp).choose({.wide = scores.scalar_type() == at::kDouble,
                                .rows = scores.size(0),
                                .columns = scores.size(1),
                                .k = k,
                                .scores = scores.const_data_ptr(),
                                .bias = bytes(bias),
                                .groups = pointer<int32_t>(groups),
                                .top_groups = groups.defined() ? groups.size(1) : 0,
                                .group_size = group_size,
                                .chosen = chosen.mutable_data_ptr<int32_t>()});
  return chosen;
}

at::Tensor score_groups(const at::Tensor& scores, const at::Tensor& bias, const RoutingSpec& spec,
                        int64_t group_size) {
  at::Tensor group_scores = at::empty({scores.size(0), spec.groups}, scores.options());
  if (scores.size(0) == 0 || scores.is_meta()) return group_scores;
  const int64_t wanted = spec.group_score == GroupScore::kTop2 ? 2 : 1;
  cuda_kernels_for(kOp).score_groups({.wide = scores.scalar_type() == at::kDouble,
                                      .rows = scores.size(0),
                                      .groups = spec.groups,
                                      .group_size = group_size,
                                      .summed = static_cast<int>(std::min(group_size, wanted)),
                                      .scores = scores.const_data_ptr(),
                                      .bias = bytes(bias),
                                      .group_scores = group_scores.mutable_data_ptr()});
  return group_scores;
}

SlotSequence sequence_of(const at::Tensor& expert, const at::Tensor& order,
                         const RoutingSpec& spec) {
  return {.order = pointer<int64_t>(order),
          .tokens = expert.size(0),
          .k = expert.size(1),
          .by_token = spec.slot_order == SlotOrder::kToken};
}

int64_t limit_of(const RoutingSpec& spec, int64_t capacity) {
  return spec.drop == Drop::kPosition ? capacity : kDropped;
}

/// Assigns slots to the choices `expert` (T, k) in the order of `sequence`. A negative `capacity`
/// drops no choice.
Slots slots_by_kernel(const at::Tensor& expert, const SlotSequence& sequence, const at::Tensor& out,
                      const at::Tensor& drawn, int64_t experts, int64_t capacity) {
  Slots found{.slot = at::empty(expert.sizes(), expert.options()),
              .count = at::empty({experts}, expert.options().dtype(at::kLong))};
  if (expert.is_meta()) return found;
  if (expert.numel() == 0) return found.count.zero_(), found;
  at::Tensor tile_counts = at::empty({slot_tiles(expert.numel()), experts}, expert.options());
  cuda_kernels_for(kOp).assign_slots({.sequence = sequence,
                                      .experts = experts,
                                      .expert = expert.const_data_ptr<int32_t>(),
                                      .out = pointer<bool>(out),
                                      .drawn = pointer<bool>(drawn),
                                      .capacity = capacity,
                                      .slot = found.slot.mutable_data_ptr<int32_t>(),
                                      .tile_counts = tile_counts.mutable_data_ptr<int32_t>(),
                                      .count = found.count.mutable_data_ptr<int64_t>()});
  return found;
}

/// Marks choices that are in `out` or not among the `capacity` largest weights of their expert.
/// Returns (n) bool.
at::Tensor beyond_largest(const at::Tensor& expert, const at::Tensor& weight, const at::Tensor& out,
                          int64_t experts, int64_t capacity) {
  const at::Tensor by_weight = at::argsort(comparable(weight.reshape({-1})), /*stable=*/true,
                                           /*dim=*/0, /*descending=*/true);
  const at::Tensor rank = rank_choices(expert.reshape({-1}), by_weight, out, experts).rank;
  return at::logical_or(rank < 0, rank >= capacity);
}

}  // namespace

at::Tensor choose_experts(const at::Tensor& scores, const at::Tensor& bias,
                          const RoutingSpec& spec) {
  const int64_t group_size = scores.size(1) / spec.groups;
  at::Tensor groups;
  if (spec.top_groups < spec.groups)
    groups = largest(score_groups(scores, bias, spec, group_size), {}, spec.top_groups, {}, 1);
  return largest(scores, bias, spec.k, groups, group_size);
}

Ranks rank_choices(const at::Tensor& expert, const at::Tensor& order, const at::Tensor& out,
                   int64_t experts) {
  const SlotSequence sequence{
      .order = pointer<int64_t>(order), .tokens = expert.numel(), .k = 1, .by_token = true};
  const Slots found = slots_by_kernel(expert, sequence, out, {}, experts, kDropped);
  return {.rank = found.slot, .count = found.count};
}

Ranks rank_by_slot(const at::Tensor& expert, const at::Tensor& slot, int64_t experts) {
  const at::Tensor slots = slot.view({-1}),
                   by_slot = at::argsort(slots, /*stable=*/true, /*dim=*/0);
  return rank_choices(expert.view({-1}), by_slot, slots < 0, experts);
}

at::Tensor count_choices(const at::Tensor& expert, int64_t experts) {
  return rank_choices(expert.contiguous().view({-1}), {}, {}, experts).count;
}

at::Tensor assign_slots(const at::Tensor& expert, const at::Tensor& weight, const at::Tensor& order,
                        const at::Tensor& drawn_out, int64_t experts, int64_t capacity,
                        const RoutingSpec& spec) {
  at::Tensor out;
  if (spec.draw_frees_slot && drawn_out.defined()) {
    out = at::zeros(expert.sizes(), expert.options().dtype(at::kBool));
    out.select(1, 1).copy_(drawn_out);
  }
  if (spec.drop == Drop::kProbability) out = beyond_largest(expert, weight, out, experts, capacity);
  return slots_by_kernel(expert, sequence_of(expert, order, spec), out, drawn_out, experts,
                         limit_of(spec, capacity))
      .slot;
}

Slots take_slots(const at::Tensor& expert, const RoutingSpec& spec, int64_t experts,
                 int64_t capacity) {
  return slots_by_kernel(expert, sequence_of(expert, {}, spec), {}, {}, experts,
                         limit_of(spec, capacity));
}

at::Tensor choose_rows(const at::Tensor& scores, int64_t capacity) {
  const at::Tensor order = at::argsort(comparable(scores.t().contiguous()), /*stable=*/true,
                                       /*dim=*/1, /*descending=*/true);
  return order.narrow(1, 0, capacity).to(at::kInt).contiguous();
}

}  // namespace dovetail::moe::gpu
