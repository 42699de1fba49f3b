#pragma once

namespace dovetail::train {

/// Signal handlers for training. While an object exists, SIGINT and SIGTERM set the flag that
/// `stop_requested` reads. `request_stop` sets the same flag. A second SIGINT ends the process at
/// once. The destructor of the last object restores the previous handlers and clears the flag. If
/// ranks are threads of one process, each of them holds an object.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
};

bool stop_requested();

/// Asks a running `train` to finish its step, save and return; async-signal-safe.
void request_stop();

}  // namespace dovetail::train
