#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/library.h"
#include "dovetail/base/once_differentiable.h"
#include "dovetail/mx/last_input.h"
#include "dovetail/mx/library_recipe.h"
#include "dovetail/mx/library_statistics.h"
#include "dovetail/mx/quantized_linear.h"
#include "dovetail/ops/simd_level.h"

/// Implements torch.ops.dovetail.mx_linear. It is made of two operators that no tracer looks into:
/// mx_linear_forward and mx_linear_backward. An autograd node of the kind that torch's own
/// operators have connects them. So torch.compile, torch.func and DTensor see two plain operators.
///
/// Tensors between them:
/// - kept: column copy of x as codes (tokens, in). It is x itself if the recipe keeps no
///   codes of activations (OperandRecipe::keeps_codes). It has no elements if the weight is not
///   trained.
/// - scales: scales of the column copy (`kept_scales`), or no elements.
/// - seed: int64 scalar on the CPU, for stochastic rounding. Forward draws it with torch's
///   generator, so that a recomputed forward has the same seed.
namespace dovetail::mx {

namespace {

using Tensors3 = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

/// Values of the argument `copies` of mx_linear_forward.
constexpr int64_t kNoCopy = 0, kColumnCopy = 1;
/// Bits of the argument `wanted` of mx_linear_backward, in the order of its results.
constexpr std::array<int64_t, 3> kWanted = {1, 2, 4};

std::string_view view(c10::string_view text) { return {text.data(), text.size()}; }

at::Tensor empty_like_none(const at::Tensor& x) { return at::empty({0}, x.options()); }

Tensors3 forward_operator(const at::Tensor& x, const at::Tensor& weight,
                          const std::optional<at::Tensor>& bias, int64_t copies,
                          c10::string_view recipe_text, c10::string_view layer) {
  static auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("dovetail::mx_linear_forward", "")
          .typed<Tensors3(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                          int64_t, c10::string_view, c10::string_view)>();
  return op.call(x, weight, bias, copies, recipe_text, layer);
}

Tensors3 backward_operator(const at::Tensor& dy, const at::Tensor& weight, const at::Tensor& kept,
                           const at::Tensor& scales, const std::optional<at::Tensor>& seed,
                           int64_t wanted, c10::string_view recipe_text, c10::string_view layer) {
  static auto op = c10::Dispatcher::singleton()
                       .findSchemaOrThrow("dovetail::mx_linear_backward", "")
                       .typed<Tensors3(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                       const at::Tensor&, const std::optional<at::Tensor>&, int64_t,
                                       c10::string_view, c10::string_view)>();
  return op.call(dy, weight, kept, scales, seed, wanted, recipe_text, layer);
}

std::shared_ptr<QuantizedLinear> make_layer(const LibraryRecipe& recipe, std::string_view layer) {
  return std::make_shared<QuantizedLinear>(
      recipe.linear, layer.empty() ? "mx_linear" : std::string(layer), recipe.gemm);
}

/// Shapes of x and weight, which are symbolic under torch.compile.
struct Sizes {
  c10::SymInt tokens = 1, in, out;
};
Sizes sizes_of(const at::Tensor& x, const at::Tensor& weight) {
  Sizes sizes{.in = weight.sym_size(1), .out = weight.sym_size(0)};
  for (int64_t i = 0; i + 1 < x.dim(); ++i) sizes.tokens = sizes.tokens * x.sym_size(i);
  return sizes;
}

std::vector<c10::SymInt> with_last(const at::Tensor& x, const c10::SymInt& last) {
  auto sizes = x.sym_sizes().vec();
  sizes.back() = last;
  return sizes;
}

std::vector<c10::SymInt> scale_shape(const Sizes& sizes, const KeptScales& how) {
  if (how.block == 0) return {};
  return {(sizes.tokens + (how.block - 1)) / how.block, sizes.in};
}

bool has_symbols(const at::Tensor& x) {
  return x.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

/// Computes shapes alone, also symbolic ones.
Tensors3 forward_shapes(const at::Tensor& x, const at::Tensor& weight,
                        const std::optional<at::Tensor>& bias, int64_t copies,
                        c10::string_view recipe_text, c10::string_view layer) {
  const LibraryRecipe& recipe = library_recipe(view(recipe_text));
  if (!has_symbols(x) && !has_symbols(weight))
    make_layer(recipe, view(layer))->check(x, weight, bias.value_or(at::Tensor()));
  const Sizes sizes = sizes_of(x, weight);
  const at::Tensor y = at::empty_symint(with_last(x, sizes.out), x.options());
  if (copies == kNoCopy || !recipe.linear.activation.keeps_codes())
    return {y, empty_like_none(x), empty_like_none(x)};
  const KeptScales how = kept_scales(recipe.linear.activation);
  return {y, at::empty_symint({sizes.tokens, sizes.in}, x.options().dtype(at::kByte)),
          at::empty_symint(scale_shape(sizes, how), x.options().dtype(how.dtype))};
}

Tensors3 linear_forward(const at::Tensor& x, const at::Tensor& weight,
                        const std::optional<at::Tensor>& bias, int64_t copies,
                        c10::string_view recipe_text, c10::string_view layer_name) {
  const at::NoGradGuard no_grad;
  const LibraryRecipe& recipe = library_recipe(view(recipe_text));
  const auto layer = make_layer(recipe, view(layer_name));
  const at::Tensor bias_or_none = bias.value_or(at::Tensor());
  layer->check(x, weight, bias_or_none);
  const bool counts = !layer_name.empty();
  layer->begin_step(0, counts);
  const bool keeps = copies == kColumnCopy && recipe.linear.activation.keeps_codes();
  const auto made = layer->multiply(x.reshape({-1, weight.size(1)}), weight, bias_or_none, keeps);
  if (counts) library_statistics().add(view(layer_name), layer->statistics());
  auto sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  const at::Tensor y = made.y.view(sizes);
  if (!keeps) return {y, empty_like_none(x), empty_like_none(x)};
  return {y, made.codes, made.scales};
}

Tensors3 backward_shapes(const at::Tensor& dy, const at::Tensor& weight, const at::Tensor&,
                         const at::Tensor&, const std::optional<at::Tensor>&, int64_t wanted,
                         c10::string_view, c10::string_view) {
  const auto empty = [&](size_t i, const std::vector<c10::SymInt>& sizes) {
    return (wanted & kWanted[i]) != 0 ? at::empty_symint(sizes, dy.options()) : empty_like_none(dy);
  };
  return {empty(0, with_last(dy, weight.sym_size(1))), empty(1, weight.sym_sizes().vec()),
          empty(2, {weight.sym_size(0)})};
}

/// Throws UserError unless the tensors fit together.
void check_backward(const at::Tensor& dy, const at::Tensor& weight, const at::Tensor& kept,
                    const at::Tensor& scales, bool reads_kept, const OperandRecipe& activation) {
  const auto check = [](bool fine, const char* what, const at::Tensor& tensor) {
    user_check(fine, "mx_linear_backward: {}; it is {}", what, ops::describe(tensor));
  };
  check(weight.dim() == 2, "weight must be (out, in)", weight);
  check(dy.dim() >= 1 && dy.size(-1) == weight.size(0), "dy must be (..., out)", dy);
  check(dy.scalar_type() == at::kFloat || dy.scalar_type() == at::kBFloat16,
        "dy must be float32 or bfloat16", dy);
  check(weight.scalar_type() == dy.scalar_type() && weight.device() == dy.device(),
        "weight must have dy's dtype and device", weight);
  if (!reads_kept) return;
  const int64_t in = weight.size(1), tokens = dy.numel() / std::max<int64_t>(dy.size(-1), 1);
  if (!activation.keeps_codes()) {
    check(kept.numel() == tokens * in && kept.scalar_type() == dy.scalar_type() &&
              kept.device() == dy.device(),
          "kept must be x", kept);
    return;
  }
  check(kept.scalar_type() == at::kByte && kept.is_contiguous() && kept.device() == dy.device() &&
            kept.sizes() == at::IntArrayRef({tokens, in}),
        "kept must be the codes (tokens, in) of forward", kept);
  const KeptScales how = kept_scales(activation);
  std::vector<int64_t> shape;
  if (how.block > 0) shape = {(tokens + how.block - 1) / how.block, in};
  check(scales.scalar_type() == how.dtype && scales.device() == dy.device() &&
            scales.sizes() == at::IntArrayRef(shape),
        "scales must be the ones that forward returned", scales);
}

Tensors3 linear_backward(const at::Tensor& dy, const at::Tensor& weight, const at::Tensor& kept,
                         const at::Tensor& scales, const std::optional<at::Tensor>& seed,
                         int64_t wanted_bits, c10::string_view recipe_text,
                         c10::string_view layer_name) {
  const at::NoGradGuard no_grad;
  const LibraryRecipe& recipe = library_recipe(view(recipe_text));
  const auto wants = [&](size_t i) { return (wanted_bits & kWanted[i]) != 0; };
  check_backward(dy, weight, kept, scales, wants(1), recipe.linear.activation);
  const auto layer = make_layer(recipe, view(layer_name));
  const bool counts = !layer_name.empty();
  user_check(
      !recipe.draws ||
          (seed && seed->is_cpu() && seed->scalar_type() == at::kLong && seed->numel() == 1),
      "mx_linear_backward: {} rounds stochastically. It needs a seed, an int64 scalar on the CPU",
      recipe.name);
  layer->begin_step(recipe.draws ? static_cast<uint64_t>(*seed->const_data_ptr<int64_t>()) : 0,
                    counts);
  const at::Tensor x_or_codes = recipe.linear.activation.keeps_codes() || !wants(1)
                                    ? kept
                                    : kept.reshape({-1, weight.size(1)});
  const auto made =
      layer->differentiate(dy.reshape({-1, weight.size(0)}), weight, x_or_codes, scales,
                           {.x = wants(0), .weight = wants(1), .bias = wants(2)});
  if (counts) library_statistics().add(view(layer_name), layer->statistics());
  auto sizes = dy.sizes().vec();
  sizes.back() = weight.size(1);
  return {wants(0) ? made.x.view(sizes) : empty_like_none(dy),
          wants(1) ? made.weight : empty_like_none(dy), wants(2) ? made.bias : empty_like_none(dy)};
}

/// Node of mx_linear in an autograd graph.
struct MxLinearBackward : torch::autograd::Node {
  torch::autograd::SavedVariable weight, kept, scales, seed;
  std::string recipe, layer;

  std::string name() const override { return "MxLinearBackward"; }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto* saved : {&weight, &kept, &scales, &seed}) saved->reset_data();
  }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    torch::autograd::variable_list results(3);
    if (!gradients[0].defined()) return results;
    int64_t wanted = 0;
    for (size_t i = 0; i < kWanted.size(); ++i)
      if (task_should_compute_output(i)) wanted |= kWanted[i];
    const at::Tensor drawn = seed.unpack();
    const auto made = backward_operator(
        gradients[0], weight.unpack(), kept.unpack(), scales.unpack(),
        drawn.defined() ? std::optional(drawn) : std::nullopt, wanted, recipe, layer);
    if ((wanted & kWanted[0]) != 0) results[0] = std::get<0>(made);
    if ((wanted & kWanted[1]) != 0) results[1] = std::get<1>(made);
    if ((wanted & kWanted[2]) != 0) results[2] = std::get<2>(made);
    return results;
  }
};

