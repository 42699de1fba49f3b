#include "dovetail/mx/quantized_linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <tuple>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/rng.h"
#include "dovetail/mx/operand.h"
#include "dovetail/ops/dispatch.h"
#include "dovetail/ops/gemm.h"

namespace dovetail::mx {

namespace {

/// The column copy that was made last on this thread, and of what: Linears with one input come one after another.
class LastInput {
 public:
  /// Codes and scales; undefined if they are of something else, or gone.
  std::pair<at::Tensor, at::Tensor> find(const at::Tensor& x, const OperandRecipe& operand) const {
    if (x.is_inference() || operand != operand_ || x.unsafeGetTensorImpl() != x_._unsafe_get_target()) return {};
    if (x_.expired() || x._version() != version_) return {};
    const auto codes = codes_.lock(), scales = scales_.lock();
    if (!codes || !scales) return {};
    return {at::Tensor(codes), at::Tensor(scales)};
  }

  void remember(const at::Tensor& x, const OperandRecipe& operand, const OperandCopies& copies) {
    if (x.is_inference()) return;
    operand_ = operand;
    version_ = x._version();
    x_ = Weak(x.getIntrusivePtr());
    codes_ = Weak(copies.codes.getIntrusivePtr());
    scales_ = Weak(copies.scales.getIntrusivePtr());
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
      : layer(std::move(layer)), prologue(std::move(prologue)) {}
  std::shared_ptr<QuantizedLinear> layer;
  QuantizedLinear::Prologue prologue;
};

at::Tensor as_rows(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

std::optional<at::Tensor> optional(const at::Tensor& x) { return x.defined() ? std::optional(x) : std::nullopt; }

/// a @ b, b transposed if asked, of operands in one dtype, as `dtype`.
at::Tensor product(const at::Tensor& a, const at::Tensor& b, const GemmOptions& options, at::ScalarType dtype) {
  return gemm(a, b, options).to(dtype);
}

}  // namespace

class QuantizedLinearFunction : public torch::autograd::Function<QuantizedLinearFunction> {
 public:
  /// `prologue_weight`, `prologue_bias`: those that the holder's prologue knows too, here for the graph.
  /// `trains_weight`: its gradient will be asked for.
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x_in, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& prologue_weight,
                            const std::optional<at::Tensor>& prologue_bias, const c10::intrusive_ptr<Holder>& holder,
                            bool trains_weight) {
    QuantizedLinear& layer = *holder->layer;
    const LinearRecipe& recipe = layer.recipe_;
    const RowOperation* prologue = holder->prologue.get();
    const bool by_rows = prologue != nullptr && recipe.activation.format && recipe.activation.is_microscaling() &&
                         prologue->has_rows(x_in);
    const at::Tensor x = by_rows ? x_in.contiguous() : x_in;
    const at::ScalarType dtype = emulation_dtype(x, recipe.activation, recipe.weight);
    RowOperation::Statistics statistics;
    at::Tensor operand, codes, scales;
    MXTensor operand_codes;
    if (by_rows) {
      operand = layer.quantized(Operand::kActivation, prologue->rows(x, statistics), {.row = true}).row;
    } else {
      operand = as_rows(prologue != nullptr ? prologue->apply(x) : x);
    }
    if (recipe.activation.format && !by_rows) {
      const at::Tensor rows = operand;
      const bool keeps_column = trains_weight && prologue == nullptr && !layer.input_stays_;
      if (keeps_column) std::tie(codes, scales) = last_input().find(x, recipe.activation);
      const bool makes_column = keeps_column && !codes.defined();
      const OperandCopies copies = layer.quantized(Operand::kActivation, rows, {.row = true, .kept = makes_column});
      operand = copies.row;
      operand_codes = copies.row_codes;
      if (makes_column) {
        codes = copies.codes;
        scales = copies.scales;
        last_input().remember(x, recipe.activation, copies);
      }
    }
    at::Tensor y;
    if (layer.gemm_ == Gemm::kNative) {
      const OperandCopies of_weight = layer.quantized(Operand::kWeight, weight, {.row = true});
      y = native_product(operand_codes, of_weight.row_codes, x.scalar_type(),
                         bias ? bias->to(x.scalar_type()) : at::Tensor());
    } else {
      y = product(operand.to(dtype), layer.weight_operand(weight, {.row = true}).to(dtype),
                  {.transpose_b = true, .bias = bias ? bias->to(dtype).contiguous() : at::Tensor()}, x.scalar_type());
    }
    const bool needs_x = !codes.defined() && (trains_weight || prologue != nullptr);
    context->save_for_backward({weight, codes, scales, needs_x ? x : at::Tensor(), statistics.rstd, statistics.mean});
    context->saved_data["holder"] = c10::IValue::make_capsule(holder);
    context->saved_data["by_rows"] = by_rows;
    context->saved_data["optional_inputs"] =
        std::vector<int64_t>{bias.has_value(), prologue_weight.has_value(), prologue_bias.has_value()};
    context->saved_data["sizes"] = x.sizes();
    auto sizes = x.sizes().vec();
    sizes.back() = weight.size(0);
    return y.view(sizes);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &weight = saved[0], &codes = saved[1], &scales = saved[2], &kept_x = saved[3];
    const RowOperation::Statistics statistics = {saved[4], saved[5]};
    const auto holder = c10::static_intrusive_pointer_cast<Holder>(context->saved_data["holder"].toCapsule());
    QuantizedLinear& layer = *holder->layer;
    const LinearRecipe& recipe = layer.recipe_;
    const RowOperation* prologue = holder->prologue.get();
    const bool by_rows = context->saved_data["by_rows"].toBool();
    const at::Tensor dy = as_rows(gradients[0]);
    const at::ScalarType result_dtype = weight.scalar_type();
    // Inputs that are not there have no number.
    size_t edge = 2;
    std::vector<bool> wants_optional;
    for (const int64_t there : context->saved_data["optional_inputs"].toIntVector())
      wants_optional.push_back(there != 0 && context->needs_input_grad(edge++));
    const bool wants_bias = wants_optional[0], wants_weight = context->needs_input_grad(1);
    const bool wants_input = context->needs_input_grad(0) || wants_optional[1] || wants_optional[2];

    const bool native = layer.gemm_ == Gemm::kNative;
    at::Tensor by_row = dy, by_column = dy;
    MXTensor row_codes, column_codes;
    if (recipe.gradient.format && (wants_input || wants_weight)) {
      const uint64_t seed = mix_seed(layer.seed_, layer.backward_calls_++);
      const OperandCopies copies =
          layer.quantized(Operand::kGradient, dy, {.row = wants_input, .column = wants_weight, .seed = seed});
      by_row = copies.row;
      by_column = copies.column;
      row_codes = copies.row_codes;
      column_codes = copies.column_codes;
    }

    // Each operand goes when its product is done: they are as large as activations.
    at::Tensor dinput, dweight, dbias;
    at::Tensor x, input;  // the prologue's graph, from x to its result, where that is not made by rows
    if (kept_x.defined() && !by_rows) {
      const at::AutoGradMode with_grad(prologue != nullptr && wants_input);
      x = kept_x.detach();
      if (at::GradMode::is_enabled()) x.requires_grad_();
      input = prologue != nullptr ? prologue->apply(x) : x;
    }
    if (wants_weight && native) {
      const MXTensor x_codes = codes.defined()
                                   ? MXTensor(codes, scales, *recipe.activation.format, Orientation::kColumn)
                                   : layer.activation_again(as_rows(input.detach())).column_codes;
      dweight = native_product(column_codes, x_codes, result_dtype);
    } else if (wants_weight) {
      const at::ScalarType dtype = emulation_dtype(dy, recipe.gradient, recipe.activation);
      at::Tensor operand;
      if (codes.defined()) {
        operand = dequantize_kept(codes, scales, recipe.activation, dtype);
      } else if (by_rows) {
        RowOperation::Statistics known;
        operand = layer.activation_again(prologue->rows(kept_x, known)).column;
      } else {
        operand = as_rows(input.detach());
        if (recipe.activation.format) operand = layer.activation_again(operand).column;
      }
      dweight = product(by_column.to(dtype), operand.to(dtype), {.transpose_a = true}, result_dtype);
    }
    by_column.reset();
    column_codes = {};
    if (wants_input && native) {
      dinput = native_product(row_codes, layer.quantized(Operand::kWeight, weight, {.column = true}).column_codes,
                              result_dtype);
    } else if (wants_input) {
      const at::ScalarType dtype = emulation_dtype(dy, recipe.gradient, recipe.weight);
      dinput = product(by_row.to(dtype), layer.weight_operand(weight, {.column = true}).to(dtype), {}, result_dtype);
    }
    by_row.reset();
    row_codes = {};
    if (wants_bias) dbias = gemm(at::ones({1, dy.size(0)}, dy.options()), dy).squeeze(0);
    RowOperation::Gradients before = {.x = dinput, .parameters = {}};
    if (dinput.defined() && by_rows) {
      before = prologue->gradients(kept_x, statistics, dinput);
    } else if (dinput.defined() && prologue != nullptr) {
      before = gradients_of(*prologue, x, input, dinput.view(input.sizes()));
    }
    if (before.x.defined()) before.x = before.x.view(context->saved_data["sizes"].toIntVector());
    return {before.x, dweight, dbias, before.parameters.weight, before.parameters.bias, at::Tensor(), at::Tensor()};
  }

