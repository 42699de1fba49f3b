#include "dovetail/moe/dispatch_gpu.h"

#include <ATen/ATen.h>

#include "dovetail/moe/choose_gpu.h"
#include "dovetail/moe/cuda_kernels.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::moe::gpu {

namespace {

const int64_t* places_or_null(const at::Tensor& place) {
  return place.defined() ? place.const_data_ptr<int64_t>() : nullptr;
}

/// Fills the rows of `out`, whose offsets are set.
void place_rows(const at::Tensor& expert, const Ranks& ranks, DispatchedRows& out) {
  at::Tensor begin = at::empty_like(ranks.count), ends = at::empty(begin.sizes(), expert.options());
  out.choice = at::empty({out.size()}, begin.options());
  out.token = at::empty({out.size()}, expert.options());
  out.rows_of_token = at::empty(expert.sizes(), expert.options());
  if (expert.numel() > 0) {
    cuda_kernels_for("moe_dispatch")
        .place_rows({.tokens = expert.size(0),
                     .k = expert.size(1),
                     .experts = begin.size(0),
                     .places = out.size(),
                     .capacity = 0,
                     .spare = 0,
                     .multiple = 1,
                     .expert = expert.const_data_ptr<int32_t>(),
                     .rank = ranks.rank.const_data_ptr<int32_t>(),
                     .count = ranks.count.const_data_ptr<int64_t>(),
                     .begin = begin.mutable_data_ptr<int64_t>(),
                     .ends = ends.mutable_data_ptr<int32_t>(),
                     .choice = out.choice.mutable_data_ptr<int64_t>(),
                     .token = out.token.mutable_data_ptr<int32_t>(),
                     .places_of_token = out.rows_of_token.mutable_data_ptr<int32_t>()});
  }
}

}  // namespace

DispatchedRows dispatch(const at::Tensor& expert, const at::Tensor& slot, int64_t experts,
                        const at::Tensor& kept) {
  const Ranks ranks = ranks_of(expert, slot, experts, kept);
  const at::Tensor counts = ranks.count.cpu();
  DispatchedRows out;
  out.offsets.push_back(0);
  for (int64_t e = 0; e < experts; ++e)
    out.offsets.push_back(out.offsets.back() + counts.const_data_ptr<int64_t>()[e]);
  place_rows(expert, ranks, out);
  return out;
}

void take_tokens(const at::Tensor& x, const DispatchedRows& to, const at::Tensor& place,
                 const at::Tensor& weight, const at::Tensor& other, at::Tensor& y,
                 at::Tensor& dots) {
  if (to.size() == 0) return;
  cuda_kernels_for("moe_dispatch")
      .gather_rows({.rows = {.storage = ops::storage_of(x),
                             .rows = to.size(),
                             .width = x.size(1),
                             .x = x.const_data_ptr(),
                             .row = to.token.const_data_ptr<int32_t>(),
                             .weight = ops::data_or_null(weight),
                             .y = y.mutable_data_ptr(),
                             .other = other.defined() ? other.const_data_ptr() : nullptr,
                             .dots = dots.defined() ? dots.mutable_data_ptr<float>() : nullptr},
                    .place = places_or_null(place)});
}

at::Tensor sum_rows(const at::Tensor& rows, const at::Tensor& weight, const DispatchedRows& to,
                    const at::Tensor& place) {
  at::Tensor y =
      at::empty({to.rows_of_token.size(0), rows.size(1)}, rows.options().dtype(at::kFloat));
  if (y.numel() == 0) return y;
  cuda_kernels_for("moe_combine")
      .sum_rows({.storage = ops::storage_of(rows),
                 .tokens = y.size(0),
                 .width = y.size(1),
                 .k = to.rows_of_token.size(1),
                 .x = rows.const_data_ptr(),
                 .row = to.rows_of_token.const_data_ptr<int32_t>(),
                 .place = places_or_null(place),
                 .weight = ops::data_or_null(weight),
                 .y = y.mutable_data_ptr<float>()});
  return y;
}

}  // namespace dovetail::moe::gpu
