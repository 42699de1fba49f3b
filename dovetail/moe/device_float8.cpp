#include "dovetail/moe/device_float8.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"
#include "dovetail/moe/device_experts.h"
#include "dovetail/moe/device_products.h"
#include "dovetail/moe/remedies.h"
#include "dovetail/mx/feed_forward.h"
#include "dovetail/mx/float8_groups.h"
#include "dovetail/mx/native.h"
#include "dovetail/ops/simd_level.h"

// Shapes: P places, E experts, out and in: sizes of a weight.
namespace dovetail::moe {

namespace {

using mx::Float8Groups;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int kCapability = 9;

/// Multiplies codes and scales as grouped_products multiplies numbers. a is contiguous, b has its
/// last dimension but one contiguous. scale_a: (P) for a (P, in), (E, m) for a (m, P). scale_b: (E,
/// cols of b). Returns bfloat16.
at::Tensor scaled_products(const at::Tensor& a, const at::Tensor& b, const at::Tensor& scale_a,
                           const at::Tensor& scale_b, const at::Tensor& ends) {
  const bool by_rows = b.dim() == 3;
  if (a.is_cuda())
    return at::_scaled_grouped_mm(a, b, scale_a.reshape({-1}),
                                  by_rows ? scale_b : scale_b.reshape({-1}), ends, {}, {},
                                  at::kBFloat16);
  const at::Tensor sums = grouped_products(a.to(at::kFloat), b.to(at::kFloat), ends);
  const at::Tensor scaled =
      by_rows ? sums.mul(scale_a.unsqueeze(1))
                    .mul(scale_b.index_select(0, expert_of_place(ends, a.size(0))))
              : sums.mul(scale_a.unsqueeze(2)).mul(scale_b.unsqueeze(1));
  return scaled.to(at::kBFloat16);
}

/// Returns codes with the last two dimensions exchanged, contiguous.
at::Tensor transposed(const at::Tensor& codes) {
  return codes.view(at::kByte).transpose(-2, -1).contiguous().view(codes.scalar_type());
}

/// Returns each expert's scale `count` times, (E, count) contiguous.
at::Tensor repeated(const at::Tensor& scales, int64_t count) {
  return scales.unsqueeze(1).expand({scales.size(0), count}).contiguous();
}

Float8Groups quantized(const at::Tensor& x, const at::Tensor& expert, const at::Tensor& counted,
                       int64_t experts, const mx::OperandRecipe& how) {
  return mx::quantize_float8_groups(x, expert, counted, experts, *how.format, !how.float32_scales);
}

/// Quantizes each expert's weight. Returns codes (E, out, in) and scales (E).
Float8Groups quantized(at::TensorList weight, const mx::OperandRecipe& how) {
  const at::Tensor all = stacked(weight);
  const int64_t experts = all.size(0);
  Float8Groups made =
      quantized(all.view({experts, -1}), at::arange(experts, all.options().dtype(at::kLong)), {},
                experts, how);
  made.codes = made.codes.view(all.sizes());
  return made;
}

/// Operands: x, the experts' weights, their biases if any, then the tensors of ExpertPlaces.
class Float8LinearsFunction : public torch::autograd::Function<Float8LinearsFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, at::TensorList tensors,
                            const mx::LinearRecipe& recipe) {
    const TraceSpan span("dovetail::grouped_linear_float8");
    const Operands of(tensors);
    const int64_t experts = of.experts(), out = of.weight[0].size(0);
    const Float8Groups x = quantized(of.x, of.at.expert, of.at.counted, experts, recipe.activation);
    const Float8Groups weight = quantized(of.weight, recipe.weight);
    at::Tensor y = scaled_products(x.codes, weight.codes.transpose(1, 2),
                                   x.scales.index_select(0, of.at.expert),
                                   repeated(weight.scales, out), of.at.ends);
    if (!of.bias.empty()) y.add_(at::stack(of.bias).index_select(0, of.at.expert));
    // Backward reads the codes of x alone.
    variable_list saved = tensors.vec();
    saved[0] = x.codes;
    saved.insert(saved.begin(), x.scales);
    context->save_for_backward(std::move(saved));
    context->saved_data["recipe"] =
        c10::IValue::make_capsule(c10::make_intrusive<SavedRecipe>(recipe));
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const TraceSpan span("dovetail::grouped_linear_float8_backward");
    const auto saved = context->get_saved_variables();
    const auto recipe =
        c10::static_intrusive_pointer_cast<SavedRecipe>(context->saved_data["recipe"].toCapsule());
    variable_list depends_on = saved;
    depends_on.push_back(gradients[0]);
    variable_list out = differentiate_once(kGroupedLinear, depends_on, [&] {
      return differentiate(at::TensorList(saved).slice(1), saved[0], gradients[0].contiguous(),
                           recipe->recipe, context->needs_input_grad(0));
    });
    out.resize(saved.size());  // undefined gradients of ExpertPlaces and `recipe`
    return out;
  }

