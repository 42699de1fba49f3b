#include "dovetail/moe/dispatch.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/once_differentiable.h"
#include "dovetail/base/operation.h"
#include "dovetail/moe/dispatch_gpu.h"
#include "dovetail/moe/dispatch_operands.h"
#include "dovetail/moe/remedies.h"
#include "dovetail/ops/rows_simd.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::moe {

namespace {

/// Offsets (E + 1), and choice and token (T k) with zeros after the last row, of expert and slot
/// (T, k) on the CPU.
std::vector<at::Tensor> sort_by_expert(const at::Tensor& expert_of, const at::Tensor& slot_of,
                                       int64_t expert_count) {
  const int64_t choices = expert_of.numel(), k = expert_of.size(1);
  const auto experts = static_cast<size_t>(expert_count);
  const auto* expert = expert_of.const_data_ptr<int32_t>();
  const auto* slot = slot_of.const_data_ptr<int32_t>();
  // The slots of all experts in one list, each expert's up to its last. A draw may leave some
  // empty.
  std::vector<int64_t> first_slot(experts + 1, 0);
  for (int64_t i = 0; i < choices; ++i) {
    if (slot[i] < 0) continue;
    auto& slots = first_slot[static_cast<size_t>(expert[i]) + 1];
    slots = std::max<int64_t>(slots, slot[i] + 1);
  }
  std::partial_sum(first_slot.begin(), first_slot.end(), first_slot.begin());
  std::vector<int64_t> choice_in_slot(static_cast<size_t>(first_slot.back()), -1);
  for (int64_t i = 0; i < choices; ++i) {
    if (slot[i] >= 0)
      choice_in_slot[static_cast<size_t>(first_slot[static_cast<size_t>(expert[i])] + slot[i])] = i;
  }

  const at::Tensor offsets = at::empty({expert_count + 1}, at::kLong),
                   choices_by_row = at::empty({choices}, at::kLong),
                   tokens_by_row = at::empty({choices}, at::kInt);
  auto* offset = offsets.mutable_data_ptr<int64_t>();
  auto* choice = choices_by_row.mutable_data_ptr<int64_t>();
  auto* token = tokens_by_row.mutable_data_ptr<int32_t>();
  int64_t row = 0;
  for (size_t e = 0; e < experts; ++e) {
    offset[e] = row;
    const auto end = static_cast<size_t>(first_slot[e + 1]);
    for (auto s = static_cast<size_t>(first_slot[e]); s < end; ++s) {
      if (choice_in_slot[s] < 0) continue;
      choice[row] = choice_in_slot[s];
      token[row++] = static_cast<int32_t>(choice_in_slot[s] / k);
    }
  }
  offset[experts] = row;
  std::fill(choice + row, choice + choices, 0);
  std::fill(token + row, token + choices, 0);
  return {offsets, choices_by_row, tokens_by_row};
}

DispatchedRows padded(DispatchedRows rows, int64_t capacity) {
  for (int64_t e = 0; e < rows.experts(); ++e)
    DOVETAIL_CHECK(rows.count(e) <= capacity, "expert {} has {} rows for {} places", e,
                   rows.count(e), capacity);
  rows.capacity = capacity;
  return rows;
}

Dispatch dispatch_on_cpu(const at::Tensor& expert, const at::Tensor& slot, int64_t experts,
                         int64_t capacity) {
  const auto made =
      operation("dovetail::moe_dispatch", {.reads = {expert.contiguous(), slot.contiguous()}},
                [experts](const Operands& inputs) {
                  return sort_by_expert(inputs.reads[0], inputs.reads[1], experts);
                });
  const RecordedRows rows = {
      .choice = made[1], .token = made[2], .offsets = made[0], .capacity = capacity};
  if (operations_are_recorded()) return rows;
  return rows.resolve();
}

}  // namespace

Dispatch dispatch(const at::Tensor& expert, const at::Tensor& slot, int64_t experts,
                  const at::Tensor& kept) {
  return expert.is_cuda() ? Dispatch(gpu::dispatch(expert, slot, experts, kept))
                          : dispatch_on_cpu(expert, slot, experts, 0);
}

