#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace dovetail {

/// One line at the bottom of the terminal (standard error) that is written over; nothing when that
/// is not a terminal. Ten times a second at most, so it may be shown from an inner loop.
class TerminalLine {
 public:
  TerminalLine();
  ~TerminalLine() { clear(); }
  bool on_terminal() const { return columns_ > 0; }
  int columns() const { return columns_; }  ///< 0: not a terminal

  void show(const std::string& text);
  void clear();

 private:
  int columns_ = 0;
  bool shown_ = false;
  double shown_at_s_ = 0;
};

/// "━━━━━╸────": heavy for what is done, in half cells.
std::string progress_bar(double fraction, int cells);

struct ProgressState {
  int64_t step = 0, steps = 0;  ///< done, of all
  double loss = 0;              ///< nats per token or sample
  std::optional<double> validation_loss;
  std::string auc;  ///< of each task; empty: none
  double tokens_per_s = 0;
  const char* rate_unit = "tok/s";
  double utilization = 0;  ///< 0 to 1; 0: unknown
  double eta_s = 0;
};

/// " step  640/1000  ━━━━━━━━╸━━━━━━━  64 %  loss 1.912  val 1.934  18.4k tok/s  41 % of peak  eta
/// 1:12". The bar takes what `columns` leaves and is left out when that is less than 8, or when
/// `columns` is 0 (plain lines).
std::string progress_text(const ProgressState& state, int columns);

/// A bar on a terminal; elsewhere a plain line after every tenth of the run, and when there was
/// none for 30 s.
class Progress {
 public:
  enum class Mode { kAutomatic, kOff };
  Progress(int64_t first_step, int64_t steps, Mode mode);

  /// After each step. `step_s` is how long it took, everything included. Rates and eta are moving
  /// averages.
  void update(ProgressState state, double step_s);
  void finish() { line_.clear(); }
  /// Makes room for a log line; the bar comes back with the next update.
  void interrupt() { line_.clear(); }

 private:
  Mode mode_;
  int64_t first_step_, steps_;
  TerminalLine line_;
  double mean_step_s_ = 0, mean_s_per_token_ = 0;
  double last_line_s_;  ///< plain lines
  int64_t last_tenth_;
};

}  // namespace dovetail
