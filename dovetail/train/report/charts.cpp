#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/train/ranks/executor_log.h"
#include "dovetail/train/report/run_files.h"
#include "dovetail/train/report/run_report.h"

namespace dovetail::train {
namespace {

using Json = nlohmann::ordered_json;

/// Value by step, appended in the order of steps.
using Axis = std::vector<std::pair<int64_t, double>>;

/// Position of a step on each of the page's horizontal axes.
struct Axes {
  Axis tokens, hours;  ///< hours of training, summed over all processes of the run

  /// Returns the value at a step; NaN if there is none.
  static double at(const Axis& axis, int64_t step) {
    const auto found = std::ranges::lower_bound(axis, step, {}, &Axis::value_type::first);
    return found != axis.end() && found->first == step ? found->second : kNaN;
  }
};

Axes read_axes(const RunFiles& run) {
  Axes axes;
  const std::string unit = std::string(run.config.unit()) + "s";
  for (const Json& line : run.metrics)
    axes.tokens.emplace_back(line["step"].get<int64_t>(), number_of(line, unit.c_str()));
  double before_s = 0, last_s = 0;  // a resumed process counts from zero again
  for (const Json& line : run.timings) {
    const double time_s = number_of(line, "time_s");
    if (time_s < last_s) before_s += last_s;
    if (!std::isnan(time_s)) last_s = time_s;
    axes.hours.emplace_back(line["step"].get<int64_t>(), (before_s + last_s) / 3600);
  }
  return axes;
}

/// Rounds to six digits (strtod, since stod throws for subnormal numbers). A screen shows fewer,
/// and the text takes a third of the bytes of a full double.
Json six_digits(double value) {
  return std::isfinite(value) ? Json(std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr))
                              : Json();
}

/// Returns one curve, with [step, tokens, hours, value] per point. Values that are absent or not
/// finite are left out.
Json make_series(const char* name, const char* style, const std::vector<Json>& lines,
                 const char* key, const Axes& axes, double scale = 1) {
  std::vector<int64_t> steps;
  std::vector<double> values;
  for (const Json& line : lines) {
    const double value = number_of(line, key);
    if (!std::isfinite(value)) continue;
    steps.push_back(line["step"].get<int64_t>());
    values.push_back(value * scale);
  }
  Json points = Json::array();
  for (const size_t i : thin_out(values)) {
    points.push_back({steps[i], six_digits(Axes::at(axes.tokens, steps[i])),
                      six_digits(Axes::at(axes.hours, steps[i])), six_digits(values[i])});
  }
  return {{"name", name}, {"style", style}, {"points", std::move(points)}};
}

/// Adds a chart, unless none of its curves has a point.
void add_chart(Json& charts, const std::string& title, const char* format, const char* scale,
               const std::vector<Json>& series) {
  Json kept = Json::array();
  for (const Json& curve : series) {
    if (!curve["points"].empty()) kept.push_back(curve);
  }
  if (!kept.empty())
    charts.push_back({{"title", title}, {"format", format}, {"scale", scale}, {"series", kept}});
}

/// Returns the evaluations of one task as lines: its keys, and the step.
std::vector<Json> lines_of_task(const std::vector<Json>& metrics, const std::string& task) {
  std::vector<Json> lines;
  for (const Json& line : metrics) {
    if (!line.contains("tasks") || !line["tasks"].contains(task)) continue;
    lines.push_back(line["tasks"][task]);
    lines.back()["step"] = line["step"];
  }
  return lines;
}

/// Adds charts of how well each task ranks and how its probabilities fit.
void add_rankings(Json& charts, const RunFiles& run, const Axes& axes) {
  const std::vector<std::string>& tasks = run.config.rows.label;
  std::vector<Json> auc, fit;
  for (const std::string& task : tasks) {
    const bool one = tasks.size() == 1;
    const std::vector<Json>& lines = one ? run.metrics : lines_of_task(run.metrics, task);
    const auto series = [&](std::vector<Json>& chart, const std::string& name, const char* key) {
      chart.push_back(make_series((one ? name : fmt::format("{}, {}", task, name)).c_str(),
                                  "points", lines, key, axes));
    };
    series(auc, "all rows", "auc");
    series(auc, "within groups", "gauc");
    series(fit, "normalised entropy", "normalized_entropy");
    series(fit, "calibration", "calibration");
    if (!one) series(fit, "log loss (nats)", "log_loss");
  }
  add_chart(
      charts,
      run.config.rows.by_day() ? "AUC (each day, before it was trained on)" : "AUC (validation)",
      "number", "linear", auc);
  add_chart(charts, "Fit of probabilities (validation; 1: as the labels' mean)", "number", "linear",
            fit);
}

/// Returns a series of each key in `lines`, except "step", in the order of the keys' appearance.
std::vector<Json> series_of_keys(const std::vector<Json>& lines, const char* kind,
                                 const Axes& axes) {
  std::vector<std::string> names;
  for (const Json& line : lines) {
    for (const auto& [key, value] : line.items())
      if (key != "step" && std::ranges::find(names, key) == names.end()) names.push_back(key);
  }
  std::vector<Json> series;
  series.reserve(names.size());
  for (const std::string& name : names)
    series.push_back(make_series(name.c_str(), kind, lines, name.c_str(), axes));
  return series;
}

/// Adds a chart of the shares of ranks or executors. Shares stay until they move. So each span of
/// steps with the same shares gets a line at its begin and at its end.
void add_shares(Json& charts, const RunFiles& run, const Axes& axes) {
  if (run.balance.empty() || run.metrics.empty()) return;
  std::vector<Json> lines;
  const auto add = [&](int64_t step, const Json& balance) {
    const Json shares = value_at(balance, {"shares"});
    Json line = {{"step", step}};
    for (size_t i = 0; i < shares.size(); ++i) line[sharer_name(balance, i)] = shares[i];
    lines.push_back(std::move(line));
  };
  const auto last = run.metrics.back()["step"].get<int64_t>();
  for (size_t i = 0; i < run.balance.size(); ++i) {
    const auto begin = run.balance[i]["step"].get<int64_t>();
    const int64_t end =
        i + 1 < run.balance.size() ? run.balance[i + 1]["step"].get<int64_t>() - 1 : last;
    add(begin, run.balance[i]);
    if (end > begin) add(end, run.balance[i]);
  }
  add_chart(charts,
            fmt::format("Shares of the {} (micro-batches of a step)",
                        run.balance.back().contains("executors") ? "executors" : "ranks"),
            "number", "linear", series_of_keys(lines, "line", axes));
}

/// Adds a chart of the speed of each executor that shares the steps.
void add_executors(Json& charts, const RunFiles& run, const Axes& axes) {
  std::vector<Json> lines;
  for (const Json& timings : run.timings) {
    if (!timings.contains("executors")) continue;
    Json line = {{"step", timings["step"]}};
    for (const auto& [name, executor] : timings["executors"].items())
      line[name] = value_at(executor, {"tokens_per_s"});
    lines.push_back(std::move(line));
  }
  add_chart(charts, "Throughput of the executors (tokens per second)", "count", "linear",
            series_of_keys(lines, "noisy", axes));
}

}  // namespace

