#include "dovetail/mx/native.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <array>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/mx/cuda_kernels.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::mx {

namespace {

/// Operands of the three products.
constexpr std::array<std::pair<Operand, Operand>, 3> kPairs = {
    {{Operand::kActivation, Operand::kWeight},
     {Operand::kGradient, Operand::kWeight},
     {Operand::kGradient, Operand::kActivation}}};

bool is_native(Format format) { return format == Format::kE4M3 || format == Format::kE5M2; }

std::string obstacle_of(Operand operand, const OperandRecipe& recipe) {
  if (!recipe.format) return fmt::format("{} is not quantized", name(operand));
  if (!is_native(*recipe.format))
    return fmt::format("{} is {}", name(operand), name(*recipe.format));
  if (recipe.blocks != Blocks::k1x32)
    return recipe.blocks == Blocks::kTensor
               ? fmt::format("{} has one scale for the whole tensor", name(operand))
               : fmt::format("{} has blocks of {}", name(operand), name(recipe.blocks));
  return "";
}

/// Copy in the form that cuBLASLt reads.
struct Reduced {
  at::Tensor codes, scales;  ///< codes (rows, depth) contiguous; scales as in `swizzled_scales`
};

Reduced along_blocks(const MXTensor& x) {
  if (x.orientation() == Orientation::kRow) return {x.codes(), swizzled_scales(x)};
  // Padding rows have code 0, which is the number 0. They change no sum and belong to the last
  // block.
  const int64_t more = (kNativeMultiple - x.sizes()[0] % kNativeMultiple) % kNativeMultiple;
  return {at::constant_pad_nd(x.codes().t(), {0, more}).contiguous(), swizzled_scales(x)};
}

void check_copy(const char* which, const MXTensor& x) {
  user_check(x.defined() && x.sizes().size() == 2 && x.orientation() != Orientation::kSquare,
             "mx.native_product: {} must be a row or column copy of a matrix", which);
  user_check(is_native(x.format()), "mx.native_product: {} is {}; use e4m3 or e5m2", which,
             name(x.format()));
}

}  // namespace

NativeDevice native_device(c10::Device device) {
  if (!device.is_cuda()) return {.name = device.is_cpu() ? "the CPU" : device.str()};
  const CudaKernels* kernels = cuda_kernels();
  if (kernels == nullptr)
    return {.name = device.str(),
            .missing = "this build has no kernels for the GPU: there was no nvcc"};
  // Asked only once, since the driver takes a while.
  static const std::vector<NativeDevice> gpus = kernels->describe_gpus();
  return gpus.at(device.has_index() ? static_cast<size_t>(device.index()) : 0);
}

std::string native_obstacle(const NativeDevice& device) {
  if (!device.missing.empty()) return fmt::format("{} (device: {})", device.missing, device.name);
  if (device.major >= kNativeCapability) return "";
  return fmt::format(
      "native products need a GPU of compute capability {}.0 or later, but the device is {}{}",
      kNativeCapability, device.name,
      device.major > 0 ? fmt::format(", compute capability {}.{}", device.major, device.minor)
                       : "");
}

std::string native_obstacle(const LinearRecipe& recipe, int64_t in, int64_t out) {
  constexpr const char* kNeeds = "; native products are of e4m3 and e5m2 in blocks of 1x32";
  for (const Operand operand : kOperands) {
    const std::string obstacle = obstacle_of(operand, recipe.of(operand));
    if (!obstacle.empty()) return obstacle + kNeeds;
  }
  for (const auto& [a, b] : kPairs) {
    if (recipe.of(a).format == Format::kE5M2 && recipe.of(b).format == Format::kE5M2)
      return fmt::format("{} and {} are both e5m2; cuBLASLt multiplies e5m2 by e4m3 only", name(a),
                         name(b));
  }
  for (const auto& [what, size] : {std::pair("inputs", in), {"outputs", out}}) {
    if (size % kNativeMultiple != 0)
      return fmt::format("it has {} {}; cuBLASLt needs multiples of {}", size, what,
                         kNativeMultiple);
  }
  return "";
}

at::Tensor native_product(const MXTensor& a, const MXTensor& b, at::ScalarType dtype,
                          const at::Tensor& bias) {
  check_copy("a", a);
  check_copy("b", b);
  user_check(a.format() == Format::kE4M3 || b.format() == Format::kE4M3,
             "mx.native_product: both matrices are e5m2; cuBLASLt multiplies e5m2 by e4m3 only");
  user_check(dtype == at::kFloat || dtype == at::kBFloat16,
             "mx.native_product: the result cannot be {}; use float32 or bfloat16",
             c10::toString(dtype));
  user_check(a.codes().device() == b.codes().device(), "mx.native_product: a is on {} but b on {}",
             a.codes().device().str(), b.codes().device().str());
  const std::string obstacle = native_obstacle(native_device(a.codes().device()));
  if (!obstacle.empty()) throw UserError("mx.native_product: " + obstacle, "use emulated products");

  const Reduced from_a = along_blocks(a), from_b = along_blocks(b);
  const int64_t rows = from_a.codes.size(0), cols = from_b.codes.size(0),
                depth = from_a.codes.size(1);
  user_check(depth == from_b.codes.size(1),
             "mx.native_product: ({} x {}) and ({} x {}) do not share the reduction", rows, depth,
             cols, from_b.codes.size(1));
  user_check(cols % kNativeMultiple == 0 && depth % kNativeMultiple == 0,
             "mx.native_product: ({} x {}) by ({} x {}): the reduction and the second's rows must "
             "be multiples of {}",
             rows, depth, cols, depth, kNativeMultiple);
  user_check(
      !bias.defined() || (bias.dim() == 1 && bias.size(0) == cols && bias.scalar_type() == dtype),
      "mx.native_product: bias must be ({}) of the result's dtype; it is {}", cols,
      ops::describe(bias));

  const auto options = a.codes().options().dtype(dtype);
  if (rows == 0 || cols == 0 || depth == 0) return at::zeros({rows, cols}, options);
  at::Tensor y = at::empty({rows, cols}, options);
  const bool narrow = dtype == at::kBFloat16;
  const at::Tensor fused = bias.defined() && narrow ? bias.contiguous() : at::Tensor();
  cuda_kernels()->native_product(
      {.rows = rows,
       .cols = cols,
       .depth = depth,
       .a = {from_a.codes.const_data_ptr(), from_a.scales.const_data_ptr(), a.format()},
       .b = {from_b.codes.const_data_ptr(), from_b.scales.const_data_ptr(), b.format()},
       .bias = fused.defined() ? fused.const_data_ptr() : nullptr,
       .narrow = narrow,
       .y = y.mutable_data_ptr()});
  return bias.defined() && !narrow ? y.add_(bias) : y;
}

}  // namespace dovetail::mx