 private:
  struct SavedRecipe : torch::CustomClassHolder {
    explicit SavedRecipe(const mx::LinearRecipe& recipe) : recipe(recipe) {}
    mx::LinearRecipe recipe;
  };

  struct Operands {
    explicit Operands(at::TensorList tensors)
        : x(tensors[0]),
          at{.ends = tensors[tensors.size() - 3],
             .expert = tensors[tensors.size() - 2],
             .counted = tensors[tensors.size() - 1]},
          weight(tensors.slice(1, static_cast<size_t>(at.ends.size(0)))),
          bias(tensors.slice(1 + weight.size(), tensors.size() - 4 - weight.size())) {}
    int64_t experts() const { return at.ends.size(0); }
    const at::Tensor& x;
    ExpertPlaces at;
    at::TensorList weight, bias;
  };

  /// Returns the gradients of x, the weights and the biases. `tensors` has the codes of x in place
  /// of x, with `x_scales`.
  static variable_list differentiate(at::TensorList tensors, const at::Tensor& x_scales,
                                     const at::Tensor& dy, const mx::LinearRecipe& recipe,
                                     bool wants_x) {
    const Operands of(tensors);
    const at::Tensor& x_codes = of.x;
    const int64_t out = dy.size(1), in = x_codes.size(1);
    const Float8Groups codes =
        quantized(dy, of.at.expert, of.at.counted, of.experts(), recipe.gradient);
    variable_list made(1);
    if (wants_x) {
      const Float8Groups weight = quantized(of.weight, recipe.weight);
      made[0] = scaled_products(codes.codes, transposed(weight.codes).transpose(1, 2),
                                codes.scales.index_select(0, of.at.expert),
                                repeated(weight.scales, in), of.at.ends);
    }
    const at::Tensor dweight =
        scaled_products(transposed(codes.codes), transposed(x_codes).t(),
                        repeated(codes.scales, out), repeated(x_scales, in), of.at.ends);
    for (const at::Tensor& one : dweight.unbind()) made.push_back(one);
    if (!of.bias.empty())
      for (const at::Tensor& dbias : sum_by_expert(dy, of.at.ends).unbind()) made.push_back(dbias);
    return made;
  }
};

}  // namespace

ExpertPlaces expert_places(const DeviceRows& to) {
  DOVETAIL_CHECK(to.places() % kFloat8Multiple == 0, "{} places of FP8 products", to.places());
  return {.ends = to.ends,
          .expert = expert_of_place(to.ends, to.places()),
          .counted = to.choice.ne(to.places_of_token.numel())};
}

