#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "dovetail/moe/routing.h"

/// CUDA versions of the functions in choose.h, with the same results. They throw UserError in a
/// build without GPU kernels. On the meta device they call the same ATen operators, but no kernels.
namespace dovetail::moe::gpu {

at::Tensor choose_experts(const at::Tensor& scores, const at::Tensor& bias,
                          const RoutingSpec& spec);
at::Tensor count_choices(const at::Tensor& expert, int64_t experts);
at::Tensor assign_slots(const at::Tensor& expert, const at::Tensor& weight, const at::Tensor& order,
                        const at::Tensor& drawn_out, int64_t experts, int64_t capacity,
                        const RoutingSpec& spec);
/// Slots of choices that neither a draw nor a probability drops, and loads.
struct Slots {
  at::Tensor slot;   ///< (T, k) int32: result of assign_slots
  at::Tensor count;  ///< (experts) int64: number of choices of each expert, dropped ones included
};
/// Assigns slots in the order of spec.slot_order and of the tokens' indices. expert: (T, k) int32,
/// contiguous. Only Drop::kPosition reads `capacity`.
Slots take_slots(const at::Tensor& expert, const RoutingSpec& spec, int64_t experts,
                 int64_t capacity);
at::Tensor choose_rows(const at::Tensor& scores, int64_t capacity);

/// Result of `rank_choices`.
struct Ranks {
  at::Tensor rank;   ///< (n) int32: number of earlier choices of the same expert; -1: skipped
  at::Tensor count;  ///< (experts) int64: number of choices of each expert, without skipped ones
};
/// Numbers the choices of each expert from 0. expert: (n) int32, expert of each choice. order: (n)
/// int64, choice indices in the order in which they are numbered; undefined: ascending. out: (n)
/// bool, choices to skip; undefined: skips no choice.
Ranks rank_choices(const at::Tensor& expert, const at::Tensor& order, const at::Tensor& out,
                   int64_t experts);
/// Numbers the choices of each expert from 0 in the order of their slots. expert and slot: (T, k)
/// int32, contiguous. Choices with slot -1 are skipped. Slots may have gaps where a draw left some
/// empty.
Ranks rank_by_slot(const at::Tensor& expert, const at::Tensor& slot, int64_t experts);
/// Does the same with Routing::kept. If it is defined, the slots are the ranks.
inline Ranks ranks_of(const at::Tensor& expert, const at::Tensor& slot, int64_t experts,
                      const at::Tensor& kept) {
  return kept.defined() ? Ranks{slot, kept} : rank_by_slot(expert, slot, experts);
}

}  // namespace dovetail::moe::gpu
