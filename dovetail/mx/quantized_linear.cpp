#include "dovetail/mx/quantized_linear.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/operation.h"
#include "dovetail/mx/float8.h"
#include "dovetail/mx/linear_products.h"
#include "dovetail/mx/operand.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::mx {

namespace {

/// Raises delayed.seen to the largest magnitude of x. `counted_bits` is that magnitude on a CPU.
template <class X>
void see(const DelayedScaling& delayed, const X& x, uint32_t counted_bits) {
  if (delayed.seen.is_cpu()) {
    int32_t& seen = *delayed.seen.mutable_data_ptr<int32_t>();
    seen = std::max(seen, static_cast<int32_t>(counted_bits));
    return;
  }
  if constexpr (std::is_same_v<X, at::Tensor>) {
    if (x.numel() == 0) return;
    at::Tensor seen = delayed.seen;
    at::maximum_out(seen, seen, x.detach().abs().amax().to(at::kFloat).view(at::kInt));
  } else {
    DOVETAIL_CHECK(false, "delayed scaling has no rows that are made");
  }
}

}  // namespace

QuantizedLinear::QuantizedLinear(const LinearRecipe& recipe, std::string name, Gemm gemm,
                                 bool input_stays)
    : recipe_(recipe), name_(std::move(name)), gemm_(gemm), input_stays_(input_stays) {}

void QuantizedLinear::begin_step(uint64_t seed, bool count) {
  seed_ = seed;
  count_ = count;
  calls_ = {};
  statistics_ = {};
  for (auto& of_operand : recorded_) of_operand.clear();
}

LinearStatistics QuantizedLinear::statistics() const {
  LinearStatistics sums = statistics_;
  for (const Operand operand : kOperands)
    for (const Statistics& of_call : recorded_[static_cast<size_t>(operand)])
      sums.of(operand).add(of_call);
  return sums;
}

bool QuantizedLinear::leaves_column_to_plan(const at::Tensor& x) const {
  const OperandRecipe& recipe = recipe_.activation;
  return operations_are_recorded() && gemm_ == Gemm::kEmulated && recipe.blocks == Blocks::k1x32 &&
         x.size(0) % kBlock == 0 && emulation_dtype(x, recipe_.gradient, recipe) == x.scalar_type();
}

QuantizedLinear::Call QuantizedLinear::next_call(Operand operand) {
  return {.number = calls_[static_cast<size_t>(operand)]++, .recorded = operations_are_recorded()};
}

const DelayedScaling& QuantizedLinear::delayed(Operand operand, at::Device device) {
  DelayedScaling& found = delayed_[static_cast<size_t>(operand)];
  const OperandRecipe& how = recipe_.of(operand);
  if (how.history == 0) return found;
  if (!found.seen.defined()) found = AmaxHistories({*how.format}, how.history, device).of(0);
  DOVETAIL_CHECK(found.seen.device() == device, "{}: magnitudes of {} are on {}, x is on {}", name_,
                 mx::name(operand), found.seen.device().str(), device.str());
  return found;
}

template <class X>
OperandCopies QuantizedLinear::quantized(Operand operand, const X& x, OperandRequest request,
                                         const Call& call) {
  const OperandRecipe& how = recipe_.of(operand);
  request.count = count_ && call.counts;
  request.as_codes = gemm_ == Gemm::kNative;
  if (how.history > 0) request.amax = delayed(operand, x.device()).amax;
  OperandCopies copies = quantize_operand(x, how, request);
  if (how.history > 0) see(delayed(operand, x.device()), x, copies.statistics.amax_bits);
  record(operand, request.row, call, copies.statistics);
  return copies;
}

void QuantizedLinear::record(Operand operand, bool row, const Call& call,
                             const Statistics& statistics) {
  if (operand == Operand::kWeight) {
    if (row) statistics_.weight = statistics;
    return;
  }
  if (!call.counts) return;
  if (call.recorded) {
    auto& of_calls = recorded_[static_cast<size_t>(operand)];
    if (of_calls.size() <= call.number) of_calls.resize(call.number + 1);
    of_calls[call.number] = statistics;
  } else {
    statistics_.of(operand).add(statistics);
  }
}

template <class X>
OperandCopies QuantizedLinear::requantized_activation(const X& x, at::ScalarType dtype) {
  return quantize_operand(x, recipe_.activation,
                          {.column = true,
                           .as_codes = gemm_ == Gemm::kNative,
                           .amax = delayed(Operand::kActivation, x.device()).amax,
                           .count = false,
                           .wide = dtype == at::kFloat});
}

template OperandCopies QuantizedLinear::quantized(Operand, const at::Tensor&, OperandRequest,
                                                  const Call&);
