#include "dovetail/train/ranks/executor_log.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "dovetail/base/machine.h"

namespace dovetail::train {

ExecutorLog::ExecutorLog(std::vector<std::string> names, int64_t tokens, double gain)
    : names_(std::move(names)), tokens_(tokens), gain_(gain), totals_(names_.size()) {}

std::vector<ExecutorTimings> ExecutorLog::add(
    const std::vector<int64_t>& shares, const std::vector<jobs::ExecutorShares::Times>& times) {
  std::vector<ExecutorTimings> timings;
  for (size_t e = 0; e < names_.size(); ++e) {
    if (shares[e] == 0) continue;
    totals_[e].micro_batches += shares[e];
    totals_[e].seconds += times[e].compute_s;
    timings.push_back(
        {.name = names_[e],
         .micro_batches = shares[e],
         .compute_ms = 1e3 * times[e].compute_s,
         .copy_ms = 1e3 * times[e].start_s,
         .add_ms = 1e3 * times[e].add_s,
         .tokens_per_s = static_cast<double>(shares[e] * tokens_) / times[e].compute_s});
  }
  return timings;
}

nlohmann::ordered_json ExecutorLog::line(int64_t step, const std::vector<int64_t>& shares) const {
  return {{"step", step}, {"executors", names_}, {"shares", shares}};
}

nlohmann::ordered_json ExecutorLog::line(int64_t step,
                                         const jobs::ExecutorShares::Move& move) const {
  nlohmann::ordered_json json = line(step, move.to);
  auto executor_ms = nlohmann::ordered_json::array();
  for (const double seconds : move.rate_s)
    executor_ms.push_back(seconds > 0 ? nlohmann::ordered_json(1e3 * seconds) : nullptr);
  json["executor_ms"] = std::move(executor_ms);
  json["compute_ms"] = 1e3 * move.to_s;
  json["before_ms"] = 1e3 * move.from_s;
  for (const jobs::ExecutorShares::LeftOut& left_out : move.left_out)
    json["left_out"].push_back({{"executor", names_[left_out.executor]},
                                {"with_ms", 1e3 * left_out.with_s},
                                {"without_ms", 1e3 * left_out.without_s}});
  return json;
}

std::vector<std::string> ExecutorLog::words(int64_t step,
                                            const jobs::ExecutorShares::Move& move) const {
  std::vector<std::string> lines;
  for (const jobs::ExecutorShares::LeftOut& left_out : move.left_out) {
    const double saved = 1 - left_out.with_s / left_out.without_s;
    lines.push_back(fmt::format(
        "balance: {} is left out from step {} on: a step would take {:.3g} s with it and {:.3g} s "
        "without it{}. One micro-batch takes {:.3g} s there and {:.3g} s on {}",
        names_[left_out.executor], step, left_out.with_s, left_out.without_s,
        saved > 0 ? fmt::format(", {:.2g} % less, but balance.gain = {}", 100 * saved, gain_) : "",
        left_out.rate_s, move.rate_s.front(), names_.front()));
  }
  lines.push_back(fmt::format(
      "balance: from step {} on micro-batches of {}: {} -> {}; a step computes for {:.3g} s "
      "instead of {:.3g} s",
      step, fmt::join(names_, ", "), fmt::join(move.from, ", "), fmt::join(move.to, ", "),
      move.to_s, move.from_s));
  return lines;
}

std::string ExecutorLog::summary() const {
  int64_t all = 0;
  for (const Total& total : totals_) all += total.micro_batches;
  if (all == 0) return "";
  std::vector<std::string> parts;
  for (size_t e = 0; e < names_.size(); ++e) {
    const auto [micro_batches, seconds] = totals_[e];
    const double share = 100 * static_cast<double>(micro_batches) / static_cast<double>(all);
    parts.push_back(
        fmt::format("{} computed {:.3g} % of the shared steps' samples", names_[e], share));
    if (micro_batches > 0)
      parts.back() += fmt::format(
          " at {} tok/s", format_count(static_cast<double>(micro_batches * tokens_) / seconds));
  }
  return fmt::format("executors: {}", fmt::join(parts, "; "));
}

std::string sharer_name(const nlohmann::json& line, size_t index) {
  if (!line.contains("executors")) return fmt::format("rank {}", index);
  return line["executors"].at(index).get<std::string>();
}

}  // namespace dovetail::train
