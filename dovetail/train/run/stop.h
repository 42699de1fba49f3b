#pragma once

namespace dovetail::train {

/// Signal handlers for training. While an object of this class exists, SIGINT and SIGTERM ask
/// training to stop: `stop_requested` then returns true. A second SIGINT, three seconds later or
/// more, ends the process at once. The destructor of the last object restores the previous handlers
/// and clears the request. If ranks are threads of one process, each rank holds an object.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
};

/// Returns true if a signal or `request_stop` asked training to stop. Training checks it after each
/// step.
bool stop_requested();

/// Asks a running `train` to finish its step, save and return. May be called in a signal handler
/// (async-signal-safe).
void request_stop();

}  // namespace dovetail::train
