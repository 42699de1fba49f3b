#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "dovetail/mx/recipe.h"
#include "dovetail/mx/tensor.h"

/// Native products: matrix products that a GPU computes directly from microscaling codes and
/// scales. They use cuBLASLt with one E8M0 scale for 32 elements (VEC32_UE8M0). The code compiles,
/// but was never run: no GPU of compute capability 10 was available.
namespace dovetail::mx {

/// Way to compute the products of a quantized Linear. kEmulated multiplies dequantized operands.
/// kNative multiplies codes and scales.
enum class Gemm { kEmulated, kNative };

/// Properties of a device that decide if native products can run on it (`native_obstacle`).
struct NativeDevice {
  std::string name;          ///< examples: "the CPU", "NVIDIA H200"
  int major = 0, minor = 0;  ///< compute capability
  /// Reason why this build has no native products for the device. Empty if it has them.
  std::string missing;
};

/// Returns the description of a device. For a GPU, `load_gpu` (base/gpu.h) must have been called
/// before.
NativeDevice native_device(c10::Device device);

/// Minimum major compute capability: Blackwell is the first GPU whose tensor cores read these
/// scales.
inline constexpr int kNativeCapability = 10;
/// Number that must divide the size of the reduction and the result's last dimension: cuBLASLt
/// needs dimensions aligned to 16 bytes.
inline constexpr int64_t kNativeMultiple = 16;

/// Returns the reason why a device cannot run native products, as text. The text is empty if the
/// device can run them.
std::string native_obstacle(const NativeDevice& device);

/// Returns the reason why a Linear with this recipe and these sizes cannot use native products,
/// naming the tensor. The text is empty if the Linear can use them. Requirements:
/// - Weight, activation and gradient are E4M3 or E5M2 in blocks of 1x32.
/// - Each product has at least one E4M3 operand.
/// - `in` and `out` are multiples of kNativeMultiple.
std::string native_obstacle(const LinearRecipe& recipe, int64_t in, int64_t out);

/// Multiplies two quantized matrices, with blocks along the reduction. A is the matrix of `a` if
/// `a` is a row copy (blocks along rows), and its transpose if `a` is a column copy. B follows from
/// `b` in the same way. Returns A (rows, depth) B (cols, depth)^T [+ bias (cols)], accumulated in
/// FP32. cuBLASLt needs both operands contiguous along the reduction. So codes of a column copy are
/// first copied in transposed order.
///
/// `dtype` applies to the result and to bias: float32 or bfloat16. Runs on the current GPU and
/// torch's current stream. `cols` must be a multiple of kNativeMultiple. If both operands are row
/// copies, `depth` must be such a multiple, too. Throws UserError for unsupported arguments, naming
/// them.
at::Tensor native_product(const MXTensor& a, const MXTensor& b, at::ScalarType dtype,
                          const at::Tensor& bias = {});

}  // namespace dovetail::mx
