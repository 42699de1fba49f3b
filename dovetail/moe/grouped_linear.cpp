#include "dovetail/moe/grouped_linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"
#include "dovetail/moe/remedies.h"
#include "dovetail/ops/gemm.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::moe {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Computes each group's rows of y = x weight^T, plus the group's bias if there are biases.
void multiply(const at::Tensor& y, const at::Tensor& x, at::TensorList weight, at::TensorList bias,
              const std::vector<int64_t>& count) {
  const TraceSpan span("dovetail::grouped_linear");
  const auto x_of = x.split_with_sizes(count), y_of = y.split_with_sizes(count);
  std::vector<ops::GemmCall> calls;
  for (size_t e = 0; e < count.size(); ++e)
    calls.push_back(
        {y_of[e],
         x_of[e],
         weight[e],
         {.transpose_b = true, .bias = bias.empty() ? at::Tensor() : bias[e].contiguous()}});
  ops::gemm_group(calls);
}

/// Computes each group's gradients from dy (rows, out). `dx` may be undefined; `dweight` and
/// `dbias` may be empty. `dbias` requires `dweight`.
void multiply_backward(const at::Tensor& dx, at::TensorList dweight, at::TensorList dbias,
                       const at::Tensor& dy, const at::Tensor& x, at::TensorList weight,
                       const std::vector<int64_t>& count) {
  const TraceSpan span("dovetail::grouped_linear_backward");
  const auto x_of = x.split_with_sizes(count), dy_of = dy.contiguous().split_with_sizes(count);
  const auto dx_of = dx.defined() ? dx.split_with_sizes(count) : variable_list();
  std::vector<ops::GemmCall> calls;
  for (size_t e = 0; e < count.size(); ++e) {
    if (dx.defined()) calls.push_back({dx_of[e], dy_of[e], weight[e]});
    if (!dweight.empty())
      calls.push_back({dweight[e],
                       dy_of[e],
                       x_of[e],
                       {.transpose_a = true, .row_sums = dbias.empty() ? at::Tensor() : dbias[e]}});
  }
  ops::gemm_group(calls);
}

/// Returns the groups' parts of a stacked tensor, or an empty list if it is undefined.
variable_list parts_of(const at::Tensor& stacked) {
  return stacked.defined() ? stacked.unbind() : variable_list();
}

class GroupedLinearFunction : public torch::autograd::Function<GroupedLinearFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias,
                            const std::vector<int64_t>& count) {
    context->save_for_backward({x, weight});
    context->saved_data["count"] = count;
    context->saved_data["bias"] = bias.has_value();
    at::Tensor y = at::empty({x.size(0), weight.size(1)}, x.options());
    multiply(y, x, parts_of(weight), parts_of(bias.value_or(at::Tensor())), count);
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const variable_list depends_on = {gradients[0], x, weight};
    variable_list out = differentiate_once(kGroupedLinear, depends_on, [&] {
      const bool bias = context->saved_data["bias"].toBool() && context->needs_input_grad(2);
      return grouped_linear_gradients(gradients[0], x, weight,
                                      context->saved_data["count"].toIntVector(),
                                      {.x = context->needs_input_grad(0),
                                       .weight = context->needs_input_grad(1),
                                       .bias = bias});
    });
    out.emplace_back();  // for `count`
    return out;
  }
};

/// `tensors` holds x, then the weights of the groups, then their biases if any.
class GroupedLinearsFunction : public torch::autograd::Function<GroupedLinearsFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, at::TensorList tensors,
                            const std::vector<int64_t>& count) {
    context->save_for_backward(tensors.vec());
    context->saved_data["count"] = count;
    const size_t groups = count.size();
    at::Tensor y = at::empty({tensors[0].size(0), tensors[1].size(0)}, tensors[0].options());
    multiply(y, tensors[0], tensors.slice(1, groups), tensors.slice(1 + groups), count);
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto count = context->saved_data["count"].toIntVector();
    const size_t groups = count.size();
    variable_list depends_on = saved;
    depends_on.push_back(gradients[0]);
    return differentiate_once(kGroupedLinear, depends_on, [&] {
      variable_list out(saved.size() + 1);  // plus the undefined gradient of `count`
      if (context->needs_input_grad(0)) out[0] = at::empty(saved[0].sizes(), saved[0].options());
      for (size_t i = 1; i < saved.size(); ++i)
        out[i] = at::empty(saved[i].sizes(), saved[i].options());
      multiply_backward(out[0], at::TensorList(out).slice(1, groups),
                        at::TensorList(out).slice(1 + groups, saved.size() - 1 - groups),
                        gradients[0], saved[0], at::TensorList(saved).slice(1, groups), count);
      return out;
    });
  }
};

}  // namespace

