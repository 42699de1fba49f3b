#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <vector>

#include "dovetail/ops/storage.h"

namespace dovetail::ops {

/// Instruction sets for which our CPU kernels are compiled. `kScalar` is the compiler's baseline
/// for the architecture (SSE2 on x86).
enum class SimdLevel { kScalar, kAvx2, kAvx512 };
/// Returns "scalar", "avx2" or "avx512".
const char* simd_level_name(SimdLevel level);

/// Returns the levels that this processor supports, slowest first.
std::vector<SimdLevel> available_simd_levels();

/// Returns the level in use. By default, it is the fastest available one. The environment variable
/// DOVETAIL_SIMD (scalar, avx2, avx512) or `set_simd_level` can choose another. Throws UserError if
/// the variable names an unknown or unavailable level.
SimdLevel simd_level();
/// Sets the level in use. Call it only while no operation runs. Throws UserError if the level is
/// unavailable.
void set_simd_level(SimdLevel level);

/// Kernels that can be disabled one by one, for benchmarks that measure the gain of each. ATen then
/// does the work of the disabled kernel, with three exceptions. Without kQuantize, quantizing uses
/// mx/codec.h, element by element. Without kExperts, experts are computed one after another, on
/// copies of their rows. Without kGroupedMm, the sizes of experts on a GPU go to the host, for
/// cuBLAS (moe/device_experts.h).
enum class Kernel {
  kGemm,
  kAttention,
  kNorm,
  kActivation,
  kCrossEntropy,
  kEmbedding,
  kAdamW,
  kQuantize,
  kExperts,
  kGroupedMm
};

/// Disables exactly the kernels in `names`, separated by commas. Names: gemm, attention, norm,
/// activation, cross_entropy, embedding, adamw, mx_quantize, experts, grouped_mm. An empty text
/// enables all. If this is never called, the environment variable DOVETAIL_DISABLE names the
/// disabled kernels; it is read at first use. Throws UserError that lists the valid names for an
/// unknown one.
void set_disabled_kernels(std::string_view names);
bool kernel_enabled(Kernel kernel);

/// Returns true if our kernel, not ATen, should compute an operation on x. This requires that the
/// kernel is enabled and that x is float32 or bfloat16. The device of x must be a CPU, or a GPU if
/// `CudaKernels` has this kernel.
bool use_kernel(Kernel kernel, const at::Tensor& x);

/// Returns the storage format of x, which must be float32 or bfloat16, as `use_kernel` ensures.
Storage storage_of(const at::Tensor& x);

/// Returns the address of x's data, which must be float32. Returns null if x is undefined.
const float* data_or_null(const at::Tensor& x);

/// Returns shape, dtype and device for messages, for example "[3, 4] Float on cpu".
std::string describe(const at::Tensor& x);

}  // namespace dovetail::ops
