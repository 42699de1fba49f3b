#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <vector>

#include "dovetail/ops/storage.h"

namespace dovetail {

/// Instruction sets our CPU kernels are compiled for. `kScalar` is the compiler's baseline for the
/// architecture (SSE2 on x86).
enum class SimdLevel { kScalar, kAvx2, kAvx512 };
const char* simd_level_name(SimdLevel level);

/// What this processor can run, slowest first.
std::vector<SimdLevel> available_simd_levels();

/// The level in use: the best available, or what the environment variable DOVETAIL_SIMD (scalar,
/// avx2, avx512) says. Throws UserError when that names an unknown or unavailable level.
SimdLevel simd_level();
/// Switch between calls of ops, never during one. Throws UserError when unavailable.
void set_simd_level(SimdLevel level);

/// Our kernels that can be switched off one by one, which sends their work to ATen (quantizing: to
/// the codec, element by element; experts: to one after another on copies of their rows): a
/// benchmark's way to show what each is worth.
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

/// `names` separated by commas: gemm, attention, norm, activation, cross_entropy, embedding, adamw,
/// mx_quantize, experts; empty: all on. Replaces the environment variable DOVETAIL_DISABLE, which
/// is read at first use. Throws UserError for an unknown name, listing the valid ones.
void set_disabled_kernels(std::string_view names);
bool kernel_enabled(Kernel kernel);

/// Whether `x` goes to our kernel: float32 or bfloat16, the kernel enabled, and on a CPU, or on a
/// GPU if it is one of `CudaKernels`.
bool use_kernel(Kernel kernel, const at::Tensor& x);

/// float32 or bfloat16, as `use_kernel` has ensured.
Storage storage_of(const at::Tensor& x);

/// What a kernel reads of an operand that may be missing: x, float32, or null where it is
/// undefined.
const float* data_or_null(const at::Tensor& x);

/// "[3, 4] Float on cpu", for messages.
std::string describe(const at::Tensor& x);

}  // namespace dovetail