 private:
  /// By autograd, of input = prologue(x).
  static RowOperation::Gradients gradients_of(const RowOperation& prologue, const at::Tensor& x,
                                              const at::Tensor& input, const at::Tensor& dinput) {
    const RowOperation::Parameters parameters = prologue.parameters();
    torch::autograd::variable_list leaves = {x};
    for (const at::Tensor* parameter : {&parameters.weight, &parameters.bias}) {
      if (parameter->defined() && parameter->requires_grad()) leaves.push_back(*parameter);
    }
    const auto found = torch::autograd::grad({input}, leaves, {dinput});
    RowOperation::Gradients result = {.x = found[0], .parameters = {}};
    size_t next = 1;
    if (parameters.weight.defined() && parameters.weight.requires_grad()) result.parameters.weight = found[next++];
    if (parameters.bias.defined() && parameters.bias.requires_grad()) result.parameters.bias = found[next];
    return result;
  }
};

QuantizedLinear::QuantizedLinear(const LinearRecipe& recipe, std::string name, Gemm gemm, bool input_stays)
    : recipe_(recipe), name_(std::move(name)), gemm_(gemm), input_stays_(input_stays) {
  for (const Operand operand : kOperands) {
    const OperandRecipe& how = recipe_.of(operand);
    if (how.history > 0) amax_history(operand) = at::zeros({how.history}, at::kFloat);
  }
}

void QuantizedLinear::begin_step(uint64_t seed, bool count) {
  seed_ = seed;
  count_ = count;
  backward_calls_ = 0;
  statistics_ = {};
}

void QuantizedLinear::remember_amax(Operand operand, float amax) {
  at::Tensor& history = amax_history(operand);
  history = at::roll(history, 1);
  history[0].fill_(amax);
}

template <class X>
OperandCopies QuantizedLinear::quantized(Operand operand, const X& x, OperandRequest request) {
  const OperandRecipe& how = recipe_.of(operand);
  request.amax = amax_for(operand);
  request.count = count_;
  request.as_codes = gemm_ == Gemm::kNative;
  OperandCopies copies = quantize_operand(x, how, request);
  Statistics& sum = statistics_.of(operand);
  if (operand == Operand::kWeight) {
    if (request.row) sum = copies.statistics;
  } else {
    sum.add(copies.statistics);
  }
  return copies;
}

float QuantizedLinear::amax_for(Operand operand) const {
  const at::Tensor& history = amax_histories_[static_cast<size_t>(operand)];
  if (!history.defined()) return 0;
  const auto most = history.max().item<float>();
  return most > 0 ? most : largest_number(*recipe_.of(operand).format);  // nothing is known: the scale 1
}

template <class X>
OperandCopies QuantizedLinear::activation_again(const X& x) {
  return quantize_operand(
      x, recipe_.activation,
      {.column = true, .as_codes = gemm_ == Gemm::kNative, .amax = amax_for(Operand::kActivation), .count = false});
}

at::Tensor QuantizedLinear::weight_operand(const at::Tensor& weight, const OperandRequest& request) {
  if (!recipe_.weight.format) return weight;
  const OperandCopies copies = quantized(Operand::kWeight, weight, request);
  return request.row ? copies.row : copies.column;
}

at::Tensor QuantizedLinear::forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                    const Prologue& prologue) {
  const auto check = [&](bool fine, const char* what, const at::Tensor& tensor) {
    user_check(fine, "{}: {}; it is {}", name_, what, describe(tensor));
  };
  check(weight.dim() == 2, "weight must be (out, in)", weight);
  check(x.dim() >= 1, "x must be (..., in)", x);
  check(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16,
        "a quantized Linear computes in float32 or bfloat16; convert x", x);
  check(weight.scalar_type() == x.scalar_type() && weight.device() == x.device(),
        "weight must have x's dtype and device", weight);
  check(x.is_cpu() || x.is_cuda() || x.is_meta(), "x must be on the CPU or a GPU", x);
  check(!bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(0)), "bias must be (out)", bias);
  check(prologue != nullptr || x.size(-1) == weight.size(1), "the last size of x must be weight's second", x);
  if (gemm_ == Gemm::kNative) {
    std::string obstacle = native_obstacle(recipe_, weight.size(1), weight.size(0));
    if (obstacle.empty() && !x.is_meta()) obstacle = native_obstacle(native_device(x.device()));
    if (!obstacle.empty()) throw UserError(fmt::format("{}: {}", name_, obstacle), "use emulated products");
  }
  if (x.is_meta()) {
    auto sizes = x.sizes().vec();
    sizes.back() = weight.size(0);
    return at::empty(sizes, x.options());
  }
  const RowOperation::Parameters beside = prologue != nullptr ? prologue->parameters() : RowOperation::Parameters{};
  return QuantizedLinearFunction::apply(x, weight, optional(bias), optional(beside.weight), optional(beside.bias),
                                        c10::make_intrusive<Holder>(shared_from_this(), prologue),
                                        at::GradMode::is_enabled() && weight.requires_grad());
}

}  // namespace dovetail::mx
