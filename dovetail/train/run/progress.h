#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace dovetail::train {

/// Text in the last line of the terminal (standard error). `show` replaces the text. It does
/// nothing within 0.1 s of the last change, so an inner loop may call it. There is no text if
/// standard error is no terminal.
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

/// Returns a bar of `cells` characters, like "━━━━━╸────". Its heavy part is `fraction` of the bar,
/// rounded to half characters.
std::string progress_bar(double fraction, int cells);

/// Formats FLOPs as "5.3 MFLOP". Unlike counts of parameters, they have SI prefixes.
std::string format_flops(double flops);

/// Numbers that progress_text shows.
struct ProgressState {
  int64_t step = 0, steps = 0;            ///< steps done, and their total
  double loss = 0;                        ///< training loss, in nats per token or per sample
  std::optional<double> validation_loss;  ///< loss of the newest validation, in the same unit
  std::string auc;                        ///< AUC of the newest validation: "0.6561"; empty: none
  double tokens_per_s = 0;                ///< tokens or samples per second, in `rate_unit`
  const char* rate_unit = "tok/s";
  double utilization = 0;  ///< model FLOP/s / peak FLOP/s, 0 to 1; 0: unknown
  double eta_s = 0;        ///< seconds until the last step ends
};

/// Returns the line of text that shows `state`. Example:
///
/// " step  640/1000  ━━━━━━━━╸━━━━━━━  64 %  loss 1.912  val 1.934  18.4k tok/s  41 % of peak"
///
/// Before the last step, the line ends with the remaining time: "eta 1:12". The bar takes the rest
/// of `columns` characters, but at most 32. There is no bar if fewer than 8 are left, or if
/// `columns` is 0 (plain lines).
std::string progress_text(const ProgressState& state, int columns);

/// Progress of a run on standard error. A terminal shows it as a bar. Elsewhere a plain line
/// is written after every tenth of the run. One is also written if the last line is 30 s old.
class Progress {
 public:
  enum class Mode { kAutomatic, kOff };
  Progress(int64_t first_step, int64_t steps, Mode mode);

  /// Shows `state` after a step. `step_s` is the step's time with evaluation and saving. Rate,
  /// utilization and eta are shown as moving averages.
  void update(ProgressState state, double step_s);
  void finish() { line_.clear(); }
  /// Clears the bar to make room for a log line. The next update shows it again.
  void interrupt() { line_.clear(); }

 private:
  Mode mode_;
  int64_t first_step_, steps_;
  TerminalLine line_;
  double mean_step_s_ = 0, mean_s_per_token_ = 0;  ///< moving averages
  double last_line_s_;                             ///< time of the last plain line
  int64_t last_tenth_;  ///< number of tenths of the run that were done at the last plain line
};

}  // namespace dovetail::train
