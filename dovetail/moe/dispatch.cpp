#include "dovetail/moe/dispatch.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numeric>

#include "dovetail/base/error.h"
#include "dovetail/moe/dispatch_gpu.h"
#include "dovetail/moe/saved_dispatch.h"
#include "dovetail/ops/dispatch.h"
#include "dovetail/ops/rows_simd.h"

namespace dovetail::moe {

Dispatch dispatch(const at::Tensor& expert_of, const at::Tensor& slot_of, int64_t expert_count) {
  if (expert_of.is_cuda()) return gpu::dispatch(expert_of, slot_of, expert_count);
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

Dispatch padded(Dispatch to, int64_t capacity) {
  for (int64_t e = 0; e < to.experts(); ++e)
    DOVETAIL_CHECK(to.rows(e) <= capacity, "expert {} has {} rows for {} places", e, to.rows(e), capacity);
  to.capacity = capacity;
  return to;
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// (rows) int64: where each lies. Undefined where nothing is padded.
at::Tensor places_of(const Dispatch& to) {
  if (to.capacity == 0) return {};
  at::Tensor places = at::empty({to.rows()}, at::kLong);
  auto* place = places.mutable_data_ptr<int64_t>();
  for (int64_t e = 0; e < to.experts(); place += to.rows(e), ++e)
    std::iota(place, place + to.rows(e), to.first_place(e));
  return places.to(to.token.device());
}

/// y[token] += weight * rows, expert by expert: the tokens of one are all different.
void add_to_tokens(at::Tensor& y, const at::Tensor& rows, const at::Tensor& weight, const Dispatch& to) {
  for (int64_t e = 0; e < to.experts(); ++e) {
    const at::Tensor part = rows.narrow(0, to.first_place(e), to.rows(e)), token = to.of_expert(to.token, e);
    const at::Tensor of_rows = weight.defined() ? to.of_expert(weight, e) : weight;
    add_rows({.storage = storage_of(part),
              .rows = part.size(0),
              .width = part.size(1),
              .x = part.const_data_ptr(),
              .row = token.const_data_ptr<int32_t>(),
              .weight = data_or_null(of_rows),
              .c = y.mutable_data_ptr<float>(),
              .ldc = y.size(1)});
  }
}

/// (tokens, C) float32: the sums over each token's rows of weight * row.
at::Tensor sum_by_token(const at::Tensor& rows, const at::Tensor& weight, const Dispatch& to, int64_t tokens) {
  if (rows.is_cuda()) return gpu::sum_rows(rows, weight, to, places_of(to));
  at::Tensor y = at::zeros({tokens, rows.size(1)}, rows.options().dtype(at::kFloat));
  add_to_tokens(y, rows, weight, to);
  return y;
}

/// weight * x[token] in the rows' places, and, where `other` is defined, the products of each x[token] with other's
/// row there.
at::Tensor take_tokens(const at::Tensor& x, const Dispatch& to, const at::Tensor& weight = {},
                       const at::Tensor& other = {}, at::Tensor dots = {}) {
  at::Tensor y = at::empty({to.places(), x.size(1)}, x.options());
  if (x.is_cuda()) {
    if (to.capacity > 0) y.zero_();
    gpu::take_tokens(x, to, places_of(to), weight, other, y, dots);
    return y;
  }
  // Without padding all experts' rows follow one another.
  for (int64_t e = 0, end = 0; e < to.experts(); e = end) {
    end = to.capacity > 0 ? e + 1 : to.experts();
    const int64_t first = to.first_row(e), rows = to.first_row(end) - first, place = to.first_place(e);
    const auto part = [&](const at::Tensor& all, int64_t begin) {
      return all.defined() ? all.narrow(0, begin, rows) : all;
    };
    const at::Tensor of_weight = part(weight, first), of_y = part(y, place), of_other = part(other, place),
                     of_dots = part(dots, first);
    gather_rows({.storage = storage_of(x),
                 .rows = rows,
                 .width = x.size(1),
                 .x = x.const_data_ptr(),
                 .row = part(to.token, first).const_data_ptr<int32_t>(),
                 .weight = data_or_null(of_weight),
                 .y = of_y.mutable_data_ptr(),
                 .other = of_other.defined() ? of_other.const_data_ptr() : nullptr,
                 .dots = of_dots.defined() ? of_dots.mutable_data_ptr<float>() : nullptr});
    y.narrow(0, place + rows, to.first_place(end) - place - rows).zero_();
  }
  return y;
}

class DispatchFunction : public torch::autograd::Function<DispatchFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const Dispatch& to) {
    save_with_dispatch(context, {}, to);
    context->saved_data["tokens"] = x.size(0);
    return take_tokens(x, to);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor drows = gradients[0].contiguous();
    const at::Tensor dx =
        sum_by_token(drows, {}, saved_dispatch(context, saved), context->saved_data["tokens"].toInt());
    return {dx.to(drows.scalar_type()), at::Tensor()};
  }
};

class CombineFunction : public torch::autograd::Function<CombineFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows, const at::Tensor& weight,
                            const Dispatch& to) {
    const at::Tensor row_weight = weight.reshape(-1).index_select(0, to.choice);
    save_with_dispatch(context, {rows, row_weight}, to);
    context->saved_data["choices"] = weight.sizes().vec();
    return sum_by_token(rows, row_weight, to, weight.size(0));
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const Dispatch to = saved_dispatch(context, saved);
    const at::Tensor &rows = saved[0], &row_weight = saved[1];
    const at::Tensor dy = gradients[0].to(rows.scalar_type()).contiguous();
    const at::Tensor dots = at::empty(row_weight.sizes(), row_weight.options());
    const at::Tensor drows = take_tokens(dy, to, row_weight, rows, dots);
    at::Tensor dweight = at::zeros(context->saved_data["choices"].toIntVector(), row_weight.options());
    dweight.view(-1).index_copy_(0, to.choice, dots);
    return {drows, dweight, at::Tensor()};
  }
};

