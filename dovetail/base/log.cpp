#include "dovetail/base/log.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace dovetail {
namespace {

std::atomic<LogLevel> g_level{LogLevel::kInfo};

}  // namespace

void set_log_level(LogLevel level) { g_level.store(level, std::memory_order_relaxed); }

void log_line(LogLevel level, const std::string& line) {
  if (level > g_level.load(std::memory_order_relaxed)) return;
  // One write(2) for the whole line. The kernel does not mix it with lines of other threads or
  // processes.
  const std::string whole = line + "\n";
  size_t done = 0;
  while (done < whole.size()) {
    const ssize_t n = ::write(STDERR_FILENO, whole.data() + done, whole.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // a closed standard error must not end a training run
    done += static_cast<size_t>(n);
  }
}

}  // namespace dovetail
