#include "dovetail/plan/record/profile_cache.h"

#include <ATen/Parallel.h>
#include <ATen/ops/item.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/version.h>

#include <sstream>
#include <utility>

#include "dovetail/base/cache_folder.h"
#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/machine.h"
#include "dovetail/ops/convolution.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::plan {
namespace {

/// Returns the digest of the library that contains our kernels.
std::string kernels_digest() {
  Dl_info info{};
  DOVETAIL_CHECK(::dladdr(reinterpret_cast<const void*>(&ops::why_not), &info) != 0,
                 "the kernels are in no file");
  return sha256_of_file(info.dli_fname).substr(0, 16);
}

nlohmann::json this_machine() {
  static const std::string kernels = kernels_digest();
  return {{"cpu", machine().cpu_name},
          {"simd", ops::simd_level_name(ops::simd_level())},
          {"threads", at::get_num_threads()},
          {"torch", TORCH_VERSION},
          {"kernels", kernels}};
}

std::string constant_text(const TensorUse& use) {
  if (use.storage < 0) return "none";
  return fmt::format("{}[{}]({})+{}", c10::toString(use.dtype), fmt::join(use.sizes, ","),
                     fmt::join(use.strides, ","), use.offset);
}

/// Returns the value as text; nullopt if it cannot be compared with other values.
std::optional<std::string> constant_text(const c10::IValue& value) {
  if (value.isCapsule() || value.isObject()) return std::nullopt;
  if (value.isGenerator()) return "generator";
  if (value.isTensor()) {  // a wrapped number
    if (!value.toTensor().defined()) return "none";
    return fmt::format("{}", value.toTensor().item().toDouble());
  }
  std::ostringstream out;
  out.precision(17);
  out << value;
  return out.str();
}

}  // namespace

ProfileCache::ProfileCache(const std::filesystem::path& folder)
    : MachineFile(folder, folder.empty() ? nlohmann::json() : this_machine()) {}

std::filesystem::path ProfileCache::default_folder() { return cache_folder("profiles"); }

std::optional<std::string> key_of(std::span<const CapturedOperation> operations) {
  std::string out;
  for (const CapturedOperation& operation : operations) {
    out += (out.empty() ? "" : "; ") + operation.name;
    for (const CapturedArgument& argument : operation.arguments) {
      out += ' ';
      if (argument.kind == CapturedArgument::Kind::kValue) {
        const auto text = constant_text(argument.value);
        if (!text) return std::nullopt;
        out += *text;
      }
      for (const TensorUse& use : argument.uses) out += constant_text(use);
    }
  }
  return out;
}

}  // namespace dovetail::plan
