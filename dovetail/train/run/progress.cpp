#include "dovetail/train/run/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "dovetail/base/log.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/trace.h"

namespace dovetail::train {
namespace {

constexpr int kLongestBar = 32, kShortestBar = 8;
constexpr double kRefreshS = 0.1, kPlainLineS = 30;

std::string rate(double per_second) {
  if (per_second >= 1e6) return fmt::format("{:.2f}M", per_second / 1e6);
  if (per_second >= 1e3) return fmt::format("{:.1f}k", per_second / 1e3);
  return fmt::format("{:.0f}", per_second);
}

}  // namespace

std::string progress_bar(double fraction, int cells) {
  const int halves = static_cast<int>(std::lround(std::clamp(fraction, 0.0, 1.0) * 2 * cells));
  std::string text;
  for (int i = 0; i < cells; ++i)
    text += 2 * i + 2 <= halves ? "━" : (2 * i + 1 == halves ? "╸" : "─");
  return text;
}

TerminalLine::TerminalLine() {
  if (::isatty(STDERR_FILENO) == 0) return;
  winsize size{};
  columns_ = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

void TerminalLine::show(const std::string& text) {
  const double now = now_seconds();
  if (!on_terminal() || now - shown_at_s_ < kRefreshS) return;
  shown_at_s_ = now;
  std::fprintf(stderr, "\r%s\033[K", text.c_str());
  std::fflush(stderr);
  shown_ = true;
}

void TerminalLine::clear() {
  if (!shown_) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  shown_ = false;
}

std::string format_flops(double flops) {
  for (const auto& [unit, prefix] : {std::pair{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}}) {
    if (flops >= unit) return fmt::format("{:.3g} {}FLOP", flops / unit, prefix);
  }
  return fmt::format("{:.0f} FLOP", flops);
}

std::string progress_text(const ProgressState& state, int columns) {
  const double fraction =
      static_cast<double>(state.step) / static_cast<double>(std::max<int64_t>(1, state.steps));
  const int digits = static_cast<int>(fmt::formatted_size("{}", state.steps));
  const std::string head = fmt::format("step {:>{}}/{}", state.step, digits, state.steps);
  std::string tail = fmt::format("{:3.0f} %  loss {:.3f}", std::floor(fraction * 100), state.loss);
  if (state.validation_loss) tail += fmt::format("  val {:.3f}", *state.validation_loss);
  if (!state.auc.empty()) tail += fmt::format("  auc {}", state.auc);
  tail += fmt::format("  {} {}", rate(state.tokens_per_s), state.rate_unit);
  if (state.utilization > 0) tail += fmt::format("  {:.0f} % of peak", state.utilization * 100);
  if (state.step < state.steps) tail += fmt::format("  eta {}", format_duration(state.eta_s));

  const int room = columns - static_cast<int>(head.size() + tail.size()) - 6;
  if (columns > 0 && room >= kShortestBar) {
    return fmt::format(" {}  {}  {}", head, progress_bar(fraction, std::min(room, kLongestBar)),
                       tail);
  }
  return fmt::format(" {}  {}", head, tail);
}

Progress::Progress(int64_t first_step, int64_t steps, Mode mode)
    : mode_(mode),
      first_step_(first_step),
      steps_(steps),
      last_line_s_(now_seconds()),
      last_tenth_(first_step * 10 / std::max<int64_t>(1, steps)) {}

void Progress::update(ProgressState state, double step_s) {
  // The first step of a process warms up caches and is not representative.
  const bool early = state.step - first_step_ <= 2;
  const auto average = [early](double mean, double value) {
    return early ? value : 0.95 * mean + 0.05 * value;
  };
  mean_step_s_ = average(mean_step_s_, step_s);
  mean_s_per_token_ = average(mean_s_per_token_, 1.0 / state.tokens_per_s);
  if (mode_ == Mode::kOff) return;
  state.steps = steps_;
  state.utilization /= state.tokens_per_s * mean_s_per_token_;
  state.tokens_per_s = 1.0 / mean_s_per_token_;
  state.eta_s = mean_step_s_ * static_cast<double>(steps_ - state.step);

  if (line_.on_terminal()) {
    line_.show(progress_text(state, line_.columns()));
    return;
  }
  const double now = now_seconds();
  const int64_t tenth = state.step * 10 / steps_;
  if (tenth == last_tenth_ && now - last_line_s_ < kPlainLineS) return;
  last_tenth_ = tenth;
  last_line_s_ = now;
  log_info("{}", progress_text(state, 0));
}

}  // namespace dovetail::train
