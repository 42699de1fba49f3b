#include "dovetail/jobs/speed_store.h"

#include <fmt/format.h>

#include "dovetail/base/error.h"
#include "dovetail/base/json_fault.h"
#include "dovetail/base/machine.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::jobs {
namespace {

nlohmann::json this_machine() {
  const Machine here = machine();
  return {{"cpu", here.cpu_name},
          {"simd", ops::simd_level_name(ops::simd_level())},
          {"cores", here.cores},
          {"hardware_threads", here.hardware_threads}};
}

}  // namespace

SpeedStore::SpeedStore(const std::filesystem::path& folder)
    : file_(folder, folder.empty() ? nlohmann::json() : this_machine()) {
  for (const auto& [key, entry] : file_.entries()) find(key);  // reports faulty entries at once
}

SpeedHistory SpeedStore::find(const std::string& key) const {
  SpeedHistory history;
  const auto times = file_.find(key);
  if (!times) return history;
  const std::string where = file_.file().string();
  try {
    for (const nlohmann::json& time : *times) {
      const double rows = time.at(0).get<double>(), seconds = time.at(1).get<double>();
      user_check(rows >= 1 && seconds > 0, "{}: {} rows in {} s; remove the file", where, rows,
                 seconds);
      history.add(static_cast<int64_t>(rows), seconds);
    }
  } catch (const nlohmann::json::exception& error) {
    throw UserError(fmt::format("{}: no file of speeds: {}", where, json_fault(error)),
                    "remove the file");
  }
  return history;
}

void SpeedStore::put(const std::string& key, const SpeedHistory& history) {
  if (file().empty() || history.size() == 0) return;
  nlohmann::json times = nlohmann::json::array();
  for (const SpeedHistory::Time& time : history.times()) times.push_back({time.rows, time.seconds});
  file_.put(key, std::move(times));
}

}  // namespace dovetail::jobs
