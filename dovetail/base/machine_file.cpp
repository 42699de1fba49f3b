#include "dovetail/base/machine_file.h"

#include <fmt/format.h>

#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/json_fault.h"

namespace dovetail {
namespace {

constexpr int kVersion = 1;

nlohmann::json parse(const std::filesystem::path& file) {
  try {
    return nlohmann::json::parse(read_file(file));
  } catch (const nlohmann::json::exception& error) {
    throw UserError(fmt::format("{}: not JSON: {}", file.string(), json_fault(error)),
                    "remove the file");
  }
}

}  // namespace

MachineFile::MachineFile(const std::filesystem::path& folder, nlohmann::json machine)
    : machine_(std::move(machine)) {
  if (folder.empty()) return;
  file_ = folder / fmt::format("{}.json", sha256_of(machine_.dump()).substr(0, 16));
  if (!std::filesystem::exists(file_)) return;
  const nlohmann::json content = parse(file_);
  const std::string where = file_.string();
  user_check(content.is_object() && content.size() == 3,
             "{}: not a file of version, machine and entries; remove it", where);
  user_check(content.value("version", nlohmann::json()) == kVersion,
             "{}: only version {} is known; remove the file", where, kVersion);
  user_check(content.value("machine", nlohmann::json()) == machine_,
             "{}: its machine is not this one; remove the file", where);
  user_check(content.contains("entries") && content["entries"].is_object(),
             "{}: entries is no object; remove the file", where);
  entries_ = content["entries"].get<std::map<std::string, nlohmann::json>>();
}

std::optional<nlohmann::json> MachineFile::find(const std::string& key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? std::nullopt : std::optional(found->second);
}

void MachineFile::put(const std::string& key, nlohmann::json value) {
  entries_[key] = std::move(value);
  changed_ = true;
}

void MachineFile::save() {
  if (file_.empty() || !changed_) return;
  std::filesystem::create_directories(file_.parent_path());
  const nlohmann::ordered_json content = {
      {"version", kVersion}, {"machine", machine_}, {"entries", entries_}};
  write_file_atomically(file_, content.dump(1) + "\n");
  changed_ = false;
}

}  // namespace dovetail
