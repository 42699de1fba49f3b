#include "dovetail/ops/simd_level.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>

#include "dovetail/base/error.h"
#include "dovetail/ops/cuda_kernels.h"
#include "dovetail/ops/simd_targets.h"

namespace dovetail::ops {

namespace {

constexpr std::array<const char*, 3> kLevelNames = {"scalar", "avx2", "avx512"};
constexpr std::array<const char*, 10> kKernelNames = {
    "gemm",      "attention", "norm",        "activation", "cross_entropy",
    "embedding", "adamw",     "mx_quantize", "experts",    "grouped_mm"};

uint32_t parse_kernels(std::string_view names, const std::string& place) {
  uint32_t mask = 0;
  while (!names.empty()) {
    const size_t comma = names.find(',');
    const std::string_view name = names.substr(0, comma);
    size_t i = 0;
    while (i < kKernelNames.size() && name != kKernelNames[i]) ++i;
    if (i == kKernelNames.size())
      throw UserError(fmt::format("no kernel is named \"{}\"", name),
                      fmt::format("the kernels are {}", fmt::join(kKernelNames, ", ")), place);
    mask |= 1u << i;
    names = comma == std::string_view::npos ? std::string_view() : names.substr(comma + 1);
  }
  return mask;
}

std::atomic<uint32_t>& disabled_mask() {
  static std::atomic<uint32_t> mask = [] {
    const char* names = std::getenv("DOVETAIL_DISABLE");
    return names ? parse_kernels(names, "DOVETAIL_DISABLE") : 0;
  }();
  return mask;
}

/// True if GPUs have this kernel, too.
bool has_gpu_kernel(Kernel kernel) {
  return kernel == Kernel::kNorm || kernel == Kernel::kActivation ||
         kernel == Kernel::kCrossEntropy || kernel == Kernel::kAdamW || kernel == Kernel::kGemm ||
         kernel == Kernel::kAttention;
}

SimdLevel level_from_environment() {
  const SimdLevel best = available_simd_levels().back();
  const char* name = std::getenv("DOVETAIL_SIMD");
  if (!name || !*name) return best;
  for (size_t i = 0; i < kLevelNames.size(); ++i) {
    if (std::string_view(name) != kLevelNames[i]) continue;
    if (static_cast<SimdLevel>(i) > best)
      throw UserError(fmt::format("this processor has no {}", name),
                      fmt::format("the best it can run is {}", simd_level_name(best)),
                      "DOVETAIL_SIMD");
    return static_cast<SimdLevel>(i);
  }
  throw UserError(fmt::format("no instruction set is named \"{}\"", name),
                  fmt::format("use one of {}", fmt::join(kLevelNames, ", ")), "DOVETAIL_SIMD");
}

std::atomic<SimdLevel>& current_level() {
  static std::atomic<SimdLevel> level = [] {
    const SimdLevel chosen = level_from_environment();
    simd::restrict_targets(static_cast<int>(chosen));
    return chosen;
  }();
  return level;
}

}  // namespace

const char* simd_level_name(SimdLevel level) { return kLevelNames[static_cast<size_t>(level)]; }

std::vector<SimdLevel> available_simd_levels() {
  std::vector<SimdLevel> levels;
  for (int i = 0; i <= simd::best_target(); ++i) levels.push_back(static_cast<SimdLevel>(i));
  return levels;
}

SimdLevel simd_level() { return current_level().load(std::memory_order_relaxed); }

void set_simd_level(SimdLevel level) {
  user_check(static_cast<int>(level) <= simd::best_target(), "this processor has no {}",
             simd_level_name(level));
  current_level() = level;
  simd::restrict_targets(static_cast<int>(level));
}

void set_disabled_kernels(std::string_view names) { disabled_mask() = parse_kernels(names, {}); }

bool kernel_enabled(Kernel kernel) {
  return !(disabled_mask().load(std::memory_order_relaxed) >> static_cast<uint32_t>(kernel) & 1u);
}

bool use_kernel(Kernel kernel, const at::Tensor& x) {
  simd_level();  // DOVETAIL_SIMD takes effect before the first kernel runs
  if (!kernel_enabled(kernel) ||
      (x.scalar_type() != at::kFloat && x.scalar_type() != at::kBFloat16))
    return false;
  if (x.is_cuda()) return has_gpu_kernel(kernel) && cuda_kernels() != nullptr;
  return x.is_cpu();
}

Storage storage_of(const at::Tensor& x) {
  DOVETAIL_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16, "{}",
                 describe(x));
  return x.scalar_type() == at::kFloat ? Storage::kFloat32 : Storage::kBFloat16;
}

const float* data_or_null(const at::Tensor& x) {
  return x.defined() ? x.const_data_ptr<float>() : nullptr;
}

std::string describe(const at::Tensor& x) {
  if (!x.defined()) return "(undefined)";
  return fmt::format("[{}] {} on {}", fmt::join(x.sizes(), ", "), c10::toString(x.scalar_type()),
                     x.device().str());
}

}  // namespace dovetail::ops