bool by_kernel(const at::Tensor& x) {
  if (!x.is_cuda()) return use_kernel(Kernel::kExperts, x) && x.is_cpu();
  return kernel_enabled(Kernel::kExperts) && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

/// The kernels of a GPU must not be told of other tokens, and ATen's message names none of ours.
void check_choices(const char* op, const at::Tensor& x, int64_t tokens, const Dispatch& to) {
  user_check(x.device() == to.token.device(), "{}: the choices are on {}, but the rows are {}", op,
             to.token.device().str(), describe(x));
  user_check(!to.row_of_token.defined() || to.row_of_token.size(0) == tokens,
             "{}: the choices are of {} tokens, but there are {}", op,
             to.row_of_token.defined() ? to.row_of_token.size(0) : 0, tokens);
}

}  // namespace

at::Tensor dispatch_rows(const at::Tensor& x, const Dispatch& to) {
  user_check(x.dim() == 2 && at::isFloatingType(x.scalar_type()), "dispatch: x must be (T, C) and floating, but is {}",
             describe(x));
  check_choices("dispatch", x, x.size(0), to);
  if (!by_kernel(x)) {
    at::Tensor rows = x.index_select(0, to.token);
    if (to.capacity == 0) return rows;
    return at::zeros({to.places(), x.size(1)}, x.options().requires_grad(false)).index_copy(0, places_of(to), rows);
  }
  return DispatchFunction::apply(x.contiguous(), to);
}

at::Tensor combine_rows(const at::Tensor& rows, const at::Tensor& weight, const Dispatch& to) {
  const auto dtype = rows.scalar_type() == at::kBFloat16 ? at::kFloat : rows.scalar_type();
  user_check(rows.dim() == 2 && rows.size(0) == to.places() && weight.dim() == 2 && weight.scalar_type() == dtype,
             "combine: rows must be ({}, C) and weight (T, k) of {}: rows is {}, weight is {}", to.places(),
             at::toString(dtype), describe(rows), describe(weight));
  check_choices("combine", rows, weight.size(0), to);
  user_check(weight.device() == rows.device(),
             "combine: rows and weight must share one device: rows is {}, weight is {}", describe(rows),
             describe(weight));
  if (by_kernel(rows)) return CombineFunction::apply(rows.contiguous(), weight, to);
  const at::Tensor kept = to.capacity == 0 ? rows : rows.index_select(0, places_of(to));
  const at::Tensor weighted = kept * weight.reshape(-1).index_select(0, to.choice).unsqueeze(1);
  return at::zeros({weight.size(0), rows.size(1)}, weight.options().requires_grad(false))
      .index_add(0, to.token, weighted);
}

}  // namespace dovetail::moe