/// Returns true if the column copy of x may be shared with the Linear that ran before. FP8 copies
/// on a GPU have a layout that depends on the weight. A tensor of torch.func ends with its
/// function.
bool may_share(const at::Tensor& x, const OperandRecipe& activation) {
  const bool transformed = x.key_set().has_any(c10::DispatchKeySet(
      {c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::FuncTorchBatched}));
  return !transformed && (activation.is_microscaling() || x.is_cpu());
}

/// Runs forward below autograd. `keeps`: a gradient of the weight will be requested. Returns y, and
/// what backward keeps of x.
Tensors3 run_forward(const at::Tensor& x, const at::Tensor& weight,
                     const std::optional<at::Tensor>& bias, const LibraryRecipe& recipe, bool keeps,
                     c10::string_view recipe_text, c10::string_view layer) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const OperandRecipe& activation = recipe.linear.activation;
  if (!keeps || !activation.keeps_codes()) {
    Tensors3 made = forward_operator(x, weight, bias, kNoCopy, recipe_text, layer);
    if (keeps) std::get<1>(made) = x;
    return made;
  }
  const bool shares = may_share(x, activation);
  const auto [codes, scales] =
      shares ? last_input().find(x, activation) : std::pair<at::Tensor, at::Tensor>();
  if (codes.defined()) {
    const auto made = forward_operator(x, weight, bias, kNoCopy, recipe_text, layer);
    return {std::get<0>(made), codes, scales};
  }
  Tensors3 made = forward_operator(x, weight, bias, kColumnCopy, recipe_text, layer);
  if (shares) last_input().remember(x, activation, std::get<1>(made), std::get<2>(made));
  return made;
}