Dispatch padded_dispatch(const at::Tensor& expert, const at::Tensor& slot, int64_t experts,
                         int64_t capacity, const at::Tensor& kept) {
  if (expert.is_cuda()) return padded(gpu::dispatch(expert, slot, experts, kept), capacity);
  user_check(capacity > 0 || !operations_are_recorded(),
             "moe: experts have no places in a chunk; a lower parallel.overlap or a higher "
             "capacity_factor gives them some");
  return dispatch_on_cpu(expert, slot, experts, capacity);
}

DispatchedRows on_device(DispatchedRows rows, int64_t tokens, int64_t k, at::Device device) {
  if (device.is_cpu()) return rows;
  const at::Tensor rows_of_token = at::full({tokens, k}, -1, at::kInt);
  auto* of_token = rows_of_token.mutable_data_ptr<int32_t>();
  const auto* token = rows.token.const_data_ptr<int32_t>();
  std::vector<int32_t> count(static_cast<size_t>(tokens), 0);
  for (int64_t row = 0; row < rows.size(); ++row)
    of_token[token[row] * k + count[static_cast<size_t>(token[row])]++] = static_cast<int32_t>(row);
  rows.rows_of_token = rows_of_token.to(device);
  rows.token = rows.token.to(device);
  rows.choice = rows.choice.to(device);
  return rows;
}

DispatchedRows RecordedRows::resolve() const {
  const auto* offset = offsets.const_data_ptr<int64_t>();
  DispatchedRows rows = {.offsets = {offset, offset + offsets.size(0)}, .choice = {}, .token = {}};
  rows.choice = choice.narrow(0, 0, rows.size());
  rows.token = token.narrow(0, 0, rows.size());
  return capacity > 0 ? padded(std::move(rows), capacity) : rows;
}

DispatchedRows Dispatch::resolve() const {
  if (!is_recorded()) return rows();
  DispatchedRows now = recorded().resolve();
  const int64_t choices = choice().size(0);
  user_check(capacity() > 0 || now.size() == choices,
             "experts: {} of {} choices were dropped, but without padding a recorded step has a "
             "row for each",
             choices - now.size(), choices);
  return now;
}

const DispatchedRows& Dispatch::rows() const {
  DOVETAIL_CHECK(!is_recorded(), "the sizes of a recorded dispatch are known in operations only");
  return std::get<DispatchedRows>(rows_);
}

