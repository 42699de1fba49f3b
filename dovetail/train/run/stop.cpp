#include "dovetail/train/run/stop.h"

#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <mutex>

namespace dovetail::train {
namespace {

std::atomic<bool> stop_flag{false};
std::atomic<int64_t> stopped_at_s{0};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free,
              "for signal handlers");

// One Ctrl-C reaches a rank twice: from the terminal, and forwarded by torchrun.
constexpr int64_t kSecondAfterS = 3;

std::mutex handlers_mutex;
int holders = 0;
struct sigaction previous_int, previous_term;

int64_t monotonic_s() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec;
}

void on_signal(int signal) {
  const bool again = stop_flag.load() && monotonic_s() - stopped_at_s.load() >= kSecondAfterS;
  if (signal == SIGINT && again) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
  request_stop();
}

}  // namespace

StopSignals::StopSignals() {
  const std::scoped_lock lock(handlers_mutex);
  if (holders++ > 0) return;
  stop_flag.store(false);
  struct sigaction action{};
  action.sa_handler = on_signal;
  // SA_RESTART lets interrupted reads and writes continue. The flag is checked after each step.
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, &previous_int);
  sigaction(SIGTERM, &action, &previous_term);
}

StopSignals::~StopSignals() {
  const std::scoped_lock lock(handlers_mutex);
  if (--holders > 0) return;
  sigaction(SIGINT, &previous_int, nullptr);
  sigaction(SIGTERM, &previous_term, nullptr);
  stop_flag.store(false);
}

bool stop_requested() { return stop_flag.load(); }

void request_stop() {
  if (!stop_flag.load()) stopped_at_s.store(monotonic_s());
  stop_flag.store(true);
}

}  // namespace dovetail::train
