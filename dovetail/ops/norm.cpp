#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "dovetail/base/error.h"
#include "dovetail/base/operation.h"
#include "dovetail/base/trace.h"
#include "dovetail/ops/composed.h"
#include "dovetail/ops/cuda_kernels.h"
#include "dovetail/ops/functions.h"
#include "dovetail/ops/meta.h"
#include "dovetail/ops/norm_simd.h"
#include "dovetail/ops/row_operation.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::ops {

namespace {

void check_norm(const char* name, const at::Tensor& x, const at::Tensor& weight,
                const at::Tensor& bias) {
  user_check(x.dim() >= 1 && at::isFloatingType(x.scalar_type()),
             "{}: x must be a floating tensor with rows, but is {}", name, describe(x));
  for (const at::Tensor* parameter : {&weight, &bias}) {
    if (parameter == &bias && !bias.defined()) continue;
    user_check(
        parameter->defined() && parameter->dim() == 1 && parameter->size(0) == x.size(-1) &&
            at::isFloatingType(parameter->scalar_type()) && parameter->device() == x.device(),
        "{}: {} must be floating and [{}], the last size of x {}, but is {}", name,
        parameter == &weight ? "weight" : "bias", x.size(-1), describe(x), describe(*parameter));
  }
}

/// Returns the problem of a norm. Weight and bias are contiguous float32, and x is contiguous.
/// Statistics are float32 (rows): rstd, and mean for layer norm.
NormProblem problem(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                    const at::Tensor& mean, const at::Tensor& rstd, double eps) {
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

at::Tensor float_contiguous(const at::Tensor& x) {
  return x.defined() ? x.to(at::kFloat).contiguous() : x;
}

/// Computes layer norm if `centered`, else RMS norm. Operands: x, weight, bias, branch. x and
/// branch must be contiguous; branch may be undefined and is supported on a GPU only. Returns y,
/// rstd, mean, x + branch.
std::vector<at::Tensor> normalize(const Operands& inputs, double eps, bool centered) {
  const TraceSpan span("dovetail::norm");
  const auto [x, weight, bias, branch] = inputs.read<4>();
  const at::Tensor y = at::empty(x.sizes(), x.options());
  const at::Tensor rstd = at::empty({x.numel() / x.size(-1)}, x.options().dtype(at::kFloat));
  const at::Tensor mean = centered ? at::empty_like(rstd) : at::Tensor();
  const at::Tensor sum = branch.defined() ? at::empty_like(x) : at::Tensor();
  const at::Tensor wide_weight = float_contiguous(weight), wide_bias = float_contiguous(bias);
  const NormProblem norm = problem(x, wide_weight, wide_bias, mean, rstd, eps);
  if (x.is_cuda()) {
    cuda_kernels()->norm_forward(norm, branch.defined() ? branch.const_data_ptr() : nullptr,
                                 sum.defined() ? sum.mutable_data_ptr() : nullptr,
                                 y.mutable_data_ptr());
  } else {
    norm_forward(norm, y.mutable_data_ptr());
  }
  return {y, rstd, mean, sum};
}

/// Returns the gradients of a norm; x, dy and dsum must be contiguous. On a GPU only, dsum is added
/// to the gradient of x; it may be undefined. The gradients of weight and bias have their dtypes;
/// bias may be undefined.
RowOperation::Gradients norm_gradients(const at::Tensor& x, const at::Tensor& weight,
                                       const at::Tensor& bias, const at::Tensor& mean,
                                       const at::Tensor& rstd, const at::Tensor& dy,
                                       const at::Tensor& dsum = {}) {
  const TraceSpan span("dovetail::norm");
  const at::Tensor dx = at::empty(x.sizes(), x.options()), wide_weight = float_contiguous(weight);
  const at::Tensor dweight = at::empty(weight.sizes(), wide_weight.options());
  const at::Tensor dbias =
      bias.defined() ? at::empty(bias.sizes(), wide_weight.options()) : at::Tensor();
  const NormProblem norm = problem(x, wide_weight, {}, mean, rstd, 0.0);
  float *to_weight = dweight.mutable_data_ptr<float>(), *to_bias = nullptr;
  if (dbias.defined()) to_bias = dbias.mutable_data_ptr<float>();
  if (x.is_cuda()) {
    cuda_kernels()->norm_backward(norm, dy.const_data_ptr(),
                                  dsum.defined() ? dsum.const_data_ptr() : nullptr,
                                  dx.mutable_data_ptr(), to_weight, to_bias);
  } else {
    norm_backward(norm, dy.const_data_ptr(), dx.mutable_data_ptr(), to_weight, to_bias);
  }
  return {
      dx,
      {dweight.to(weight.scalar_type()), dbias.defined() ? dbias.to(bias.scalar_type()) : dbias}};
}

class NormFunction : public torch::autograd::Function<NormFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x_in,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias_in,
                            double eps, bool centered) {
    const at::Tensor bias =
        bias_in.value_or(at::Tensor());  // an input that is a tensor must be defined
    const at::Tensor x = x_in.contiguous();
    const auto made = operation(
        "dovetail::norm", {.reads = {x, weight, bias, at::Tensor()}},
        [eps, centered](const Operands& inputs) { return normalize(inputs, eps, centered); });
    context->save_for_backward({x, weight, bias, made[2], made[1]});
    return made[0];
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto made = operation(
        "dovetail::norm_gradient",
        {.reads = {saved[0], saved[1], saved[2], saved[3], saved[4], gradients[0].contiguous()}},
        [](const Operands& inputs) {
          const auto [x, weight, bias, mean, rstd, dy] = inputs.read<6>();
          const auto [dx, parameters] = norm_gradients(x, weight, bias, mean, rstd, dy);
          return std::vector{dx, parameters.weight, parameters.bias};
        });
    return {made[0], made[1], made[2], at::Tensor(), at::Tensor()};
  }
};

