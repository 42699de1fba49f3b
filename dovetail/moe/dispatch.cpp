#include "dovetail/moe/dispatch.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numeric>

#include "dovetail/base/error.h"
#include "dovetail/base/operation.h"
#include "dovetail/moe/dispatch_gpu.h"
#include "dovetail/moe/saved_dispatch.h"
#include "dovetail/ops/rows_simd.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::moe {

namespace {

/// expert and slot (T, k) on the CPU: first, and choice and token with zeros behind the last row.
std::vector<at::Tensor> sorted(const at::Tensor& expert_of, const at::Tensor& slot_of,
                               int64_t expert_count) {
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
  for (int64_t i = 0; i < choices; ++i) {
    if (slot[i] >= 0)
      in_slot[static_cast<size_t>(first[static_cast<size_t>(expert[i])] + slot[i])] = i;
  }

  std::vector<at::Tensor> out = {at::empty({expert_count + 1}, at::kLong),
                                 at::empty({choices}, at::kLong), at::empty({choices}, at::kInt)};
  auto* begin = out[0].mutable_data_ptr<int64_t>();
  auto* choice = out[1].mutable_data_ptr<int64_t>();
  auto* token = out[2].mutable_data_ptr<int32_t>();
  int64_t row = 0;
  for (size_t e = 0; e < experts; ++e) {
    begin[e] = row;
    for (auto at = static_cast<size_t>(first[e]); at < static_cast<size_t>(first[e + 1]); ++at) {
      if (in_slot[at] < 0) continue;
      choice[row] = in_slot[at];
      token[row++] = static_cast<int32_t>(in_slot[at] / k);
    }
  }
  begin[experts] = row;
  std::fill(choice + row, choice + choices, 0);
  std::fill(token + row, token + choices, 0);
  return out;
}

Dispatch checked(Dispatch to, int64_t capacity) {
  for (int64_t e = 0; e < to.experts(); ++e)
    DOVETAIL_CHECK(to.rows(e) <= capacity, "expert {} has {} rows for {} places", e, to.rows(e),
                   capacity);
  to.capacity = capacity;
  return to;
}

/// On the CPU.
Dispatch sorted_dispatch(const at::Tensor& expert, const at::Tensor& slot, int64_t experts,
                         int64_t capacity) {
  const auto made = operation(
      "dovetail::moe_dispatch", {.reads = {expert.contiguous(), slot.contiguous()}},
      [experts](const Operands& of) { return sorted(of.reads[0], of.reads[1], experts); });
  const Dispatch out{.begin = {},
                     .choice = made[1],
                     .token = made[2],
                     .capacity = capacity,
                     .row_of_token = {},
                     .first = made[0]};
  return operations_are_recorded() ? out : out.known();
}

}  // namespace

Dispatch dispatch(const at::Tensor& expert, const at::Tensor& slot, int64_t experts) {
  return expert.is_cuda() ? gpu::dispatch(expert, slot, experts)
                          : sorted_dispatch(expert, slot, experts, 0);
}

Dispatch padded_dispatch(const at::Tensor& expert, const at::Tensor& slot, int64_t experts,
                         int64_t capacity) {
  if (expert.is_cuda()) return checked(gpu::dispatch(expert, slot, experts), capacity);
  user_check(capacity > 0 || !operations_are_recorded(),
             "moe: experts have no places in a chunk; a lower parallel.overlap or a higher "
             "capacity_factor gives them some");
  return sorted_dispatch(expert, slot, experts, capacity);
}

