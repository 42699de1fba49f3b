#include "dovetail/train/loop/run_output.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "dovetail/base/log.h"
#include "dovetail/base/trace.h"
#include "dovetail/train/ranks/executor_log.h"

namespace dovetail::train {
namespace {

constexpr const char *kQuantizationFile = "quantization.jsonl", *kExpertsFile = "experts.jsonl",
                     *kTablesFile = "tables.jsonl", *kBalanceFile = "balance.jsonl";

void add_rankings(const std::vector<TaskRanking>& tasks,
                  std::vector<std::pair<std::string, double>>& values) {
  for (const TaskRanking& task : tasks) {
    const std::string of = tasks.size() > 1 ? " " + task.name : "";
    values.insert(values.end(),
                  {{"ranking/auc" + of, task.metrics.auc},
                   {"ranking/normalized_entropy" + of, task.metrics.normalized_entropy},
                   {"ranking/calibration" + of, task.metrics.calibration}});
    if (tasks.size() > 1) values.emplace_back("ranking/log_loss" + of, task.metrics.log_loss);
    if (task.gauc) values.emplace_back("ranking/gauc" + of, *task.gauc);
  }
}

/// Returns "0.6561", or for several tasks "late 0.6561, cancelled 0.7020".
std::string auc_text(const std::vector<TaskRanking>& tasks) {
  std::vector<std::string> parts;
  parts.reserve(tasks.size());
  for (const TaskRanking& task : tasks)
    parts.push_back(
        fmt::format("{}{:.4f}", tasks.size() > 1 ? task.name + " " : "", task.metrics.auc));
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace

RunOutput::RunOutput(const RunFolder& folder, const RunConfig& config, int64_t first_step,
                     int64_t total_steps, bool quiet)
    : folder_(folder),
      log_(config.log),
      unit_(config.unit()),
      first_step_(first_step),
      metrics_(folder.path() / "metrics.jsonl", first_step),
      timings_(folder.path() / "timings.jsonl", first_step),
      progress_(first_step, total_steps,
                quiet ? Progress::Mode::kOff : Progress::Mode::kAutomatic) {
  if (metrics_.last_kept() < first_step) {
    log_warning(
        "{}/metrics.jsonl ends at step {}, the checkpoint is of step {}: the steps between are "
        "missing from it",
        folder.path().string(), metrics_.last_kept(), first_step);
  }
  for (auto [log, file] :
       {std::pair{&quantization_, kQuantizationFile}, std::pair{&experts_, kExpertsFile},
        std::pair{&tables_, kTablesFile}, std::pair{&balance_, kBalanceFile}}) {
    if (std::filesystem::exists(folder.path() / file))
      log->emplace(folder.path() / file, first_step);
  }
  // A run that has no steps left needs no event file.
  if (log_.tensorboard && first_step < total_steps)
    events_.emplace(folder.path() / "events", first_step + 1);
}

bool RunOutput::traced(int64_t step) const {
  return std::find(log_.trace_steps.begin(), log_.trace_steps.end(), step) !=
         log_.trace_steps.end();
}

void RunOutput::begin_step(int64_t step) {
  if (traced(step)) start_trace(/*aten=*/true);
}

void RunOutput::end_step(int64_t step) {
  if (traced(step)) stop_trace(folder_.path() / fmt::format("trace-{}.json", step));
}

void RunOutput::write(const StepMetrics& metrics) { metrics_.append(to_json(metrics)); }

void RunOutput::write(const StepMetrics& metrics, const StepTimings& timings) {
  timings_.append(to_json(timings));
  if (metrics.validation) {
    validation_loss_ = metrics.validation->loss;
    auc_ = auc_text(metrics.validation->tasks);
  }
  if (events_) {
    const std::string rate_name = "speed/" + unit_ + "s_per_s";
    std::vector<std::pair<std::string, double>> named;
    std::vector<std::pair<std::string_view, double>> values = {
        {"loss/train", metrics.loss},
        {"optimizer/lr", metrics.lr},
        {"optimizer/grad_norm", metrics.grad_norm},
        {rate_name, timings.tokens_per_s}};
    if (metrics.validation) values.emplace_back("loss/validation", metrics.validation->loss);
    if (metrics.validation) add_rankings(metrics.validation->tasks, named);
    if (metrics.validation && metrics.validation->images) {
      const ImageScores& images = *metrics.validation->images;
      named.emplace_back("images/accuracy", images.accuracy);
      if (images.mean_iou) named.emplace_back("images/mean_iou", *images.mean_iou);
    }
    values.insert(values.end(), named.begin(), named.end());
    if (metrics.auxiliary_loss) values.emplace_back("loss/auxiliary", *metrics.auxiliary_loss);
    if (metrics.router_loss) values.emplace_back("loss/router", *metrics.router_loss);
    if (timings.utilization > 0) values.emplace_back("speed/utilization", timings.utilization);
    events_->scalars(metrics.step, values);
  }
  progress_.update({.step = metrics.step,
                    .loss = metrics.loss,
                    .validation_loss = validation_loss_,
                    .auc = auc_,
                    .tokens_per_s = timings.tokens_per_s,
                    .rate_unit = unit_ == "token" ? "tok/s" : "samples/s",
                    .utilization = timings.utilization},
                   (timings.step_ms + timings.evaluation_ms + timings.checkpoint_ms) / 1000.0);
}

void RunOutput::write_quantization(const nlohmann::ordered_json& statistics) {
  if (!quantization_) quantization_.emplace(folder_.path() / kQuantizationFile, first_step_);
  quantization_->append(statistics);
  if (!events_) return;
  std::vector<std::pair<std::string, double>> named;
  for (const auto& t : statistics.at("tensors")) {
    for (const char* what : {"underflow", "saturation", "sqnr_db"}) {
      if (t[what].is_number())
        named.emplace_back(fmt::format("{}/{} {}", what, t["layer"].get<std::string>(),
                                       t["tensor"].get<std::string>()),
                           t[what].get<double>());
    }
  }
  events_->scalars(statistics.at("step").get<int64_t>(), {named.begin(), named.end()});
}

void RunOutput::write_tables(const nlohmann::ordered_json& counters) {
  if (!tables_) tables_.emplace(folder_.path() / kTablesFile, first_step_);
  tables_->append(counters);
}

void RunOutput::write_shares(const nlohmann::ordered_json& shares) {
  if (!balance_) balance_.emplace(folder_.path() / kBalanceFile, first_step_);
  balance_->append(shares);
  if (!events_) return;
  std::vector<std::pair<std::string, double>> named;
  for (const double share : shares.at("shares"))
    named.emplace_back(
        fmt::format("balance/micro-batches of {}", sharer_name(shares, named.size())), share);
  events_->scalars(shares.at("step").get<int64_t>(), {named.begin(), named.end()});
}

void RunOutput::write_experts(const nlohmann::ordered_json& statistics) {
  if (!experts_) experts_.emplace(folder_.path() / kExpertsFile, first_step_);
  experts_->append(statistics);
  if (!events_) return;
  std::vector<std::pair<std::string, double>> named;
  for (const auto& layer : statistics.at("layers")) {
    const auto name = layer["layer"].get<std::string>();
    const auto load = layer["load"].get<std::vector<double>>();
    named.emplace_back("experts/largest load " + name, *std::max_element(load.begin(), load.end()));
    named.emplace_back("experts/dropped " + name, layer["dropped"].get<double>());
    named.emplace_back("experts/entropy " + name, layer["entropy"].get<double>());
    for (const char* chosen : {"r", "overlap"})
      if (layer.contains(chosen))
        named.emplace_back(fmt::format("experts/{} {}", chosen, name), layer[chosen].get<double>());
  }
  if (statistics.contains("all_to_all")) {
    for (const auto& [what, value] : statistics["all_to_all"].items())
      named.emplace_back("all_to_all/" + what, value.get<double>());
  }
  events_->scalars(statistics.at("step").get<int64_t>(), {named.begin(), named.end()});
}

void RunOutput::say(const std::string& line) {
  progress_.interrupt();
  log_info("{}", line);
}

void RunOutput::warn(const std::string& line) {
  progress_.interrupt();
  log_warning("{}", line);
}

}  // namespace dovetail::train
