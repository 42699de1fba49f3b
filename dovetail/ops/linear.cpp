#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"
#include "dovetail/ops/dispatch.h"
#include "dovetail/ops/functions.h"
#include "dovetail/ops/gemm.h"

namespace dovetail {

namespace {

class LinearFunction : public torch::autograd::Function<LinearFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias) {  // an input that is a tensor must be defined
    context->save_for_backward({x, weight});
    context->saved_data["has_bias"] = bias.has_value();
    auto sizes = x.sizes().vec();
    sizes.back() = weight.size(0);
    at::Tensor y = at::empty(sizes, x.options());
    at::Tensor rows = y.view({-1, weight.size(0)});
    gemm_into(rows, x.reshape({-1, weight.size(1)}), weight,
              {.transpose_b = true, .bias = bias ? bias->contiguous() : at::Tensor()});
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const at::Tensor dy = gradients[0].reshape({-1, weight.size(0)});
    at::Tensor dx, dweight, dbias;
    if (context->needs_input_grad(0)) dx = gemm(dy, weight).view(x.sizes());
    if (context->saved_data["has_bias"].toBool() && context->needs_input_grad(2))
      dbias = at::empty({weight.size(0)}, dy.options());
    if (context->needs_input_grad(1)) {
      // dy's columns are summed on their way into the product: the bias' gradient needs no pass of its own.
      dweight = at::empty(weight.sizes(), dy.options());
      gemm_into(dweight, dy, x.reshape({-1, weight.size(1)}), {.transpose_a = true, .row_sums = dbias});
    } else if (dbias.defined()) {
      // A product with ones: unlike at::sum_out its order of additions does not depend on the number of threads.
      at::Tensor row = dbias.unsqueeze(0);
      gemm_into(row, at::ones({1, dy.size(0)}, dy.options()), dy);
    }
    return {dx, dweight, dbias};
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  user_check(weight.dim() == 2 && x.dim() >= 1 && x.size(-1) == weight.size(1),
             "linear: the last size of x must be the second of weight (out, in); x is {}, weight is {}", describe(x),
             describe(weight));
  user_check(x.scalar_type() == weight.scalar_type() && x.device() == weight.device(),
             "linear: x and weight must share dtype and device; x is {}, weight is {}", describe(x), describe(weight));
  user_check(!bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(0)),
             "linear: bias must be [{}], but is {}", weight.size(0), describe(bias));
  const at::Tensor same_bias = bias.defined() ? bias.to(x.scalar_type()) : bias;
  // bfloat16 is ATen's own: oneDNN has AMX and AVX512-BF16 kernels.
  if (!use_kernel(Kernel::kGemm, x) || x.scalar_type() != at::kFloat || x.numel() == 0) {
    const TraceSpan span("dovetail::gemm");
    return at::linear(x, weight, same_bias);
  }
  return LinearFunction::apply(x, weight, bias.defined() ? std::optional(same_bias) : std::nullopt);
}

}  // namespace dovetail