Dispatch Dispatch::known() const {
  if (is_known()) return *this;
  Dispatch out = *this;
  const auto* numbers = first.const_data_ptr<int64_t>();
  out.begin.assign(numbers, numbers + first.size(0));
  out.choice = choice.narrow(0, 0, out.rows());
  out.token = token.narrow(0, 0, out.rows());
  return capacity > 0 ? checked(std::move(out), capacity) : out;
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
void add_to_tokens(at::Tensor& y, const at::Tensor& rows, const at::Tensor& weight,
                   const Dispatch& to) {
  for (int64_t e = 0; e < to.experts(); ++e) {
    const at::Tensor part = rows.narrow(0, to.first_place(e), to.rows(e)),
                     token = to.of_expert(to.token, e);
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
at::Tensor sum_by_token(const at::Tensor& rows, const at::Tensor& weight, const Dispatch& to,
                        int64_t tokens) {
  if (rows.is_cuda()) return gpu::sum_rows(rows, weight, to, places_of(to));
  at::Tensor y = at::zeros({tokens, rows.size(1)}, rows.options().dtype(at::kFloat));
  add_to_tokens(y, rows, weight, to);
  return y;
}

/// weight * x[token] in the rows' places, and, where `other` is defined, the products of each
/// x[token] with other's row there.
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
    const int64_t first = to.first_row(e), rows = to.first_row(end) - first,
                  place = to.first_place(e);
    const auto part = [&](const at::Tensor& all, int64_t begin) {
      return all.defined() ? all.narrow(0, begin, rows) : all;
    };
    const at::Tensor of_weight = part(weight, first), of_y = part(y, place),
                     of_other = part(other, place), of_dots = part(dots, first);
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
    return operation("dovetail::moe_dispatch_rows", {.reads = with_dispatch({x}, to)},
                     [numbers = numbers_of(to)](const Operands& of) {
                       return std::vector{
                           take_tokens(of.reads[0], dispatch_behind(of.reads, 1, numbers).known())};
                     })[0];
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const Dispatch to = saved_dispatch(context, context->get_saved_variables());
    const at::Tensor drows = gradients[0].contiguous();
    const at::Tensor dx =
        operation("dovetail::moe_dispatch_gradient", {.reads = with_dispatch({drows}, to)},
                  [numbers = numbers_of(to),
                   tokens = context->saved_data["tokens"].toInt()](const Operands& of) {
                    return std::vector{sum_by_token(
                        of.reads[0], {}, dispatch_behind(of.reads, 1, numbers).known(), tokens)};
                  })[0];
    return {dx.to(drows.scalar_type()), at::Tensor()};
  }
};

/// of: dy, rows, the weight of each row. The gradients of rows and of the weight (choices).
variable_list combine_gradients(const std::vector<at::Tensor>& of, const Dispatch& to,
                                at::IntArrayRef choices) {
  const at::Tensor row_weight = of[2].narrow(0, 0, to.rows());
  const at::Tensor all_dots = at::empty(of[2].sizes(), of[2].options()),
                   dots = all_dots.narrow(0, 0, to.rows());
  const at::Tensor drows = take_tokens(of[0], to, row_weight, of[1], dots);
  at::Tensor dweight = at::zeros(choices, row_weight.options());
  if (dweight.is_cuda()) {
    dweight.view(-1).index_copy_(0, to.choice, dots);
    return {drows, dweight};
  }
  const auto* choice = to.choice.const_data_ptr<int64_t>();
  const auto* dot = dots.const_data_ptr<float>();
  for (int64_t row = 0; row < to.rows(); ++row)
    dweight.mutable_data_ptr<float>()[choice[row]] = dot[row];
  return {drows, dweight};
}

class CombineFunction : public torch::autograd::Function<CombineFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows,
                            const at::Tensor& weight, const Dispatch& to) {
    const at::Tensor row_weight = weight.reshape(-1).index_select(0, to.choice);
    save_with_dispatch(context, {rows, row_weight}, to);
    context->saved_data["choices"] = weight.sizes().vec();
    return operation("dovetail::moe_combine_rows", {.reads = with_dispatch({rows, row_weight}, to)},
                     [numbers = numbers_of(to), tokens = weight.size(0)](const Operands& of) {
                       const Dispatch now = dispatch_behind(of.reads, 2, numbers).known();
                       const at::Tensor of_rows = of.reads[1].narrow(0, 0, now.rows());
                       return std::vector{sum_by_token(of.reads[0], of_rows, now, tokens)};
                     })[0];
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const Dispatch to = saved_dispatch(context, saved);
    const at::Tensor &rows = saved[0], &row_weight = saved[1];
    const at::Tensor dy = gradients[0].to(rows.scalar_type()).contiguous();
    const auto made = operation(
        "dovetail::moe_combine_gradient", {.reads = with_dispatch({dy, rows, row_weight}, to)},
        [numbers = numbers_of(to),
         choices = context->saved_data["choices"].toIntVector()](const Operands& of) {
          return combine_gradients(of.reads, dispatch_behind(of.reads, 3, numbers).known(),
                                   choices);
        });
    return {made[0], made[1], at::Tensor()};
  }
};

