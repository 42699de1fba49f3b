#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "dovetail/mx/recipe.h"
#include "dovetail/mx/tensor.h"

/// Products that a GPU computes directly from codes and scales. They use cuBLASLt with one E8M0
/// scale for 32 elements (VEC32_UE8M0). The code compiles, but was never run: no GPU of compute
/// capability 10 was available.
namespace dovetail::mx {

/// Way to compute the products of a quantized Linear.
enum class Gemm { kEmulated, kNative };

/// Device on which native products would run.
struct NativeDevice {
  std::string name;          ///< "the CPU", "NVIDIA H200"
  int major = 0, minor = 0;  ///< compute capability
  std::string missing;       ///< reason why this build has no native products; empty: it has them
};

/// Describes a device. For a GPU, `load_gpu` must have been called before.
NativeDevice native_device(c10::Device device);

/// Minimum compute capability: Blackwell is the first whose tensor cores read these scales.
inline constexpr int kNativeCapability = 10;
/// Required multiple of the reduction and of the result's last dimension: cuBLASLt needs dimensions
/// aligned to 16 bytes.
inline constexpr int64_t kNativeMultiple = 16;

/// Returns the reason why a device has no native products, as text; empty if it has them.
std::string native_obstacle(const NativeDevice& device);

/// Returns the reason why a Linear with this recipe and these sizes has no native products, naming
/// the tensor. Empty if it has them. All three tensors must be E4M3 or E5M2 in blocks of 1x32. At
/// least one operand of each product must be E4M3.
std::string native_obstacle(const LinearRecipe& recipe, int64_t in, int64_t out);

/// Multiplies two quantized matrices along their blocks. A is a row copy's matrix, or the transpose
/// of a column copy's matrix. B is the same for `b`. Returns A (rows, depth) B (cols, depth)^T [+
/// bias (cols)], accumulated in FP32. Codes of a column copy are first copied and transposed.
/// cuBLASLt needs both operands contiguous along the reduction.
///
/// `dtype` applies to the result and to bias: float32 or bfloat16. Runs on the current GPU and
/// torch's current stream. `cols` must be a multiple of kNativeMultiple, and so must `depth` for
/// two row copies. Throws UserError for unsupported arguments, naming them.
at::Tensor native_product(const MXTensor& a, const MXTensor& b, at::ScalarType dtype,
                          const at::Tensor& bias = {});

}  // namespace dovetail::mx
