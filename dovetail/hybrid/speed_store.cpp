#include "dovetail/hybrid/speed_store.h"

#include <fmt/format.h>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/machine.h"
#include "dovetail/ops/dispatch.h"

namespace dovetail::hybrid {
namespace {

constexpr int kVersion = 1;

nlohmann::json this_machine() {
  const Machine here = machine();
  return {{"cpu", here.cpu_name},
          {"simd", simd_level_name(simd_level())},
          {"cores", here.cores},
          {"hardware_threads", here.hardware_threads}};
}

}  // namespace

SpeedStore::SpeedStore(const std::filesystem::path& folder) {
  if (folder.empty()) return;
  machine_ = this_machine();
  file_ = folder / fmt::format("{}.json", sha256_of(machine_.dump()).substr(0, 16));
  if (!std::filesystem::exists(file_)) return;
  try {
    const auto content = nlohmann::json::parse(read_file(file_));
    user_check(content.at("version") == kVersion && content.at("machine") == machine_,
               "{}: speeds of another version or machine; remove the file", file_.string());
    entries_ = content.at("speeds").get<std::map<std::string, nlohmann::json>>();
    for (const auto& [key, entry] : entries_) find(key);
  } catch (const nlohmann::json::exception& error) {
    throw UserError(fmt::format("{}: no file of speeds: {}", file_.string(), error.what()), "remove the file");
  }
}

SpeedHistory SpeedStore::find(const std::string& key) const {
  SpeedHistory history;
  const auto entry = entries_.find(key);
  if (entry == entries_.end()) return history;
  for (const nlohmann::json& time : entry->second) {
    const double rows = time.at(0).get<double>(), seconds = time.at(1).get<double>();
    user_check(rows >= 1 && seconds > 0, "{}: {} rows in {} s; remove the file", file_.string(), rows, seconds);
    history.add(static_cast<int64_t>(rows), seconds);
  }
  return history;
}

void SpeedStore::put(const std::string& key, const SpeedHistory& history) {
  if (file_.empty() || history.size() == 0) return;
  nlohmann::json times = nlohmann::json::array();
  for (const SpeedHistory::Time& time : history.times()) times.push_back({time.rows, time.seconds});
  entries_[key] = std::move(times);
  changed_ = true;
}

void SpeedStore::save() {
  if (!changed_) return;
  std::filesystem::create_directories(file_.parent_path());
  const nlohmann::ordered_json content = {{"version", kVersion}, {"machine", machine_}, {"speeds", entries_}};
  write_file_atomically(file_, content.dump(1) + "\n");
  changed_ = false;
}

}  // namespace dovetail::hybrid