const RecordedRows& Dispatch::recorded() const {
  DOVETAIL_CHECK(is_recorded(), "a dispatch with known sizes is not recorded");
  return std::get<RecordedRows>(rows_);
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Place of each row, (R) int64. Undefined tensor if dropless.
at::Tensor places_of(const DispatchedRows& to) {
  if (to.capacity == 0) return {};
  at::Tensor places = at::empty({to.size()}, at::kLong);
  auto* place = places.mutable_data_ptr<int64_t>();
  for (int64_t e = 0; e < to.experts(); place += to.count(e), ++e)
    std::iota(place, place + to.count(e), to.first_place(e));
  return places.to(to.token.device());
}

/// (tokens, C) float32: for each token the sum over its rows of weight * row. rows (P, C); weight
/// (R), undefined: 1.
at::Tensor sum_by_token(const at::Tensor& rows, const at::Tensor& weight, const DispatchedRows& to,
                        int64_t tokens) {
  if (rows.is_cuda()) return gpu::sum_rows(rows, weight, to, places_of(to));
  at::Tensor y = at::zeros({tokens, rows.size(1)}, rows.options().dtype(at::kFloat));
  for (int64_t e = 0; e < to.experts(); ++e) {  // tokens of one expert are all different
    const at::Tensor part = rows.narrow(0, to.first_place(e), to.count(e)),
                     token = to.of_expert(to.token, e),
                     row_weight = weight.defined() ? to.of_expert(weight, e) : weight;
    ops::add_rows({.storage = ops::storage_of(part),
                   .rows = part.size(0),
                   .width = part.size(1),
                   .x = part.const_data_ptr(),
                   .row = token.const_data_ptr<int32_t>(),
                   .weight = ops::data_or_null(row_weight),
                   .c = y.mutable_data_ptr<float>(),
                   .ldc = y.size(1)});
  }
  return y;
}

/// Optional operands and results of `take_tokens`.
struct TakeOptions {
  at::Tensor weight = {};  ///< (R): factor of each row; undefined: 1
  at::Tensor other = {};   ///< (P, C): factor of `dots`
  at::Tensor dots = {};    ///< (R) float32: becomes <x[token[r]], other's row r>
};

/// (P, C): weight * x[token] for each row, zeros in empty places. x (T, C).
at::Tensor take_tokens(const at::Tensor& x, const DispatchedRows& to,
                       const TakeOptions& options = {}) {
  at::Tensor y = at::empty({to.places(), x.size(1)}, x.options());
  if (x.is_cuda()) {
    if (to.capacity > 0) y.zero_();
    at::Tensor dots = options.dots;
    gpu::take_tokens(x, to, places_of(to), options.weight, options.other, y, dots);
    return y;
  }
  // Dropless rows of all experts are contiguous: one pass takes them all.
  for (int64_t e = 0, end = 0; e < to.experts(); e = end) {
    end = to.capacity > 0 ? e + 1 : to.experts();
    const int64_t first = to.first(e), rows = to.first(end) - first, place = to.first_place(e);
    const auto part = [&](const at::Tensor& all, int64_t begin) {
      return all.defined() ? all.narrow(0, begin, rows) : all;
    };
    const at::Tensor weight = part(options.weight, first), out = part(y, place),
                     other = part(options.other, place), dots = part(options.dots, first);
    ops::gather_rows({.storage = ops::storage_of(x),
                      .rows = rows,
                      .width = x.size(1),
                      .x = x.const_data_ptr(),
                      .row = part(to.token, first).const_data_ptr<int32_t>(),
                      .weight = ops::data_or_null(weight),
                      .y = out.mutable_data_ptr(),
                      .other = other.defined() ? other.const_data_ptr() : nullptr,
                      .dots = dots.defined() ? dots.mutable_data_ptr<float>() : nullptr});
    y.narrow(0, place + rows, to.first_place(end) - place - rows).zero_();
  }
  return y;
}

at::Tensor taken(const at::Tensor& x, const Dispatch& to) {
  return operation("dovetail::moe_dispatch_rows", {.reads = with_dispatch({x}, to)},
                   [numbers = numbers_of(to)](const Operands& inputs) {
                     const Dispatch now = dispatch_at(inputs.reads, 1, numbers);
                     return std::vector{take_tokens(inputs.reads[0], now.resolve())};
                   })[0];
}

/// Returns (tokens, C) float32.
at::Tensor summed(const at::Tensor& rows, const Dispatch& to, int64_t tokens) {
  return operation("dovetail::moe_sum_rows", {.reads = with_dispatch({rows}, to)},
                   [numbers = numbers_of(to), tokens](const Operands& inputs) {
                     const Dispatch now = dispatch_at(inputs.reads, 1, numbers);
                     return std::vector{sum_by_token(inputs.reads[0], {}, now.resolve(), tokens)};
                   })[0];
}

class DispatchFunction : public torch::autograd::Function<DispatchFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const Dispatch& to) {
    save_with_dispatch(context, {}, to);
    context->saved_data["tokens"] = x.size(0);
    return taken(x, to);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const Dispatch to = saved_dispatch(context, context->get_saved_variables());
    variable_list out = differentiate_once({"moe_dispatch", kInFloat64}, gradients, [&] {
      const at::Tensor drows = gradients[0].contiguous();
      const at::Tensor dx = summed(drows, to, context->saved_data["tokens"].toInt());
      return std::vector{dx.to(drows.scalar_type())};
    });
    out.emplace_back();
    return out;
  }
};

