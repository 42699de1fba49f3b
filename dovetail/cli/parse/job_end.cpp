#include "dovetail/cli/parse/job_end.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

namespace dovetail::cli {

std::optional<JobEnd> JobEnd::of_this_rank() {
  const char* file = std::getenv(kVariable);
  if (file == nullptr || *file == '\0') return std::nullopt;
  return JobEnd(file);
}

bool JobEnd::may_report() const {
  const int fd =
      ::open((file_.string() + ".reported").c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
  if (fd < 0) return errno != EEXIST;
  ::close(fd);
  return true;
}

void JobEnd::announce(int exit_code) const {
  const std::string whole = file_.string() + ".partial";
  std::ofstream(whole) << exit_code;
  std::error_code ignored;
  std::filesystem::rename(whole, file_, ignored);
}

void JobEnd::watch() const {
  std::thread([end = *this] {
    while (!end.exit_code()) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    std::this_thread::sleep_for(std::chrono::seconds(1));  // time for a rank to end by itself
    ::_exit(0);
  }).detach();
}

std::optional<int> JobEnd::exit_code() const {
  int code = 0;
  if (std::ifstream in(file_); in >> code) return code;
  return std::nullopt;
}

bool JobEnd::announced_within(double seconds) const {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!exit_code()) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return true;
}

}  // namespace dovetail::cli
