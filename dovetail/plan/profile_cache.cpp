#include "dovetail/plan/profile_cache.h"

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
#include "dovetail/ops/dispatch.h"
#include "dovetail/plan/json_fields.h"

namespace dovetail::plan {
namespace {

constexpr int kVersion = 1;

/// The digest of the library that our kernels are in.
std::string kernels_digest() {
  Dl_info info{};
  DOVETAIL_CHECK(::dladdr(reinterpret_cast<const void*>(&why_not), &info) != 0, "the kernels are in no file");
  return sha256_of_file(info.dli_fname).substr(0, 16);
}

nlohmann::json this_machine() {
  static const std::string kernels = kernels_digest();
  return {{"cpu", machine().cpu_name},
          {"simd", simd_level_name(simd_level())},
          {"threads", at::get_num_threads()},
          {"torch", TORCH_VERSION},
          {"kernels", kernels}};
}

std::string text_of(const TensorUse& use) {
  if (use.storage < 0) return "none";
  return fmt::format("{}[{}]({})+{}", c10::toString(use.dtype), fmt::join(use.sizes, ","), fmt::join(use.strides, ","),
                     use.offset);
}

/// Nothing where it cannot be told from another.
std::optional<std::string> text_of(const c10::IValue& value) {
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

ProfileCache::ProfileCache(const std::filesystem::path& folder) {
  if (folder.empty()) return;
  machine_ = this_machine();
  file_ = folder / fmt::format("{}.json", sha256_of(machine_.dump()).substr(0, 16));
  if (!std::filesystem::exists(file_)) return;
  const nlohmann::json content = read_json(file_);
  const Fields fields(content, file_.string(), {"version", "machine", "entries"});
  fields.version_1();
  user_check(fields.at("machine") == machine_, "{}: its machine is not this one; remove the file", file_.string());
  user_check(fields.at("entries").is_object(), "{}: entries is no object; remove the file", file_.string());
  entries_ = fields.at("entries").get<std::map<std::string, nlohmann::json>>();
}

std::optional<nlohmann::json> ProfileCache::find(const std::string& key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? std::nullopt : std::optional(found->second);
}

void ProfileCache::put(const std::string& key, nlohmann::json value) {
  entries_[key] = std::move(value);
  changed_ = true;
}

void ProfileCache::save() {
  if (file_.empty() || !changed_) return;
  std::filesystem::create_directories(file_.parent_path());
  const nlohmann::ordered_json content = {{"version", kVersion}, {"machine", machine_}, {"entries", entries_}};
  write_file_atomically(file_, content.dump(1) + "\n");
  changed_ = false;
}

std::filesystem::path ProfileCache::default_folder() { return cache_folder("profiles"); }

std::optional<std::string> key_of(std::span<const CapturedOperation> operations) {
  std::string out;
  for (const CapturedOperation& operation : operations) {
    out += (out.empty() ? "" : "; ") + operation.name;
    for (const CapturedArgument& argument : operation.arguments) {
      out += ' ';
      if (argument.kind == CapturedArgument::Kind::kValue) {
        const auto text = text_of(argument.value);
        if (!text) return std::nullopt;
        out += *text;
      }
      for (const TensorUse& use : argument.uses) out += text_of(use);
    }
  }
  return out;
}

}  // namespace dovetail::plan