/// Returns {x + branch, its norm} of CUDA tensors.
class NormOfSumFunction : public torch::autograd::Function<NormOfSumFunction> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                const at::Tensor& x_in,
                                                const std::optional<at::Tensor>& branch_in,
                                                const at::Tensor& weight,
                                                const std::optional<at::Tensor>& bias_in,
                                                double eps, bool centered) {
    const at::Tensor bias = bias_in.value_or(at::Tensor());
    const at::Tensor x = x_in.contiguous(),
                     branch = branch_in ? branch_in->contiguous() : at::Tensor();
    const auto made = operation(
        "dovetail::norm_of_sum", {.reads = {x, weight, bias, branch}},
        [eps, centered](const Operands& inputs) { return normalize(inputs, eps, centered); });
    const at::Tensor& sum = branch.defined() ? made[3] : x;
    context->save_for_backward({sum, weight, bias, made[2], made[1]});
    context->saved_data["branch"] = branch.defined();
    return {sum, made[0]};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto made = operation(
        "dovetail::norm_of_sum_gradient",
        {.reads = {saved[0], saved[1], saved[2], saved[3], saved[4], gradients[1].contiguous(),
                   gradients[0].contiguous()}},
        [](const Operands& inputs) {
          const auto [sum, weight, bias, mean, rstd, dy, dsum] = inputs.read<7>();
          const auto [dx, parameters] = norm_gradients(sum, weight, bias, mean, rstd, dy, dsum);
          return std::vector{dx, parameters.weight, parameters.bias};
        });
    const at::Tensor of_branch = context->saved_data["branch"].toBool() ? made[0] : at::Tensor();
    return {made[0], of_branch, made[1], made[2], at::Tensor(), at::Tensor()};
  }
};

bool by_norm_kernel(const at::Tensor& x) { return use_kernel(Kernel::kNorm, x) && x.numel() > 0; }

class NormOperation : public RowOperation {
 public:
  NormOperation(const at::Tensor& weight, const at::Tensor& bias, double eps, bool centered)
      : weight_(weight), bias_(bias), eps_(eps), centered_(centered) {}

  at::Tensor apply(const at::Tensor& x) const override {
    return centered_ ? layer_norm(x, weight_, bias_, eps_) : rms_norm(x, weight_, eps_);
  }
  Parameters parameters() const override { return {weight_, bias_}; }
  std::shared_ptr<const RowOperation> with(const Parameters& other) const override {
    return std::make_shared<NormOperation>(other.weight, other.bias, eps_, centered_);
  }
  bool has_rows(const at::Tensor& x) const override { return x.is_cpu() && by_norm_kernel(x); }

