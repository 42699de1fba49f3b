#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "dovetail/base/error.h"
#include "dovetail/base/once_differentiable.h"
#include "dovetail/base/operation.h"
#include "dovetail/base/trace.h"
#include "dovetail/ops/cuda_kernels.h"
#include "dovetail/ops/functions.h"
#include "dovetail/ops/gemm.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::ops {

namespace {

/// Returns y for operands x, weight, bias.
std::vector<at::Tensor> product(const Operands& inputs) {
  const auto [x, weight, bias] = inputs.read<3>();
  if (x.is_cuda())
    return {at::linear(x, weight, bias)};  // cuBLASLt adds the bias at the end of the product
  auto sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  at::Tensor y = at::empty(sizes, x.options());
  at::Tensor rows = y.view({-1, weight.size(0)});
  gemm_into(rows, x.reshape({-1, weight.size(1)}), weight,
            {.transpose_b = true, .bias = bias.defined() ? bias.contiguous() : bias});
  return {y};
}

/// Returns the gradients of weight and bias for operands dy (rows, out), x.
std::vector<at::Tensor> weight_gradient(const Operands& inputs, bool wants_bias) {
  const at::Tensor &dy = inputs.reads[0], x = inputs.reads[1].reshape({dy.size(0), -1});
  if (dy.is_cuda()) return {at::mm(dy.t(), x), wants_bias ? column_sums(dy) : at::Tensor()};
  at::Tensor dweight = at::empty({dy.size(1), x.size(1)}, dy.options());
  // The product sums dy's columns while it packs them. So the gradient of the bias needs no pass of
  // its own.
  const at::Tensor dbias = wants_bias ? at::empty({dy.size(1)}, dy.options()) : at::Tensor();
  gemm_into(dweight, dy, x, {.transpose_a = true, .row_sums = dbias});
  return {dweight, dbias};
}

class LinearFunction : public torch::autograd::Function<LinearFunction> {
 public:
  static at::Tensor forward(
      torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
      const std::optional<at::Tensor>& bias) {  // an input that is a tensor must be defined
    context->save_for_backward({x, weight});
    context->saved_data["has_bias"] = bias.has_value();
    return operation("dovetail::linear", {.reads = {x, weight, bias.value_or(at::Tensor())}},
                     product)[0];
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const std::vector<at::Tensor> depends_on = {gradients[0], x, weight};
    return differentiate_once(
        {"linear", "use torch.nn.functional.linear, or float64"}, depends_on, [&] {
          const at::Tensor dy = gradients[0].reshape({-1, weight.size(0)});
          at::Tensor dx, dweight, dbias;
          if (context->needs_input_grad(0))
            dx = operation("dovetail::gemm", {.reads = {dy, weight}},
                           [](const Operands& inputs) {
                             return std::vector{gemm(inputs.reads[0], inputs.reads[1])};
                           })[0]
                     .view(x.sizes());
          const bool wants_bias =
              context->saved_data["has_bias"].toBool() && context->needs_input_grad(2);
          if (context->needs_input_grad(1)) {
            const auto made = operation("dovetail::linear_gradient", {.reads = {dy, x}},
                                        [wants_bias](const Operands& inputs) {
                                          return weight_gradient(inputs, wants_bias);
                                        });
            dweight = made[0], dbias = made[1];
          } else if (wants_bias) {
            dbias = operation("dovetail::column_sums", {.reads = {dy}}, [](const Operands& inputs) {
              return std::vector{column_sums(inputs.reads[0])};
            })[0];
          }
          return std::vector{dx, dweight, dbias};
        });
  }
};

/// Returns true if our kernel computes the products on a CPU. ATen computes bfloat16 on a CPU with
/// BF16 instructions: oneDNN has AMX and AVX512-BF16 kernels. On a GPU only the gradient of the
/// bias is ours.
bool by_function(const at::Tensor& x, const at::Tensor& bias) {
  if (!use_kernel(Kernel::kGemm, x) || x.numel() == 0) return false;
  return x.is_cuda() ? bias.defined() : x.scalar_type() == at::kFloat || widens_bfloat16();
}

}  // namespace

at::Tensor column_sums(const at::Tensor& x) {
  user_check(x.dim() == 2 && at::isFloatingType(x.scalar_type()),
             "column_sums: x must be a floating matrix, but is {}", describe(x));
  if (x.is_cuda() && use_kernel(Kernel::kGemm, x) && x.numel() > 0) {
    const at::Tensor rows = x.contiguous();
    at::Tensor sums = at::empty({x.size(1)}, x.options());
    cuda_kernels()->column_sums(storage_of(x), rows.const_data_ptr(), x.size(0), x.size(1),
                                sums.mutable_data_ptr());
    return sums;
  }
  return gemm(at::ones({1, x.size(0)}, x.options()), x).squeeze(0);
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  user_check(
      weight.dim() == 2 && x.dim() >= 1 && x.size(-1) == weight.size(1),
      "linear: the last size of x must be the second of weight (out, in); x is {}, weight is {}",
      describe(x), describe(weight));
  user_check(x.scalar_type() == weight.scalar_type() && x.device() == weight.device(),
             "linear: x and weight must share dtype and device; x is {}, weight is {}", describe(x),
             describe(weight));
  user_check(!bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(0)),
             "linear: bias must be [{}], but is {}", weight.size(0), describe(bias));
  const at::Tensor same_bias = bias.defined() ? bias.to(x.scalar_type()) : bias;
  if (!by_function(x, bias)) {
    const TraceSpan span("dovetail::gemm");
    return at::linear(x, weight, same_bias);
  }
  return LinearFunction::apply(x, weight, bias.defined() ? std::optional(same_bias) : std::nullopt);
}

}  // namespace dovetail::ops
