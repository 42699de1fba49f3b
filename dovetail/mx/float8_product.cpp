#include "dovetail/mx/float8_product.h"

#include <ATen/ATen.h>
#include <ATen/BlasBackend.h>

#include "dovetail/base/error.h"
#include "dovetail/mx/cuda_kernels.h"
#include "dovetail/mx/float8.h"
#include "dovetail/mx/quantized_linear.h"

// FP8 products of a Linear on a GPU.
namespace dovetail::mx {

namespace {

/// Returns x, or a copy if x is not contiguous or not aligned to 16 bytes.
at::Tensor on_16_bytes(const at::Tensor& x) {
  const bool fits = x.is_contiguous() && reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
  return fits ? x.detach() : x.detach().clone(at::MemoryFormat::Contiguous);
}

int64_t scaling_of(Blocks blocks) {
  using Scaling = at::blas::ScalingType;
  return static_cast<int64_t>(blocks == Blocks::kTensor  ? Scaling::TensorWise
                              : blocks == Blocks::k1x128 ? Scaling::BlockWise1x128
                                                         : Scaling::BlockWise128x128);
}

}  // namespace

at::Tensor float8_product(const at::Tensor& a, const at::Tensor& a_scales, Blocks a_blocks,
                          const at::Tensor& b, const at::Tensor& b_scales, Blocks b_blocks,
                          const std::optional<at::Tensor>& bias) {
  constexpr int64_t kPlain = static_cast<int64_t>(at::blas::SwizzleType::NO_SWIZZLE);
  const bool fused = bias && a_blocks == Blocks::kTensor;
  at::Tensor y = at::_scaled_mm_v2(a, b.t(), {a_scales}, {scaling_of(a_blocks)}, {kPlain},
                                   {b_scales}, {scaling_of(b_blocks)}, {kPlain},
                                   fused ? bias : std::nullopt, at::kBFloat16);
  return bias && !fused ? y.add_(*bias) : y;
}

bool has_float8_products(const LinearRecipe& recipe, at::Device device) {
  if (!device.is_cuda()) return false;
  bool blocks = false, tensors = false;
  for (const Operand operand : kOperands) {
    const OperandRecipe& how = recipe.of(operand);
    if (!how.format || how.is_microscaling()) return false;
    (how.blocks == Blocks::kTensor ? tensors : blocks) = true;
  }
  if (blocks == tensors || recipe.activation.format == Format::kE5M2 ||
      (recipe.weight.format == Format::kE5M2 && recipe.gradient.format == Format::kE5M2) ||
      cuda_kernels() == nullptr)
    return false;
  const NativeDevice gpu = native_device(device);
  const int capability = 10 * gpu.major + gpu.minor;
  return blocks ? capability == 90 : capability >= 89;
}

bool QuantizedLinear::multiplies_float8(const at::Tensor& x, int64_t rows,
                                        const at::Tensor& weight) const {
  if (x.scalar_type() != at::kBFloat16 || rows == 0 || weight.numel() == 0) return false;
  const int64_t multiple = recipe_.weight.blocks == Blocks::kTensor ? 16 : kFloat8Block;
  return rows % multiple == 0 && weight.size(0) % multiple == 0 && weight.size(1) % multiple == 0 &&
         has_float8_products(recipe_, x.device());
}

bool QuantizedLinear::reads_rows(const ops::RowOperation& prologue, const at::Tensor& x,
                                 const at::Tensor& weight) const {
  return recipe_.activation.format && prologue.has_rows(x) &&
         (recipe_.activation.is_microscaling() ||
          multiplies_float8(x, x.numel() / x.size(-1), weight));
}

QuantizedLinear::Codes QuantizedLinear::float8_codes(Operand operand, const at::Tensor& x,
                                                     const CodesRequest& request) {
  return float8_codes(operand, on_16_bytes(x), x.size(0), x.size(1), {}, request);
}

QuantizedLinear::Codes QuantizedLinear::float8_codes(Operand operand, const ops::MadeRows& x,
                                                     const CodesRequest& request) {
  DOVETAIL_CHECK(x.on_gpu.has_value(), "rows of a CPU have no FP8 products");
  return float8_codes(operand, on_16_bytes(x.on_gpu->x), x.sizes[0], x.sizes[1],
                      x.on_gpu->activation, request);
}

QuantizedLinear::Codes QuantizedLinear::float8_codes(Operand operand, const at::Tensor& x,
                                                     int64_t rows, int64_t cols,
                                                     std::optional<ops::Activation> activation,
                                                     const CodesRequest& request) {
  const OperandRecipe& how = recipe_.of(operand);
  const auto codes = x.options().dtype(float8_type(*how.format)),
             numbers = x.options().dtype(at::kFloat);
  Codes made = {.row = request.row ? at::empty({rows, cols}, codes) : at::Tensor(),
                .column = request.column ? at::empty({cols, rows}, codes) : at::Tensor(),
                .row_scales = {},
                .column_scales = {},
                .most = {}};
  const auto bytes_of = [](const at::Tensor& tensor) {
    return tensor.defined() ? static_cast<uint8_t*>(tensor.mutable_data_ptr()) : nullptr;
  };
  Float8GpuProblem p = {.rows = rows,
                        .cols = cols,
                        .narrow = x.scalar_type() == at::kBFloat16,
                        .x = x.const_data_ptr(),
                        .activation = activation,
                        .e5m2 = *how.format == Format::kE5M2,
                        .power_of_two = !how.float32_scales,
                        .codes = bytes_of(made.row),
                        .transposed = bytes_of(made.column)};
  if (how.blocks == Blocks::kTensor) {
    made.row_scales = made.column_scales = at::empty({1}, numbers);
    const DelayedScaling& earlier = delayed(operand, x.device());
    const at::Tensor most = how.history > 0          ? earlier.seen
                            : request.most.defined() ? request.most
                                                     : at::zeros({}, x.options().dtype(at::kInt));
    p.most = reinterpret_cast<uint32_t*>(most.mutable_data_ptr<int32_t>());
    if (how.history > 0) {
      p.amax = earlier.amax.const_data_ptr<float>();
    } else {
      made.most = most;
      if (!request.most.defined()) cuda_kernels()->float8_amax(p);
    }
  } else {
    const int64_t down = rows / kFloat8Block, across = cols / kFloat8Block;
    const auto by_fours = [](int64_t count) { return (count + 3) / 4 * 4; };
    const bool square = how.blocks == Blocks::k128x128;
    p.kind = square ? Float8GpuProblem::Kind::kSquare : Float8GpuProblem::Kind::kLines;
    p.scale_stride = square ? by_fours(across) : rows;
    p.column_scale_stride = square ? by_fours(down) : cols;
    // at::_scaled_mm_v2 expects the contiguous dimension first.
    made.row_scales = at::zeros({square ? down : across, p.scale_stride}, numbers).t();
    made.column_scales = at::zeros({square ? across : down, p.column_scale_stride}, numbers).t();
  }
  p.scales = made.row_scales.mutable_data_ptr<float>();
  p.column_scales = made.column_scales.mutable_data_ptr<float>();
  cuda_kernels()->quantize_float8(p);
  return made;
}

}  // namespace dovetail::mx