at::Tensor device_float8_linear(const at::Tensor& x, at::TensorList weight, const ExpertPlaces& at,
                                const mx::LinearRecipe& recipe, at::TensorList bias) {
  DOVETAIL_CHECK(x.scalar_type() == at::kBFloat16 && std::ssize(weight) == at.ends.size(0) &&
                     (bias.empty() || bias.size() == weight.size()),
                 "{} weights and {} biases of experts that end at {}; x is {}", weight.size(),
                 bias.size(), ops::describe(at.ends), ops::describe(x));
  variable_list tensors = {x.contiguous()};
  tensors.insert(tensors.end(), weight.begin(), weight.end());
  tensors.insert(tensors.end(), bias.begin(), bias.end());
  tensors.insert(tensors.end(), {at.ends, at.expert, at.counted});
  return Float8LinearsFunction::apply(at::TensorList(tensors), recipe);
}

at::Tensor feed_forward(const at::Tensor& x, const at::Tensor& weight, const DeviceRows& to,
                        const ExpertWeights& experts, const mx::LinearRecipe& recipe) {
  check_experts(x, weight, experts, to.experts());
  user_check(x.scalar_type() == at::kBFloat16,
             "experts: x must be bfloat16 for FP8 products, but is {}", ops::describe(x));
  const auto activation = mx::activation_operation(experts.activation);
  const ExpertPlaces at = expert_places(to);
  const at::Tensor h =
      device_float8_linear(take_rows(x, to), experts.up, at, recipe, experts.up_bias);
  return combine_rows(
      device_float8_linear(activation->apply(h), experts.down, at, recipe, experts.down_bias),
      weight, to);
}

std::string float8_recipe_obstacle(const mx::LinearRecipe& recipe) {
  for (const mx::Operand operand : mx::kOperands) {
    const mx::OperandRecipe& how = recipe.of(operand);
    const std::string_view name = mx::name(operand);
    if (!how.format) return fmt::format("their recipe does not quantize the {}", name);
    if (how.blocks != mx::Blocks::kTensor)
      return fmt::format(
          "their recipe quantizes the {} in blocks of {}, and `torch._scaled_grouped_mm` takes one "
          "scale a row",
          name, mx::name(how.blocks));
    if (how.format != mx::Format::kE4M3)
      return fmt::format(
          "their recipe quantizes the {} to {}, and `torch._scaled_grouped_mm` multiplies e4m3",
          name, mx::name(*how.format));
    if (how.history > 0)
      return fmt::format("their recipe scales the {} by magnitudes of earlier steps", name);
  }
  return "";
}

std::string scaled_grouped_mm_obstacle(const ExpertWeights& experts, const mx::LinearRecipe& recipe,
                                       int major) {
  if (std::string reason = float8_recipe_obstacle(recipe); !reason.empty()) return reason;
  const at::ScalarType dtype = experts.up[0].scalar_type();
  if (dtype != at::kBFloat16)
    return fmt::format("they compute in {}, and `torch._scaled_grouped_mm` returns BFloat16",
                       c10::toString(dtype));
  if (major != kCapability)
    return fmt::format(
        "`torch._scaled_grouped_mm` has kernels for compute capability {}, and the GPU has {}",
        kCapability, major);
  if (std::string reason = fixed_sizes_obstacle(experts); !reason.empty()) return reason;
  const at::Tensor& down = experts.down[0];
  if (down.size(0) % kFloat8Multiple != 0 || down.size(1) % kFloat8Multiple != 0)
    return fmt::format("widths {} and {} are not both multiples of {}", down.size(0), down.size(1),
                       kFloat8Multiple);
  return "";
}

std::string float8_rows_obstacle(const ExpertWeights& experts, const mx::LinearRecipe& recipe) {
  const at::Device device = experts.up[0].device();
  if (device.is_meta()) return scaled_grouped_mm_obstacle(experts, recipe, kCapability);
  if (!device.is_cuda()) return "they are not on a GPU";
  const mx::NativeDevice gpu = mx::native_device(device);
  return gpu.missing.empty() ? scaled_grouped_mm_obstacle(experts, recipe, gpu.major) : gpu.missing;
}

}  // namespace dovetail::moe
