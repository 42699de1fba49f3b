#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace dovetail::train {

/// Line at the bottom of the terminal (standard error) that is overwritten. Does nothing if
/// standard error is no terminal. Updates at most ten times per second, so an inner loop may show
/// it.
class TerminalLine {
 public:
  TerminalLine();
  ~TerminalLine() { clear(); }
  bool on_terminal() const { return columns_ > 0; }
  int columns() const { return columns_; }  ///< width in characters; 0: no terminal

  void show(const std::string& text);
  void clear();

 private:
  int columns_ = 0;
  bool shown_ = false;
  double shown_at_s_ = 0;
};

/// Returns a bar like "━━━━━╸────". The heavy part is the fraction done, in half cells.
std::string progress_bar(double fraction, int cells);

struct ProgressState {
  int64_t step = 0, steps = 0;  ///< steps done, and their total
  double loss = 0;              ///< nats per token or sample
  std::optional<double> validation_loss;
  std::string auc;  ///< AUC of each task, as text; empty: none
  double tokens_per_s = 0;
  const char* rate_unit = "tok/s";
  double utilization = 0;  ///< share of peak FLOP/s, 0 to 1; 0: unknown
  double eta_s = 0;
};

/// Returns a line like " step  640/1000  ━━━━━━━━╸━━━━━━━  64 %  loss 1.912  val 1.934  18.4k tok/s
/// 41 % of peak  eta 1:12". The bar fills the rest of `columns`. There is no bar if fewer than 8
/// columns are left, or if `columns` is 0 (plain lines).
std::string progress_text(const ProgressState& state, int columns);

/// Progress bar on a terminal. Elsewhere a plain line after every tenth of the run, and if 30 s
/// passed without one.
class Progress {
 public:
  enum class Mode { kAutomatic, kOff };
  Progress(int64_t first_step, int64_t steps, Mode mode);

  /// Call after each step. `step_s` is the step's time, including everything. Rates and eta are
  /// moving averages.
  void update(ProgressState state, double step_s);
  void finish() { line_.clear(); }
  /// Clears the bar to make room for a log line. The next update shows it again.
  void interrupt() { line_.clear(); }

 private:
  Mode mode_;
  int64_t first_step_, steps_;
  TerminalLine line_;
  double mean_step_s_ = 0, mean_s_per_token_ = 0;
  double last_line_s_;  ///< time of the last plain line
  int64_t last_tenth_;
};

}  // namespace dovetail::train