/// Draws a seed with torch's generator, in a form that tracers record. So torch.manual_seed
/// restarts the same sequence, and a compiled function draws anew in each call.
at::Tensor drawn_seed(std::optional<int64_t> given) {
  if (given) return at::full({}, *given, at::TensorOptions(at::kLong));
  return at::randint(std::numeric_limits<int64_t>::max(), {}, at::TensorOptions(at::kLong));
}

at::Tensor library_linear(const at::Tensor& x, const at::Tensor& weight,
                          const std::optional<at::Tensor>& bias, c10::string_view recipe_text,
                          std::optional<int64_t> seed, c10::string_view layer) {
  const LibraryRecipe& recipe = library_recipe(view(recipe_text));
  user_check(!x._fw_grad(0).defined() && !weight._fw_grad(0).defined() &&
                 !(bias && bias->_fw_grad(0).defined()),
             "mx_linear: no forward-mode derivative (jvp); use reverse mode, or torch.nn.Linear");
  // Drawn also where no gradient is computed: a checkpoint's first forward and its recomputation
  // must draw the same numbers.
  const at::Tensor drawn = recipe.draws ? drawn_seed(seed) : at::Tensor();
  if (!torch::autograd::compute_requires_grad(x, weight, bias))
    return std::get<0>(run_forward(x, weight, bias, recipe, false, recipe_text, layer));
  const auto node =
      std::shared_ptr<MxLinearBackward>(new MxLinearBackward, torch::autograd::deleteNode);
  node->set_next_edges(torch::autograd::collect_next_edges(x, weight, bias));
  node->recipe = view(recipe_text);
  node->layer = view(layer);
  const auto [y, kept, scales] =
      run_forward(x, weight, bias, recipe, weight.requires_grad(), recipe_text, layer);
  using torch::autograd::SavedVariable;
  node->weight = SavedVariable(weight, false);
  node->kept = SavedVariable(kept, false);
  node->scales = SavedVariable(scales, false);
  node->seed = SavedVariable(drawn, false);
  torch::autograd::set_history(y, node);
  return y;
}