class SumFunction : public torch::autograd::Function<SumFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows, const Dispatch& to,
                            int64_t tokens) {
    save_with_dispatch(context, {}, to);
    context->saved_data["dtype"] = rows.scalar_type();
    return summed(rows, to, tokens);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const Dispatch to = saved_dispatch(context, context->get_saved_variables());
    variable_list out = differentiate_once({"moe_combine", kInFloat64}, gradients, [&] {
      const at::Tensor dy = gradients[0].to(context->saved_data["dtype"].toScalarType());
      return std::vector{taken(dy.contiguous(), to)};
    });
    out.resize(3);
    return out;
  }
};

/// Gradients of rows (P, C) and of weight, which has sizes `choices`. row_weight (R or more): the
/// weight of each row.
variable_list combine_gradients(const at::Tensor& dy, const at::Tensor& rows,
                                const at::Tensor& row_weight, const DispatchedRows& to,
                                at::IntArrayRef choices) {
  const at::Tensor weight = row_weight.narrow(0, 0, to.size());
  const at::Tensor dots =
      at::empty(row_weight.sizes(), row_weight.options()).narrow(0, 0, to.size());
  const at::Tensor drows = take_tokens(dy, to, {.weight = weight, .other = rows, .dots = dots});
  at::Tensor dweight = at::zeros(choices, weight.options());
  if (dweight.is_cuda()) {
    dweight.view(-1).index_copy_(0, to.choice, dots);
    return {drows, dweight};
  }
  const auto* choice = to.choice.const_data_ptr<int64_t>();
  const auto* dot = dots.const_data_ptr<float>();
  for (int64_t row = 0; row < to.size(); ++row)
    dweight.mutable_data_ptr<float>()[choice[row]] = dot[row];
  return {drows, dweight};
}

class CombineFunction : public torch::autograd::Function<CombineFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows,
                            const at::Tensor& weight, const Dispatch& to) {
    const at::Tensor row_weight = weight.reshape(-1).index_select(0, to.choice());
    save_with_dispatch(context, {rows, row_weight, weight}, to);
    context->saved_data["choices"] = weight.sizes().vec();
    return operation("dovetail::moe_combine_rows", {.reads = with_dispatch({rows, row_weight}, to)},
                     [numbers = numbers_of(to), tokens = weight.size(0)](const Operands& inputs) {
                       const auto now = dispatch_at(inputs.reads, 2, numbers).resolve();
                       const at::Tensor weight = inputs.reads[1].narrow(0, 0, now.size());
                       return std::vector{sum_by_token(inputs.reads[0], weight, now, tokens)};
                     })[0];
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const Dispatch to = saved_dispatch(context, saved);
    const at::Tensor &rows = saved[0], &row_weight = saved[1];
    const variable_list depends_on = {gradients[0], rows, saved[2]};
    variable_list out = differentiate_once({"moe_combine", kInFloat64}, depends_on, [&] {
      const at::Tensor dy = gradients[0].to(rows.scalar_type()).contiguous();
      return operation(
          "dovetail::moe_combine_gradient", {.reads = with_dispatch({dy, rows, row_weight}, to)},
          [numbers = numbers_of(to),
           choices = context->saved_data["choices"].toIntVector()](const Operands& inputs) {
            const auto& in = inputs.reads;
            return combine_gradients(in[0], in[1], in[2], dispatch_at(in, 3, numbers).resolve(),
                                     choices);
          });
    });
    out.emplace_back();
    return out;
  }
};