Json make_charts(const RunFiles& run) {
  const Axes axes = read_axes(run);
  const auto& metrics = run.metrics;
  const auto& timings = run.timings;
  Json charts = Json::array();
  const std::string unit = run.config.unit();
  add_chart(charts, fmt::format("Loss (nats per {})", run.config.loss_unit()), "number", "linear",
            {make_series("training", "noisy", metrics, "loss", axes),
             make_series("validation", "points", metrics, "validation_loss", axes)});
  add_rankings(charts, run, axes);
  add_chart(charts, "Accuracy (validation)", "number", "linear",
            {make_series("accuracy", "points", metrics, "accuracy", axes),
             make_series("mean intersection over union", "points", metrics, "mean_iou", axes)});
  add_chart(charts, fmt::format("Auxiliary loss (nats per {})", unit), "number", "linear",
            {make_series("training", "noisy", metrics, "auxiliary_loss", axes)});
  add_chart(charts, "Learning rate", "small", "linear",
            {make_series("learning rate", "line", metrics, "lr", axes)});
  add_chart(charts, "Gradient norm (before clipping)", "number", "log",
            {make_series("gradient norm", "noisy", metrics, "grad_norm", axes)});
  add_chart(charts, fmt::format("Throughput ({}s per second)", unit), "count", "linear",
            {make_series((unit + "s per second").c_str(), "noisy", timings,
                         (unit + "s_per_s").c_str(), axes)});
  add_chart(charts, "Utilisation (% of measured peak)", "percent", "linear",
            {make_series("utilisation", "noisy", timings, "utilization", axes, 100)});
  add_chart(charts, "Memory (resident)", "bytes", "linear",
            {make_series("resident", "line", timings, "memory_bytes", axes)});
  std::vector<Json> times = {make_series("step", "noisy", timings, "step_ms", axes),
                             make_series("waiting for data", "line", timings, "data_ms", axes)};
  if (value_at(run.machine, {"ranks"}) != 1)
    times.push_back(
        make_series("waiting for the network", "line", timings, "communication_ms", axes));
  add_chart(charts, "Step time (ms)", "number", "linear", times);
  add_shares(charts, run, axes);
  add_executors(charts, run, axes);
  const std::vector<Json> experts = experts_by_step(run);
  add_chart(charts, "Load of experts (1: even)", "number", "linear",
            {make_series("largest of any layer", "line", experts, "most", axes),
             make_series("least entropy, over log E", "line", experts, "entropy", axes)});
  add_chart(charts, "Choices dropped (%, of the layer with most)", "percent", "linear",
            {make_series("dropped", "line", experts, "dropped", axes, 100)});
  add_chart(charts, "All-to-all (bytes a rank sends in a step)", "bytes", "linear",
            {make_series("sent", "line", experts, "bytes_sent", axes)});
  add_chart(charts, "Waiting for all-to-alls (ms of a step)", "number", "linear",
            {make_series("waiting", "line", experts, "waited_s", axes, 1000)});
  return charts;
}

std::vector<size_t> thin_out(const std::vector<double>& y, size_t max_points) {
  DOVETAIL_CHECK(max_points >= 4, "{} points cannot hold both ends and a bucket", max_points);
  std::vector<size_t> kept;
  if (y.size() <= max_points) {
    kept.resize(y.size());
    std::iota(kept.begin(), kept.end(), size_t{0});
    return kept;
  }
  const size_t buckets = max_points / 2 - 1, inner = y.size() - 2;
  kept.push_back(0);
  for (size_t b = 0; b < buckets; ++b) {
    const auto begin = y.begin() + static_cast<std::ptrdiff_t>(1 + b * inner / buckets);
    const auto end = y.begin() + static_cast<std::ptrdiff_t>(1 + (b + 1) * inner / buckets);
    const auto [low, high] = std::minmax_element(begin, end);
    const auto [first, second] =
        std::minmax({low - y.begin(), high - y.begin()});  // by value, unlike minmax(a, b)
    kept.push_back(static_cast<size_t>(first));
    if (second != first) kept.push_back(static_cast<size_t>(second));
  }
  kept.push_back(y.size() - 1);
  return kept;
}

}  // namespace dovetail::train