template <c10::DeviceType kDevice>
at::Tensor autocast_linear(const at::Tensor& x, const at::Tensor& weight,
                           const std::optional<at::Tensor>& bias, c10::string_view recipe,
                           std::optional<int64_t> seed, c10::string_view layer) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(kDevice));
  const at::ScalarType dtype = at::autocast::get_autocast_dtype(kDevice);
  static auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("dovetail::mx_linear", "")
          .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                            c10::string_view, std::optional<int64_t>, c10::string_view)>();
  return op.call(at::autocast::cached_cast(dtype, x, kDevice),
                 at::autocast::cached_cast(dtype, weight, kDevice),
                 at::autocast::cached_cast(dtype, bias, kDevice), recipe, seed, layer);
}

}  // namespace

}  // namespace dovetail::mx

// words: off
TORCH_LIBRARY_FRAGMENT(dovetail, m) {
  using namespace dovetail::mx;
  m.def(
      "mx_linear(Tensor x, Tensor weight, Tensor? bias=None, str recipe=\"mxfp8\", int? seed=None, "
      "str layer=\"\") -> Tensor",
      &library_linear);
  m.def(
      "mx_linear_forward(Tensor x, Tensor weight, Tensor? bias, int copies, str recipe, str layer) "
      "-> (Tensor y, Tensor kept, Tensor scales)");
  m.def(
      "mx_linear_backward(Tensor dy, Tensor weight, Tensor kept, Tensor scales, Tensor? seed, int "
      "wanted, str recipe, str layer) -> (Tensor, Tensor, Tensor)");
}

// words: on

TORCH_LIBRARY_IMPL(dovetail, CPU, m) {
  dovetail::implement<"mx_linear_forward", dovetail::mx::linear_forward>(m);
  dovetail::implement<"mx_linear_backward", dovetail::mx::linear_backward>(m);
}
TORCH_LIBRARY_IMPL(dovetail, CUDA, m) {
  dovetail::implement<"mx_linear_forward", dovetail::mx::linear_forward>(m);
  dovetail::implement<"mx_linear_backward", dovetail::mx::linear_backward>(m);
}
TORCH_LIBRARY_IMPL(dovetail, Meta, m) {
  m.impl("mx_linear_forward", &dovetail::mx::forward_shapes);
  m.impl("mx_linear_backward", &dovetail::mx::backward_shapes);
}
TORCH_LIBRARY_IMPL(dovetail, Autograd, m) {
  m.impl("mx_linear_backward",
         dovetail::once_differentiable({"mx_linear",
                                        "a rounded gradient has none, so use torch.nn.Linear where "
                                        "you need one"}));
}
TORCH_LIBRARY_IMPL(dovetail, AutocastCPU, m) {
  m.impl("mx_linear", &dovetail::mx::autocast_linear<c10::DeviceType::CPU>);
}
TORCH_LIBRARY_IMPL(dovetail, AutocastCUDA, m) {
  m.impl("mx_linear", &dovetail::mx::autocast_linear<c10::DeviceType::CUDA>);
}
