#include "dovetail/moe/device_experts.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"
#include "dovetail/moe/device_products.h"
#include "dovetail/moe/experts.h"
#include "dovetail/moe/remedies.h"
#include "dovetail/mx/feed_forward.h"
#include "dovetail/mx/native.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::moe {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kMultiple = 8;  // 16 bytes of bfloat16
constexpr size_t kMostExperts = 1023;
constexpr int kHopper = 9, kBlackwell = 10;

/// Operands: x, the experts' weights, their biases if any, then `ends`.
class DeviceLinearsFunction : public torch::autograd::Function<DeviceLinearsFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, at::TensorList tensors) {
    const TraceSpan span("dovetail::grouped_linear");
    context->save_for_backward(tensors.vec());
    const Operands of(tensors);
    at::Tensor y = grouped_products(of.x, stacked(of.weight).transpose(1, 2), of.ends);
    if (!of.bias.empty())
      y.add_(at::stack(of.bias).index_select(0, expert_of_place(of.ends, y.size(0))));
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const TraceSpan span("dovetail::grouped_linear_backward");
    const auto saved = context->get_saved_variables();
    variable_list depends_on = saved;
    depends_on.push_back(gradients[0]);
    return differentiate_once(kGroupedLinear, depends_on, [&] {
      const Operands of(saved);
      const at::Tensor dy = gradients[0].contiguous();
      variable_list out;
      out.push_back(context->needs_input_grad(0) ? grouped_products(dy, stacked(of.weight), of.ends)
                                                 : at::Tensor());
      for (const at::Tensor& dweight : grouped_products(dy.t(), of.x, of.ends).unbind())
        out.push_back(dweight);
      if (!of.bias.empty())
        for (const at::Tensor& dbias : sum_by_expert(dy, of.ends).unbind()) out.push_back(dbias);
      out.emplace_back();  // for `ends`
      return out;
    });
  }

 private:
  struct Operands {
    explicit Operands(at::TensorList tensors)
        : x(tensors[0]),
          ends(tensors.back()),
          weight(tensors.slice(1, static_cast<size_t>(ends.size(0)))),
          bias(tensors.slice(1 + weight.size(), tensors.size() - 2 - weight.size())) {}
    const at::Tensor &x, &ends;
    at::TensorList weight, bias;
  };
};

}  // namespace

at::Tensor device_grouped_linear(const at::Tensor& x, at::TensorList weight, const at::Tensor& ends,
                                 at::TensorList bias) {
  DOVETAIL_CHECK(ends.dim() == 1 && ends.scalar_type() == at::kInt &&
                     std::ssize(weight) == ends.size(0) && !weight.empty() &&
                     (bias.empty() || bias.size() == weight.size()),
                 "{} weights and {} biases of experts that end at {}", weight.size(), bias.size(),
                 ops::describe(ends));
  variable_list tensors = {x.contiguous()};
  tensors.insert(tensors.end(), weight.begin(), weight.end());
  tensors.insert(tensors.end(), bias.begin(), bias.end());
  tensors.push_back(ends);
  return DeviceLinearsFunction::apply(at::TensorList(tensors));
}

at::Tensor feed_forward(const at::Tensor& x, const at::Tensor& weight, const DeviceRows& to,
                        const ExpertWeights& experts) {
  check_experts(x, weight, experts, to.experts());
  const auto activation = mx::activation_operation(experts.activation);
  const at::Tensor h =
      device_grouped_linear(take_rows(x, to), experts.up, to.ends, experts.up_bias);
  return combine_rows(
      device_grouped_linear(activation->apply(h), experts.down, to.ends, experts.down_bias), weight,
      to);
}

at::Tensor run_choices(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& expert,
                       const at::Tensor& slot, const ExpertWeights& experts) {
  const auto count = static_cast<int64_t>(experts.experts());
  if (count > 0 && device_rows_obstacle(experts).empty())
    return feed_forward(x, weight, device_rows(expert, slot, count), experts);
  return feed_forward(x, weight, dispatch(expert, slot, count), experts);
}

std::string fixed_sizes_obstacle(const ExpertWeights& experts) {
  for (const auto& [kernel, name] :
       {std::pair(ops::Kernel::kExperts, "experts"), {ops::Kernel::kGroupedMm, "grouped_mm"}})
    if (!ops::kernel_enabled(kernel)) return fmt::format("the kernel `{}` is switched off", name);
  const at::Tensor& down = experts.down[0];
  for (const at::Tensor& other : experts.down)
    if (other.sizes() != down.sizes()) return "their widths differ";
  if (down.size(0) % kMultiple != 0 || down.size(1) % kMultiple != 0)
    return fmt::format("widths {} and {} are not both multiples of {}", down.size(0), down.size(1),
                       kMultiple);
  if (experts.experts() > kMostExperts)
    return fmt::format("`torch._grouped_mm` takes {} experts, and there are {}", kMostExperts,
                       experts.experts());
  return "";
}

std::string grouped_mm_obstacle(const ExpertWeights& experts, int major) {
  const at::ScalarType dtype = experts.up[0].scalar_type();
  if (dtype != at::kBFloat16)
    return fmt::format("they compute in {}, and `torch._grouped_mm` in BFloat16",
                       c10::toString(dtype));
  if (major != kHopper && major != kBlackwell)
    return fmt::format(
        "`torch._grouped_mm` has kernels for compute capabilities {} and {}, and the GPU has {}",
        kHopper, kBlackwell, major);
  return fixed_sizes_obstacle(experts);
}

std::string device_rows_obstacle(const ExpertWeights& experts) {
  const at::Device device = experts.up[0].device();
  if (device.is_meta()) return grouped_mm_obstacle(experts, kHopper);
  if (!device.is_cuda()) return "they are not on a GPU";
  const mx::NativeDevice gpu = mx::native_device(device);
  return gpu.missing.empty() ? grouped_mm_obstacle(experts, gpu.major) : gpu.missing;
}

}  // namespace dovetail::moe