bool by_kernel(const at::Tensor& x) {
  if (!x.is_cuda()) return use_kernel(Kernel::kExperts, x) && x.is_cpu();
  return kernel_enabled(Kernel::kExperts) &&
         (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

/// The kernels of a GPU must not be told of other tokens, and ATen's message names none of ours.
void check_choices(const char* op, const at::Tensor& x, int64_t tokens, const Dispatch& to) {
  user_check(x.device() == to.token.device(), "{}: the choices are on {}, but the rows are {}", op,
             to.token.device().str(), describe(x));
  user_check(!to.row_of_token.defined() || to.row_of_token.size(0) == tokens,
             "{}: the choices are of {} tokens, but there are {}", op,
             to.row_of_token.defined() ? to.row_of_token.size(0) : 0, tokens);
}

/// In a recorded step rows are counted by the kernels.
void check_known(const char* op, const at::Tensor& x, const Dispatch& to) {
  if (to.is_known()) return;
  throw UserError(fmt::format("{}: a recorded step needs our kernels, which are off or not for {}",
                              op, describe(x)),
                  "train without memory.budget, or in float32 or bfloat16 with all kernels on");
}

}  // namespace

at::Tensor dispatch_rows(const at::Tensor& x, const Dispatch& to) {
  user_check(x.dim() == 2 && at::isFloatingType(x.scalar_type()),
             "dispatch: x must be (T, C) and floating, but is {}", describe(x));
  check_choices("dispatch", x, x.size(0), to);
  if (!by_kernel(x)) {
    check_known("dispatch", x, to);
    at::Tensor rows = x.index_select(0, to.token);
    if (to.capacity == 0) return rows;
    return at::zeros({to.places(), x.size(1)}, x.options().requires_grad(false))
        .index_copy(0, places_of(to), rows);
  }
  return DispatchFunction::apply(x.contiguous(), to);
}

at::Tensor combine_rows(const at::Tensor& rows, const at::Tensor& weight, const Dispatch& to) {
  const auto dtype = rows.scalar_type() == at::kBFloat16 ? at::kFloat : rows.scalar_type();
  user_check(rows.dim() == 2 && rows.size(0) == to.places() && weight.dim() == 2 &&
                 weight.scalar_type() == dtype,
             "combine: rows must be ({}, C) and weight (T, k) of {}: rows is {}, weight is {}",
             to.places(), at::toString(dtype), describe(rows), describe(weight));
  check_choices("combine", rows, weight.size(0), to);
  user_check(weight.device() == rows.device(),
             "combine: rows and weight must share one device: rows is {}, weight is {}",
             describe(rows), describe(weight));
  if (by_kernel(rows)) return CombineFunction::apply(rows.contiguous(), weight, to);
  check_known("combine", rows, to);
  const at::Tensor kept = to.capacity == 0 ? rows : rows.index_select(0, places_of(to));
  const at::Tensor weighted = kept * weight.reshape(-1).index_select(0, to.choice).unsqueeze(1);
  return at::zeros({weight.size(0), rows.size(1)}, weight.options().requires_grad(false))
      .index_add(0, to.token, weighted);
}

}  // namespace dovetail::moe
