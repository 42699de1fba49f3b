#include "dovetail/train/metrics/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"

namespace dovetail::train {
namespace {

nlohmann::ordered_json finite_or_null(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

[[noreturn]] void throw_system_error(const char* what, const std::filesystem::path& path) {
  throw UserError(fmt::format("{} {}: {}", what, path.string(), std::strerror(errno)));
}

struct KeptLines {
  size_t bytes = 0;
  int64_t last_step = 0;
};

/// Finds the leading complete lines with rising steps that do not exceed `last_step`.
KeptLines leading_lines(std::string_view text, int64_t last_step) {
  KeptLines kept;
  while (kept.bytes < text.size()) {
    const size_t end = text.find('\n', kept.bytes);
    if (end == std::string_view::npos) break;
    const auto line = nlohmann::json::parse(text.substr(kept.bytes, end - kept.bytes), nullptr,
                                            /*allow_exceptions=*/false);
    if (!line.is_object() || !line.contains("step") || !line["step"].is_number_integer()) break;
    const auto step = line["step"].get<int64_t>();
    if (step <= kept.last_step || step > last_step) break;
    kept = {.bytes = end + 1, .last_step = step};
  }
  return kept;
}

/// Writes the keys of one task. A single task is written into the line itself. Several tasks are
/// written into "tasks", by name.
void put_ranking(nlohmann::ordered_json& line, const TaskRanking& task) {
  line["auc"] = finite_or_null(task.metrics.auc);
  if (task.metrics.auc_error > 0) line["auc_error"] = task.metrics.auc_error;
  line["normalized_entropy"] = finite_or_null(task.metrics.normalized_entropy);
  line["calibration"] = finite_or_null(task.metrics.calibration);
  if (task.gauc) line["gauc"] = finite_or_null(*task.gauc);
}

void put_tasks(nlohmann::ordered_json& line, const std::vector<TaskRanking>& tasks) {
  if (tasks.size() == 1) return put_ranking(line, tasks[0]);
  for (const TaskRanking& task : tasks) line["tasks"][task.name] = to_json(task);
}

double number_or_nan(const nlohmann::json& line, const char* key) {
  return line.at(key).is_null() ? std::numeric_limits<double>::quiet_NaN()
                                : line.at(key).get<double>();
}

TaskRanking ranking_from_json(const std::string& name, const nlohmann::json& line) {
  TaskRanking task = {.name = name,
                      .metrics = {.auc = number_or_nan(line, "auc"),
                                  .auc_error = line.value("auc_error", 0.0),
                                  .normalized_entropy = number_or_nan(line, "normalized_entropy"),
                                  .calibration = number_or_nan(line, "calibration")},
                      .gauc = std::nullopt};
  if (line.contains("log_loss")) {
    task.metrics.rows = line.at("samples").get<int64_t>();
    task.metrics.log_loss = number_or_nan(line, "log_loss");
  }
  if (line.contains("gauc")) task.gauc = number_or_nan(line, "gauc");
  return task;
}

Validation validation_from_json(const nlohmann::json& line) {
  Validation validation = {.loss = number_or_nan(line, "validation_loss")};
  if (line.contains("validation_tokens")) {
    validation.nats_per_byte = number_or_nan(line, "validation_nats_per_byte");
    validation.tokens = line.at("validation_tokens").get<int64_t>();
    return validation;
  }
  validation.tokens = line.at("validation_samples").get<int64_t>();
  validation.day = line.value("day", "");
  if (line.contains("accuracy")) {
    validation.images.emplace().accuracy = number_or_nan(line, "accuracy");
    if (line.contains("mean_iou")) validation.images->mean_iou = number_or_nan(line, "mean_iou");
  }
  if (line.contains("auc")) validation.tasks.push_back(ranking_from_json("", line));
  if (line.contains("tasks"))
    for (const auto& [name, task] : line.at("tasks").items())
      validation.tasks.push_back(ranking_from_json(name, task));
  return validation;
}

}  // namespace

nlohmann::ordered_json to_json(const StepMetrics& metrics) {
  nlohmann::ordered_json line = {{"step", metrics.step},
                                 {"loss", finite_or_null(metrics.loss)},
                                 {"lr", metrics.lr},
                                 {"grad_norm", finite_or_null(metrics.grad_norm)},
                                 {metrics.samples ? "samples" : "tokens", metrics.tokens}};
  if (metrics.router_loss) line["router_loss"] = finite_or_null(*metrics.router_loss);
  if (metrics.auxiliary_loss) line["auxiliary_loss"] = finite_or_null(*metrics.auxiliary_loss);
  if (metrics.skipped) line["skipped"] = true;
  if (metrics.validation) line.update(to_json(*metrics.validation));
  return line;
}

nlohmann::ordered_json to_json(const Validation& validation) {
  nlohmann::ordered_json line = {{"validation_loss", finite_or_null(validation.loss)}};
  if (!validation.tasks.empty()) {
    if (!validation.day.empty()) line["day"] = validation.day;
    line["validation_samples"] = validation.tokens;
    put_tasks(line, validation.tasks);
  } else if (const auto& images = validation.images) {
    line["validation_samples"] = validation.tokens;
    line["accuracy"] = images->accuracy;
    if (images->mean_iou) line["mean_iou"] = finite_or_null(*images->mean_iou);
  } else {
    line["validation_nats_per_byte"] = finite_or_null(validation.nats_per_byte);
    line["validation_tokens"] = validation.tokens;
  }
  return line;
}

StepMetrics step_metrics_from_json(const nlohmann::json& line) {
  const auto number = [&](const char* key) { return number_or_nan(line, key); };
  const bool samples = line.contains("samples");
  StepMetrics metrics = {.step = line.at("step").get<int64_t>(),
                         .loss = number("loss"),
                         .lr = number("lr"),
                         .grad_norm = number("grad_norm"),
                         .tokens = line.at(samples ? "samples" : "tokens").get<int64_t>(),
                         .samples = samples,
                         .skipped = line.value("skipped", false)};
  if (line.contains("router_loss")) metrics.router_loss = number("router_loss");
  if (line.contains("auxiliary_loss")) metrics.auxiliary_loss = number("auxiliary_loss");
  if (line.contains("validation_loss")) metrics.validation = validation_from_json(line);
  return metrics;
}

nlohmann::ordered_json to_json(const TaskRanking& task) {
  nlohmann::ordered_json json = {{"samples", task.metrics.rows},
                                 {"log_loss", finite_or_null(task.metrics.log_loss)}};
  put_ranking(json, task);
  return json;
}

nlohmann::ordered_json to_json(const StepTimings& timings) {
  // Rounds to microseconds. The clocks are less precise, and short numbers keep the file small.
  const auto rounded = [](double value) { return std::round(value * 1000.0) / 1000.0; };
  nlohmann::ordered_json line = {{"step", timings.step},
                                 {"time_s", rounded(timings.time_s)},
                                 {"step_ms", rounded(timings.step_ms)},
                                 {"data_ms", rounded(timings.data_ms)},
                                 {"communication_ms", rounded(timings.communication_ms)},
                                 {timings.samples ? "samples_per_s" : "tokens_per_s",
                                  std::round(timings.tokens_per_s * 10.0) / 10.0},
                                 {"memory_bytes", timings.memory_bytes}};
  if (timings.compute_ms > 0) line["compute_ms"] = rounded(timings.compute_ms);
  if (timings.hit_rate) line["hit_rate"] = std::round(*timings.hit_rate * 1e5) / 1e5;
  if (timings.table_bytes > 0) line["table_bytes"] = timings.table_bytes;
  if (timings.utilization > 0) line["utilization"] = std::round(timings.utilization * 1e5) / 1e5;
  if (timings.evaluation_ms > 0) line["evaluation_ms"] = rounded(timings.evaluation_ms);
  if (timings.checkpoint_ms > 0) line["checkpoint_ms"] = rounded(timings.checkpoint_ms);
  for (const ExecutorTimings& executor : timings.executors)
    line["executors"][executor.name] = {
        {"micro_batches", executor.micro_batches},
        {"compute_ms", rounded(executor.compute_ms)},
        {"copy_ms", rounded(executor.copy_ms)},
        {"add_ms", rounded(executor.add_ms)},
        {"tokens_per_s", std::round(executor.tokens_per_s * 10.0) / 10.0}};
  return line;
}

StepLog::StepLog(std::filesystem::path path, int64_t last_step) : path_(std::move(path)) {
  KeptLines kept;
  if (std::filesystem::exists(path_)) kept = leading_lines(read_file(path_), last_step);
  last_kept_ = kept.last_step;
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0) throw_system_error("cannot open", path_);
  if (::ftruncate(fd_, static_cast<off_t>(kept.bytes)) != 0) {
    const int reason = errno;
    ::close(fd_);
    errno = reason;
    throw_system_error("cannot cut back", path_);
  }
}

StepLog::~StepLog() { ::close(fd_); }

void StepLog::append(const nlohmann::ordered_json& line) {
  const std::string text = line.dump() + "\n";
  const ssize_t written = ::write(fd_, text.data(), text.size());
  if (written < 0) throw_system_error("cannot write", path_);
  if (static_cast<size_t>(written) != text.size()) {
    errno = ENOSPC;
    throw_system_error("cannot write a whole line to", path_);
  }
}

void StepLog::sync() {
  if (::fdatasync(fd_) != 0) throw_system_error("cannot sync", path_);
}

}  // namespace dovetail::train
