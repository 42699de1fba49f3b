#include "dovetail/train/run/folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"

namespace dovetail::train {

RunFolder::RunFolder(std::filesystem::path path) : path_(std::move(path)) {
  std::error_code error;
  std::filesystem::create_directories(path_, error);
  user_check(!error, "cannot make the run's folder {}: {}", path_.string(), error.message());
  const std::filesystem::path lock_path = path_ / ".lock";
  lock_ = ::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  user_check(lock_ >= 0, "cannot open {}: {}", lock_path.string(), std::strerror(errno));
  // The kernel releases the lock when the process ends, for any reason.
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    const int reason = errno;
    ::close(lock_);
    if (reason != EWOULDBLOCK)
      throw UserError(fmt::format("cannot lock {}: {}", lock_path.string(), std::strerror(reason)));
    throw UserError(fmt::format("another process is training in {}", path_.string()),
                    "wait for it, or choose another run.name");
  }
  remove_leftovers(path_);
}

RunFolder::~RunFolder() { ::close(lock_); }

void RunFolder::forget_earlier_run() const {
  for (const std::filesystem::path& folder : {checkpoints(), path_ / "events"}) {
    if (!std::filesystem::exists(folder)) continue;
    std::filesystem::rename(
        folder, path_ / fmt::format(".{}.{}.partial", folder.filename().string(), ::getpid()));
  }
  for (const char* name : {"graph.json", "plan.json", "memory_plan.json", kStartFile})
    std::filesystem::remove(path_ / name);
  remove_leftovers(path_);
}

void RunFolder::write_config(const RunConfig& config) const {
  RunConfig copy = config;
  write_file_atomically(path_ / "config.toml",
                        config_to_toml([&](Section& s) { copy.describe(s); }));
}

void RunFolder::write_json(const char* name, const nlohmann::ordered_json& content) const {
  write_file_atomically(path_ / name, content.dump(2) + "\n");
}

}  // namespace dovetail::train