  MadeRows rows(const at::Tensor& x, Statistics& statistics) const override {
    check_norm(centered_ ? "layer_norm" : "rms_norm", x, weight_, bias_);
    const int64_t width = x.size(-1), count = x.numel() / width;
    statistics.rstd = at::empty({count}, at::kFloat);
    if (centered_) statistics.mean = at::empty({count}, at::kFloat);
    return {.sizes = {count, width},
            .dtype = x.scalar_type(),
            .make =
                [x, weight = float_contiguous(weight_.detach()),
                 bias = bias_.defined() ? float_contiguous(bias_.detach()) : bias_, statistics,
                 eps = eps_, width](int64_t row, int64_t rows, void* to) {
                  NormProblem part =
                      problem(x, weight, bias, statistics.mean, statistics.rstd, eps);
                  part.rows = rows;
                  part.x = static_cast<const char*>(part.x) + row * width * x.element_size();
                  part.rstd += row;
                  if (part.mean != nullptr) part.mean += row;
                  norm_forward(part, to);
                },
            .on_gpu = {}};
  }

  Gradients gradients(const at::Tensor& x, const Statistics& statistics,
                      const at::Tensor& dy) const override {
    return norm_gradients(x, weight_, bias_, statistics.mean, statistics.rstd, dy.contiguous());
  }

 private:
  at::Tensor weight_, bias_;
  double eps_;
  bool centered_;
};

NormedSum norm_of_sum(const char* name, const at::Tensor& x, const at::Tensor& branch,
                      const at::Tensor& weight, const at::Tensor& bias, double eps, bool centered) {
  check_norm(name, x, weight, bias);
  user_check(
      !branch.defined() || (branch.sizes() == x.sizes() && branch.scalar_type() == x.scalar_type()),
      "{}: branch must be like x {}, but is {}", name, describe(x), describe(branch));
  if (!x.is_cuda() || !by_norm_kernel(x)) {
    const at::Tensor sum = branch.defined() ? x + branch : x;
    return {sum, centered ? layer_norm(sum, weight, bias, eps) : rms_norm(sum, weight, eps)};
  }
  const auto optional = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional(tensor) : std::nullopt;
  };
  const auto made =
      NormOfSumFunction::apply(x, optional(branch), weight, optional(bias), eps, centered);
  return {made[0], made[1]};
}

}  // namespace

std::shared_ptr<const RowOperation> rms_norm_operation(const at::Tensor& weight, double eps) {
  return std::make_shared<NormOperation>(weight, at::Tensor(), eps, false);
}
std::shared_ptr<const RowOperation> layer_norm_operation(const at::Tensor& weight,
                                                         const at::Tensor& bias, double eps) {
  return std::make_shared<NormOperation>(weight, bias, eps, true);
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  check_norm("rms_norm", x, weight, {});
  if (x.is_meta()) return empty_on_meta({x, weight}, x.sizes(), x.scalar_type());
  if (!by_norm_kernel(x)) return composed::rms_norm(x, weight, eps);
  return NormFunction::apply(x, weight, std::optional<at::Tensor>(), eps, false);
}

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      double eps) {
  check_norm("layer_norm", x, weight, bias);
  if (x.is_meta() && bias.defined())
    return empty_on_meta({x, weight, bias}, x.sizes(), x.scalar_type());
  if (x.is_meta()) return empty_on_meta({x, weight}, x.sizes(), x.scalar_type());
  if (!by_norm_kernel(x)) return composed::layer_norm(x, weight, bias, eps);
  return NormFunction::apply(x, weight, bias.defined() ? std::optional(bias) : std::nullopt, eps,
                             true);
}

NormedSum rms_norm_of_sum(const at::Tensor& x, const at::Tensor& branch, const at::Tensor& weight,
                          double eps) {
  return norm_of_sum("rms_norm_of_sum", x, branch, weight, {}, eps, false);
}

NormedSum layer_norm_of_sum(const at::Tensor& x, const at::Tensor& branch, const at::Tensor& weight,
                            const at::Tensor& bias, double eps) {
  return norm_of_sum("layer_norm_of_sum", x, branch, weight, bias, eps, true);
}

}  // namespace dovetail::ops
