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
void sort_rows(const at::Tensor& expert, const Ranks& ranks, DispatchedRows& out) {
  const at::Tensor begin = at::cumsum(ranks.count, 0) - ranks.count;
  at::Tensor row = at::empty(expert.sizes(), expert.options());
  out.choice = at::empty({out.size()}, expert.options().dtype(at::kLong));
  out.token = at::empty({out.size()}, expert.options());
  if (expert.numel() > 0) {
    cuda_kernels_for("moe_dispatch")
        .sort_rows({.choices = expert.numel(),
                    .k = expert.size(1),
                    .expert = expert.const_data_ptr<int32_t>(),
                    .rank = ranks.rank.const_data_ptr<int32_t>(),
                    .begin = begin.const_data_ptr<int64_t>(),
                    .choice = out.choice.mutable_data_ptr<int64_t>(),
                    .token = out.token.mutable_data_ptr<int32_t>(),
                    .row = row.mutable_data_ptr<int32_t>()});
  }
  out.rows_of_token = std::get<0>(at::sort(row, 1));
}

}  // namespace

DispatchedRows dispatch(const at::Tensor& expert, const at::Tensor& slot, int64_t experts) {
  const Ranks ranks = rank_by_slot(expert, slot, experts);
  const at::Tensor counts = ranks.count.cpu();
  DispatchedRows out;
  out.offsets.push_back(0);
  for (int64_t e = 0; e < experts; ++e)
    out.offsets.push_back(out.offsets.back() + counts.const_data_ptr<int64_t>()[e]);
  sort_rows(expert, ranks, out);
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
