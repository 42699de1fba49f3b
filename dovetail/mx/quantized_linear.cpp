#include "dovetail/mx/quantized_linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/rng.h"
#include "dovetail/ops/dispatch.h"
#include "dovetail/ops/gemm.h"

namespace dovetail::mx {

namespace {

/// The dtype in which products are emulated.
at::ScalarType emulation_dtype(const at::Tensor& x) {
  const bool instructions = has_bfloat16_instructions() && simd_level() == SimdLevel::kAvx512;
  return instructions && x.scalar_type() == at::kBFloat16 ? at::kBFloat16 : at::kFloat;
}

QuantizeSpec spec_of(const OperandRecipe& operand, Copies copies) {
  return {.format = *operand.format,
          .scale_mode = operand.scale_mode,
          .rounding = operand.rounding,
          .copies = operand.square ? Copies::kSquare : copies};
}

/// As products read them.
Quantized quantize_values(const at::Tensor& x, const OperandRecipe& operand, Copies copies, uint64_t seed = 0) {
  QuantizeSpec spec = spec_of(operand, copies);
  spec.seed = seed;
  spec.row_values = spec.column_values = spec.square_values = true;
  return quantize(x, spec);
}

/// The column copy that was made last on this thread, and of what: Linears with one input come one after another.
class LastInput {
 public:
  std::optional<MXTensor> find(const at::Tensor& x, const OperandRecipe& operand) const {
    if (x.is_inference() || operand != operand_ || x.unsafeGetTensorImpl() != x_._unsafe_get_target()) return {};
    if (x_.expired() || x._version() != version_) return {};
    const auto codes = codes_.lock(), scales = scales_.lock();
    if (!codes || !scales) return {};
    return MXTensor(at::Tensor(codes), at::Tensor(scales), *operand.format, Orientation::kColumn);
  }

  void remember(const at::Tensor& x, const OperandRecipe& operand, const MXTensor& column) {
    if (x.is_inference()) return;
    operand_ = operand;
    version_ = x._version();
    x_ = Weak(x.getIntrusivePtr());
    codes_ = Weak(column.codes().getIntrusivePtr());
    scales_ = Weak(column.scales().getIntrusivePtr());
  }

 private:
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  static Weak nothing() { return Weak(at::Tensor().getIntrusivePtr()); }

