#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "dovetail/mx/recipe.h"
#include "dovetail/mx/tensor.h"

/// Products that a GPU makes of codes and scales themselves: cuBLASLt's with one E8M0 scale for 32
/// elements (VEC32_UE8M0). They compile and were never run: a GPU of compute capability 10 was not
/// at hand.
namespace dovetail::mx {

/// How the products of a quantized Linear are computed.
enum class Gemm { kEmulated, kNative };

/// The device that would compute them.
struct NativeDevice {
  std::string name;          ///< "the CPU", "NVIDIA H200"
  int major = 0, minor = 0;  ///< compute capability
  std::string missing;       ///< what this build lacks for them, in words; empty: nothing
};

/// A GPU is asked, after `load_gpu`.
NativeDevice native_device(c10::Device device);

inline constexpr int kNativeCapability =
    10;  ///< Blackwell: the first whose tensor cores read such scales
/// Of the reduction and of the result's last dimension: cuBLASLt asks for 16-byte alignment of
/// dimensions.
inline constexpr int64_t kNativeMultiple = 16;

/// Why this device has no native products, in words; empty if it has.
std::string native_obstacle(const NativeDevice& device);

/// Why a Linear of this recipe and these sizes has none, naming the tensor; empty if it has. All
/// three tensors must be E4M3 or E5M2 in blocks of 1x32, and of two that meet in a product one at
/// least E4M3.
std::string native_obstacle(const LinearRecipe& recipe, int64_t in, int64_t out);

/// The product along the blocks of row or column copies of matrices: with A a row copy's matrix or
/// the transpose of a column copy's, and B likewise, A (rows, depth) B (cols, depth)^T [+ bias
/// (cols)], FP32 accumulation. A column copy's codes are copied, transposed: cuBLASLt wants both
/// operands contiguous along the reduction.
///
/// `dtype` of the result and of bias: float32 or bfloat16. On the current GPU and torch's current
/// stream. cols and, of two row copies, depth in multiples of kNativeMultiple. Throws UserError for
/// what cannot be, naming it.
at::Tensor native_product(const MXTensor& a, const MXTensor& b, at::ScalarType dtype,
                          const at::Tensor& bias = {});

}  // namespace dovetail::mx