std::vector<int64_t> checked_counts(const at::Tensor& x, const at::Tensor& weight,
                                    const at::Tensor& count, const at::Tensor& bias) {
  user_check(
      weight.dim() == 3 && x.dim() == 2 && x.size(1) == weight.size(2),
      "grouped_linear: x must be (rows, in) and weight (experts, out, in): x is {}, weight is {}",
      ops::describe(x), ops::describe(weight));
  user_check(x.scalar_type() == weight.scalar_type() && x.device() == weight.device(),
             "grouped_linear: x and weight must share dtype and device: x is {}, weight is {}",
             ops::describe(x), ops::describe(weight));
  user_check(count.dim() == 1 && count.size(0) == weight.size(0) &&
                 count.scalar_type() == at::kLong && count.is_cpu(),
             "grouped_linear: count must be ({}) int64 on the CPU, but is {}", weight.size(0),
             ops::describe(count));
  user_check(!bias.defined() || (bias.dim() == 2 && bias.sizes() == weight.sizes().slice(0, 2) &&
                                 bias.scalar_type() == weight.scalar_type()),
             "grouped_linear: bias must be [{}, {}] of weight's dtype, but is {}", weight.size(0),
             weight.size(1), ops::describe(bias));
  const at::Tensor in_order = count.contiguous();
  std::vector<int64_t> counts(in_order.const_data_ptr<int64_t>(),
                              in_order.const_data_ptr<int64_t>() + in_order.numel());
  int64_t rows = 0;
  for (const int64_t of_group : counts) {
    user_check(of_group >= 0, "grouped_linear: count holds {}", of_group);
    rows += of_group;
  }
  user_check(rows == x.size(0), "grouped_linear: count adds to {}, but x has {} rows", rows,
             x.size(0));
  return counts;
}

variable_list grouped_linear_gradients(const at::Tensor& dy, const at::Tensor& x,
                                       const at::Tensor& weight, const std::vector<int64_t>& count,
                                       GroupedWanted wanted) {
  at::Tensor dx, dweight, dbias;
  if (wanted.x) dx = at::empty(x.sizes(), x.options());
  if (wanted.weight || wanted.bias) dweight = at::empty(weight.sizes(), weight.options());
  if (wanted.bias) dbias = at::empty({weight.size(0), weight.size(1)}, weight.options());
  multiply_backward(dx, parts_of(dweight), parts_of(dbias), dy, x, parts_of(weight), count);
  return {dx, dweight, dbias};
}

at::Tensor grouped_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& count,
                          const at::Tensor& bias) {
  const std::vector<int64_t> counts = checked_counts(x, weight, count, bias);
  return GroupedLinearFunction::apply(x.contiguous(), weight,
                                      bias.defined() ? std::optional(bias) : std::nullopt, counts);
}

at::Tensor grouped_linear(const at::Tensor& x, at::TensorList weight,
                          const std::vector<int64_t>& count, at::TensorList bias) {
  DOVETAIL_CHECK(!weight.empty() && weight.size() == count.size() &&
                     (bias.empty() || bias.size() == count.size()),
                 "{} groups have {} weights and {} biases", count.size(), weight.size(),
                 bias.size());
  variable_list tensors = {x.contiguous()};
  tensors.insert(tensors.end(), weight.begin(), weight.end());
  tensors.insert(tensors.end(), bias.begin(), bias.end());
  return GroupedLinearsFunction::apply(at::TensorList(tensors), count);
}

}  // namespace dovetail::moe
