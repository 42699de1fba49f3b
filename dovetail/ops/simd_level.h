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
const char* simd_level_name(SimdLevel level);

/// Returns the levels that this processor supports, slowest first.
std::vector<SimdLevel> available_simd_levels();

/// Returns the level in use. It is the best available one, or the environment variable
/// DOVETAIL_SIMD (scalar, avx2, avx512). Throws UserError if that names an unknown or unavailable
/// level.
SimdLevel simd_level();
/// Sets the level, between calls of ops, never during one. Throws UserError if it is unavailable.
void set_simd_level(SimdLevel level);

/// Kernels that can be disabled one by one, for benchmarks that measure the gain of each. ATen then
/// does their work, with two exceptions. Quantizing uses the codec element by element. Experts are
/// computed one after another, on copies of their rows.
enum class Kernel {
  kGemm,
  kAttention,
  kNorm,
  kActivation,
  kCrossEntropy,
  kEmbedding,
  kAdamW,
  kQuantize,
  kExperts
};

/// Disables the kernels in `names`, separated by commas: gemm, attention, norm, activation,
/// cross_entropy, embedding, adamw, mx_quantize, experts. An empty text enables all. Replaces the
/// environment variable DOVETAIL_DISABLE, which is read at first use. Throws UserError that lists
/// the valid names for an unknown one.
void set_disabled_kernels(std::string_view names);
bool kernel_enabled(Kernel kernel);

/// Returns true if our kernel computes `x`: the kernel is enabled, and x is float32 or bfloat16.
/// `x` is on a CPU, or on a GPU if `CudaKernels` has this kernel.
bool use_kernel(Kernel kernel, const at::Tensor& x);

/// Returns the storage of x, which must be float32 or bfloat16, as `use_kernel` ensures.
Storage storage_of(const at::Tensor& x);

/// Returns the data of x, which is float32, or null if x is undefined.
const float* data_or_null(const at::Tensor& x);

/// Returns shape, dtype and device for messages, for example "[3, 4] Float on cpu".
std::string describe(const at::Tensor& x);

}  // namespace dovetail::ops
