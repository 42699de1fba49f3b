#pragma once

namespace dovetail {

/// While one of these lives, SIGINT and SIGTERM set the flag that `stop_requested` reads (as
/// `request_stop` does); a second SIGINT ends the process at once. The last one to go restores the
/// handlers that were there and clears the flag. Ranks that are threads of one process each hold
/// one.
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

}  // namespace dovetail
