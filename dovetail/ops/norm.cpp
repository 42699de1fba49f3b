#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"
#include "dovetail/ops/composed.h"
#include "dovetail/ops/cuda_kernels.h"
#include "dovetail/ops/dispatch.h"
#include "dovetail/ops/functions.h"
#include "dovetail/ops/norm_simd.h"

namespace dovetail {

namespace {

void check_norm(const char* name, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  user_check(x.dim() >= 1 && at::isFloatingType(x.scalar_type()),
             "{}: x must be a floating tensor with rows, but is {}", name, describe(x));
  for (const at::Tensor* parameter : {&weight, &bias}) {
    if (parameter == &bias && !bias.defined()) continue;
    user_check(parameter->defined() && parameter->dim() == 1 && parameter->size(0) == x.size(-1) &&
                   at::isFloatingType(parameter->scalar_type()) && parameter->device() == x.device(),
               "{}: {} must be floating and [{}], the last size of x {}, but is {}", name,
               parameter == &weight ? "weight" : "bias", x.size(-1), describe(x), describe(*parameter));
  }
}

/// x contiguous; weight and bias float32, contiguous; rstd, and mean for layer norm, float32 (rows).
NormProblem problem(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& mean,
                    const at::Tensor& rstd, double eps) {
  return {.rows = x.numel() / x.size(-1),
          .width = x.size(-1),
          .storage = storage_of(x),
          .centered = mean.defined(),
          .x = x.const_data_ptr(),
          .weight = weight.const_data_ptr<float>(),
          .bias = bias.defined() ? bias.const_data_ptr<float>() : nullptr,
          .eps = static_cast<float>(eps),
          .mean = mean.defined() ? mean.mutable_data_ptr<float>() : nullptr,
          .rstd = rstd.mutable_data_ptr<float>()};
}

at::Tensor float_contiguous(const at::Tensor& x) { return x.defined() ? x.to(at::kFloat).contiguous() : x; }

/// RMS norm when `centered` is false, layer norm otherwise.
class NormFunction : public torch::autograd::Function<NormFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x_in, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias_in, double eps, bool centered) {
    const TraceSpan span("dovetail::norm");
    const at::Tensor bias = bias_in.value_or(at::Tensor());  // an input that is a tensor must be defined
    const at::Tensor x = x_in.contiguous(), y = at::empty(x.sizes(), x.options());
    const auto statistics = x.options().dtype(at::kFloat);
    const at::Tensor rstd = at::empty({x.numel() / x.size(-1)}, statistics);
    const at::Tensor mean = centered ? at::empty_like(rstd) : at::Tensor();
    const auto kernel = x.is_cuda() ? cuda_kernels()->norm_forward : &norm_forward;
    kernel(problem(x, float_contiguous(weight), float_contiguous(bias), mean, rstd, eps), y.mutable_data_ptr());
    context->save_for_backward({x, weight, bias, mean, rstd});
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const TraceSpan span("dovetail::norm");
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &bias = saved[2], &mean = saved[3], &rstd = saved[4];
    const at::Tensor dy = gradients[0].contiguous(), dx = at::empty(x.sizes(), x.options());
    const at::Tensor wide_weight = float_contiguous(weight);
    const at::Tensor dweight = at::empty(weight.sizes(), wide_weight.options());
    const at::Tensor dbias = bias.defined() ? at::empty(bias.sizes(), wide_weight.options()) : at::Tensor();
    const auto kernel = x.is_cuda() ? cuda_kernels()->norm_backward : &norm_backward;
    kernel(problem(x, wide_weight, {}, mean, rstd, 0.0), dy.const_data_ptr(), dx.mutable_data_ptr(),
           dweight.mutable_data_ptr<float>(), dbias.defined() ? dbias.mutable_data_ptr<float>() : nullptr);
    return {dx, dweight.to(weight.scalar_type()), dbias.defined() ? dbias.to(bias.scalar_type()) : dbias, at::Tensor(),
            at::Tensor()};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  check_norm("rms_norm", x, weight, {});
  if (x.is_meta()) return at::empty_like(x);
  if (!use_kernel(Kernel::kNorm, x) || x.numel() == 0) return composed::rms_norm(x, weight, eps);
  return NormFunction::apply(x, weight, std::optional<at::Tensor>(), eps, false);
}

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps) {
  check_norm("layer_norm", x, weight, bias);
  if (x.is_meta()) return at::empty_like(x);
  if (!use_kernel(Kernel::kNorm, x) || x.numel() == 0) return composed::layer_norm(x, weight, bias, eps);
  return NormFunction::apply(x, weight, bias.defined() ? std::optional(bias) : std::nullopt, eps, true);
}

}  // namespace dovetail
