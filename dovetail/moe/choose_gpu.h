#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "dovetail/moe/routing.h"

/// choose.h for CUDA tensors, with the same results. Throws UserError in a build without kernels
/// for the GPU.
namespace dovetail::moe::gpu {

at::Tensor choose_experts(const at::Tensor& scores, const at::Tensor& bias,
                          const RoutingSpec& spec);
at::Tensor count_choices(const at::Tensor& expert, int64_t experts);
at::Tensor assign_slots(const at::Tensor& expert, const at::Tensor& weight, const at::Tensor& order,
                        const at::Tensor& drawn_out, int64_t experts, int64_t capacity,
                        const RoutingSpec& spec);
at::Tensor choose_rows(const at::Tensor& scores, int64_t capacity);

/// Where each choice stands among those of its expert, and how many each expert has.
struct Ranks {
  at::Tensor rank;   ///< (n) int32; -1: of `out`
  at::Tensor count;  ///< (experts) int64
};
/// Of choices expert (n) int32 in `order` (n) int64, without those of which `out` (n) bool says so.
Ranks rank_choices(const at::Tensor& expert, const at::Tensor& order, const at::Tensor& out,
                   int64_t experts);

}  // namespace dovetail::moe::gpu