template OperandCopies QuantizedLinear::quantized(Operand, const ops::MadeRows&, OperandRequest,
                                                  const Call&);
template OperandCopies QuantizedLinear::requantized_activation(const at::Tensor&, at::ScalarType);
template OperandCopies QuantizedLinear::requantized_activation(const ops::MadeRows&,
                                                               at::ScalarType);

OperandCopies QuantizedLinear::weight_copies(const at::Tensor& weight,
                                             const OperandRequest& request) {
  if (recipe_.weight.format) return quantized(Operand::kWeight, weight, request, {});
  OperandCopies copies;
  copies.row = copies.column = weight;
  return copies;
}

void QuantizedLinear::check(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            const Prologue& prologue) const {
  const auto check = [&](bool fine, const char* what, const at::Tensor& tensor) {
    user_check(fine, "{}: {}; it is {}", name_, what, ops::describe(tensor));
  };
  check(weight.dim() == 2, "weight must be (out, in)", weight);
  check(x.dim() >= 1, "x must be (..., in)", x);
  check(x.scalar_type() != at::kHalf,
        "float16 has less range than the scales of a quantized Linear. Convert x to bfloat16, or "
        "set the dtype of torch.autocast to bfloat16",
        x);
  check(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16,
        "a quantized Linear computes in float32 or bfloat16; convert x", x);
  check(weight.scalar_type() == x.scalar_type() && weight.device() == x.device(),
        "weight must have x's dtype and device", weight);
  check(x.is_cpu() || x.is_cuda() || x.is_meta(), "x must be on the CPU or a GPU", x);
  check(!bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(0)),
        "bias must be (out)", bias);
  check(prologue != nullptr || x.size(-1) == weight.size(1),
        "the last size of x must be weight's second", x);
  const bool nvfp4 = std::ranges::any_of(
      kOperands, [&](Operand operand) { return recipe_.of(operand).is_nvfp4(); });
  check(!nvfp4 || !x.is_cuda(),
        "NVFP4 is implemented on the CPU; use another recipe (mxfp4), or move model and x there",
        x);
  if (gemm_ != Gemm::kNative) return;
  std::string obstacle = native_obstacle(recipe_, weight.size(1), weight.size(0));
  if (obstacle.empty() && !x.is_meta()) obstacle = native_obstacle(native_device(x.device()));
  if (!obstacle.empty())
    throw UserError(fmt::format("{}: {}", name_, obstacle), "use emulated products");
}

QuantizedLinear::Products QuantizedLinear::multiply(const at::Tensor& x, const at::Tensor& weight,
                                                    const at::Tensor& bias, bool keeps_column) {
  const LinearProducts products(shared_from_this(), nullptr);
  const Call call = recipe_.activation.format ? next_call(Operand::kActivation) : Call{};
  const auto made = products.multiply({x, weight, bias, {}, {}}, call,
                                      {.row = true, .kept = keeps_column}, false);
  if (!keeps_column) return {made[0], {}, {}};
  if (!multiplies_float8(x, x.size(0), weight)) return {made[0], made[1], made[2]};
  const bool by_tensor = kept_scales(recipe_.activation).block == 0;
  return {made[0], made[1].view(at::kByte).view(x.sizes()),
          by_tensor ? made[2].view(at::IntArrayRef{}) : made[2].t()};
}

KeptScales kept_scales(const OperandRecipe& recipe) {
  if (recipe.is_microscaling()) return {};
  return {.dtype = at::kFloat, .block = recipe.blocks == Blocks::kTensor ? 0 : kFloat8Block};
}

QuantizedLinear::Gradients QuantizedLinear::differentiate(const at::Tensor& dy,
                                                          const at::Tensor& weight,
                                                          const at::Tensor& kept,
                                                          const at::Tensor& scales,
                                                          const WantedGradients& wanted) {
  const LinearProducts products(shared_from_this(), nullptr);
  const bool quantizes = recipe_.gradient.format && (wanted.x || wanted.weight);
  const Call call = quantizes ? next_call(Operand::kGradient) : Call{};
  at::Tensor codes, codes_scales, x;
  if (wanted.weight && !recipe_.activation.keeps_codes()) {
    x = kept;
  } else if (wanted.weight && multiplies_float8(dy, dy.size(0), weight)) {
    codes = kept.view({weight.size(1), dy.size(0)}).view(float8_type(*recipe_.activation.format));
    codes_scales = scales.dim() == 0 ? scales.view({1}) : scales.t();
  } else if (wanted.weight) {
    codes = kept;
    codes_scales = scales;
  }
  const auto made = products.differentiate({dy, weight, codes, codes_scales, x, {}, {}, {}, {}, {}},
                                           call, wanted, false);
  return {made[0], made[1], made[2]};
}

}  // namespace dovetail::mx