bool by_kernel(const at::Tensor& x) {
  if (!x.is_cuda()) return ops::use_kernel(ops::Kernel::kExperts, x) && x.is_cpu();
  return ops::kernel_enabled(ops::Kernel::kExperts) &&
         (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

/// Throws UserError if `to` was made for other tokens or another device. Kernels for the GPU do not
/// check, and ATen's message would not name our operation.
void check_choices(const char* op, const at::Tensor& x, int64_t tokens, const Dispatch& to) {
  user_check(x.device() == to.token().device(), "{}: the choices are on {}, but the rows are {}",
             op, to.token().device().str(), ops::describe(x));
  if (to.is_recorded() || !to.rows().rows_of_token.defined()) return;
  const int64_t dispatched = to.rows().rows_of_token.size(0);
  user_check(dispatched == tokens, "{}: the choices are of {} tokens, but there are {}", op,
             dispatched, tokens);
}

/// Rows for operations of ATen, which need sizes on the host. Throws UserError in a recorded step.
const DispatchedRows& rows_for_aten(const char* op, const at::Tensor& x, const Dispatch& to) {
  if (!to.is_recorded()) return to.rows();
  throw UserError(fmt::format("{}: a recorded step needs our kernels, which are off or not for {}",
                              op, ops::describe(x)),
                  "train without memory.budget, or in float32 or bfloat16 with all kernels on");
}

}  // namespace

at::Tensor dispatch_rows(const at::Tensor& x, const Dispatch& dispatch) {
  user_check(x.dim() == 2 && at::isFloatingType(x.scalar_type()),
             "dispatch: x must be (T, C) and floating, but is {}", ops::describe(x));
  check_choices("dispatch", x, x.size(0), dispatch);
  if (by_kernel(x)) return DispatchFunction::apply(x.contiguous(), dispatch);
  const DispatchedRows& to = rows_for_aten("dispatch", x, dispatch);
  at::Tensor rows = x.index_select(0, to.token);
  if (to.capacity == 0) return rows;
  return at::zeros({to.places(), x.size(1)}, x.options().requires_grad(false))
      .index_copy(0, places_of(to), rows);
}

at::Tensor combine_rows(const at::Tensor& rows, const at::Tensor& weight,
                        const Dispatch& dispatch) {
  const auto dtype =
      at::isReducedFloatingType(rows.scalar_type()) ? at::kFloat : rows.scalar_type();
  user_check(rows.dim() == 2 && rows.size(0) == dispatch.places() && weight.dim() == 2 &&
                 weight.scalar_type() == dtype,
             "combine: rows must be ({}, C) and weight (T, k) of {}: rows is {}, weight is {}",
             dispatch.places(), at::toString(dtype), ops::describe(rows), ops::describe(weight));
  check_choices("combine", rows, weight.size(0), dispatch);
  user_check(weight.device() == rows.device(),
             "combine: rows and weight must share one device: rows is {}, weight is {}",
             ops::describe(rows), ops::describe(weight));
  if (by_kernel(rows)) return CombineFunction::apply(rows.contiguous(), weight, dispatch);
  const DispatchedRows& to = rows_for_aten("combine", rows, dispatch);
  const at::Tensor kept = to.capacity == 0 ? rows : rows.index_select(0, places_of(to));
  const at::Tensor weighted = kept * weight.reshape(-1).index_select(0, to.choice).unsqueeze(1);
  return at::zeros({weight.size(0), rows.size(1)}, weight.options().requires_grad(false))
      .index_add(0, to.token, weighted);
}

at::Tensor sum_rows(const at::Tensor& rows, const Dispatch& dispatch, int64_t tokens) {
  user_check(rows.dim() == 2 && rows.size(0) == dispatch.places(),
             "sum_rows: rows must be ({}, C), but is {}", dispatch.places(), ops::describe(rows));
  check_choices("sum_rows", rows, tokens, dispatch);
  if (by_kernel(rows)) return SumFunction::apply(rows.contiguous(), dispatch, tokens);
  const DispatchedRows& to = rows_for_aten("sum_rows", rows, dispatch);
  const auto dtype = rows.scalar_type() == at::kBFloat16 ? at::kFloat : rows.scalar_type();
  const at::Tensor kept = to.capacity == 0 ? rows : rows.index_select(0, places_of(to));
  return at::zeros({tokens, rows.size(1)}, rows.options().dtype(dtype).requires_grad(false))
      .index_add(0, to.token, kept.to(dtype));
}

}  // namespace dovetail::moe