  OperandRecipe operand_;
  int64_t version_ = -1;
  Weak x_ = nothing(), codes_ = nothing(), scales_ = nothing();
};

LastInput& last_input() {
  static thread_local LastInput last;
  return last;
}

struct Holder : torch::CustomClassHolder {
  Holder(std::shared_ptr<QuantizedLinear> layer, QuantizedLinear::Prologue prologue)
      : layer(std::move(layer)), prologue(prologue) {}
  std::shared_ptr<QuantizedLinear> layer;
  QuantizedLinear::Prologue prologue;
};

at::Tensor as_rows(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

/// a @ b, b transposed if asked, of operands in one dtype, as `dtype`.
at::Tensor product(const at::Tensor& a, const at::Tensor& b, const GemmOptions& options, at::ScalarType dtype) {
  return gemm(a, b, options).to(dtype);
}

}  // namespace

class QuantizedLinearFunction : public torch::autograd::Function<QuantizedLinearFunction> {
 public:
  /// `trains_weight`: its gradient will be asked for.
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const c10::intrusive_ptr<Holder>& holder,
                            bool trains_weight) {
    QuantizedLinear& layer = *holder->layer;
    const LinearRecipe& recipe = layer.recipe_;
    const at::ScalarType dtype = emulation_dtype(x);
    const at::Tensor input = holder->prologue != nullptr ? holder->prologue(x) : x, rows = as_rows(input);
    at::Tensor operand = rows;
    MXTensor column;
    if (recipe.activation.format) {
      const bool keeps_column = trains_weight && holder->prologue == nullptr;
      if (keeps_column) column = last_input().find(x, recipe.activation).value_or(MXTensor());
      const bool makes_column = keeps_column && !column.defined();
      QuantizeSpec spec = spec_of(recipe.activation, makes_column ? Copies::kRowAndColumn : Copies::kRow);
      spec.row_values = true;
      const Quantized copies = quantize(rows, spec);
      layer.statistics_.activation.add(copies.row_statistics);
      operand = copies.row_values;
      if (makes_column) {
        column = copies.column;
        last_input().remember(x, recipe.activation, column);
      }
    }
    const at::Tensor y =
        product(operand.to(dtype), layer.weight_operand(weight, Copies::kRow).to(dtype),
                {.transpose_b = true, .bias = bias ? bias->to(dtype).contiguous() : at::Tensor()}, x.scalar_type());
    if (column.defined()) {
      context->save_for_backward({weight, column.codes(), column.scales()});
    } else {
      context->save_for_backward({weight, trains_weight || holder->prologue != nullptr ? x : at::Tensor()});
    }
    context->saved_data["holder"] = c10::IValue::make_capsule(holder);
    context->saved_data["has_bias"] = bias.has_value();
    context->saved_data["sizes"] = x.sizes();
    auto sizes = input.sizes().vec();
    sizes.back() = weight.size(0);
    return y.view(sizes);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto holder = c10::static_intrusive_pointer_cast<Holder>(context->saved_data["holder"].toCapsule());
    QuantizedLinear& layer = *holder->layer;
    const LinearRecipe& recipe = layer.recipe_;
    const at::Tensor& weight = saved[0];
    const at::Tensor dy = as_rows(gradients[0]);
    const at::ScalarType dtype = emulation_dtype(dy), result_dtype = weight.scalar_type();
    const bool wants_input = context->needs_input_grad(0), wants_weight = context->needs_input_grad(1);

    at::Tensor by_row = dy, by_column = dy;
    if (recipe.gradient.format && (wants_input || wants_weight)) {
      const Copies needed = !wants_weight ? Copies::kRow : !wants_input ? Copies::kColumn : Copies::kRowAndColumn;
      const uint64_t seed = mix_seed(layer.seed_, layer.backward_calls_++);
      const Quantized copies = quantize_values(dy, recipe.gradient, needed, seed);
      layer.statistics_.gradient.add(wants_input ? copies.row_statistics : copies.column_statistics);
      by_row = copies.row_values;
      by_column = copies.column_values;
    }

    // Each operand goes when its product is done: they are as large as activations.
    at::Tensor dx, dweight, dbias;
    const bool column_kept = saved.size() > 2;
    at::Tensor x, input;  // the prologue's graph, from x to its result
    if (!column_kept && (wants_weight || holder->prologue != nullptr)) {
      const at::AutoGradMode with_grad(holder->prologue != nullptr && wants_input);
      x = saved[1].detach();
      if (at::GradMode::is_enabled()) x.requires_grad_();
      input = holder->prologue != nullptr ? holder->prologue(x) : x;
    }
    if (wants_weight) {
      at::Tensor operand;
      if (column_kept) {
        operand = dequantize(MXTensor(saved[1], saved[2], *recipe.activation.format, Orientation::kColumn), dtype);
      } else {
        operand = as_rows(input.detach());
        if (recipe.activation.format)
          operand = quantize_values(operand, recipe.activation, Copies::kColumn).column_values;
      }
      dweight = product(by_column.to(dtype), operand.to(dtype), {.transpose_a = true}, result_dtype);
    }
    by_column.reset();
    if (wants_input)
      dx = product(by_row.to(dtype), layer.weight_operand(weight, Copies::kColumn).to(dtype), {}, result_dtype);
    by_row.reset();
    if (context->saved_data["has_bias"].toBool() && context->needs_input_grad(2))
      dbias = gemm(at::ones({1, dy.size(0)}, dy.options()), dy).squeeze(0);
    if (dx.defined()) {
      if (holder->prologue != nullptr) {
        dx = torch::autograd::grad({input}, {x}, {dx.view(input.sizes())})[0];
      } else {
        dx = dx.view(context->saved_data["sizes"].toIntVector());
      }
    }
    return {dx, dweight, dbias, at::Tensor(), at::Tensor()};
  }
};

QuantizedLinear::QuantizedLinear(const LinearRecipe& recipe, std::string name)
    : recipe_(recipe), name_(std::move(name)) {}

void QuantizedLinear::begin_step(uint64_t seed) {
  seed_ = seed;
  backward_calls_ = 0;
  statistics_ = {};
}

at::Tensor QuantizedLinear::weight_operand(const at::Tensor& weight, Copies copies) {
  if (!recipe_.weight.format) return weight;
  const Quantized made = quantize_values(weight, recipe_.weight, copies);
  if (made.square_values.defined()) {
    statistics_.weight = made.square_statistics;
    return made.square_values;
  }
  if (copies == Copies::kColumn) return made.column_values;
  statistics_.weight = made.row_statistics;
  return made.row_values;
}

at::Tensor QuantizedLinear::forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                    Prologue prologue) {
  const auto check = [&](bool fine, const char* what, const at::Tensor& tensor) {
    user_check(fine, "{}: {}; it is {}", name_, what, describe(tensor));
  };
  check(weight.dim() == 2, "weight must be (out, in)", weight);
  check(x.dim() >= 1, "x must be (..., in)", x);
  check(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16,
        "a quantized Linear computes in float32 or bfloat16; convert x", x);
  check(weight.scalar_type() == x.scalar_type() && weight.device() == x.device(),
        "weight must have x's dtype and device", weight);
  check(x.is_cpu() || x.is_meta(), "products of quantized operands are emulated on the CPU only; move x", x);
  check(!bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(0)), "bias must be (out)", bias);
  check(prologue != nullptr || x.size(-1) == weight.size(1), "the last size of x must be weight's second", x);
  if (x.is_meta()) {
    auto sizes = x.sizes().vec();
    sizes.back() = weight.size(0);
    return at::empty(sizes, x.options());
  }
  return QuantizedLinearFunction::apply(x, weight, bias.defined() ? std::optional(bias) : std::nullopt,
                                        c10::make_intrusive<Holder>(shared_from_this(), prologue),
                                        at::GradMode::is_enabled() && weight.requires_grad());
}

}  // namespace dovetail::mx
