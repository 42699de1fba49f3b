#include "dovetail/train/report/run_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <string_view>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/json_fault.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/median.h"
#include "dovetail/train/report/run_files.h"
#include "dovetail/train/report/run_page.h"
#include "dovetail/train/run/progress.h"

namespace dovetail::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// Means over the days on which a run was measured, weighted by their rows.
struct DayMeans {
  int64_t days = 0;
  double rows = 0, loss = 0;
  /// By task: weighted sum and rows of the days that have an AUC.
  std::map<std::string, std::pair<double, double>> auc;

  void add(double day_rows, double day_loss,
           const std::vector<std::pair<std::string, double>>& day_auc) {
    ++days;
    rows += day_rows;
    loss += day_rows * day_loss;
    for (const auto& [task, value] : day_auc) {
      auc[task].first += day_rows * value;
      auc[task].second += day_rows;
    }
  }
};

struct Figures {
  int64_t step = 0, steps = 0, skipped = 0;
  double loss = kNaN, validation_loss = kNaN, validation_per_byte = kNaN, tokens = kNaN;
  double accuracy = kNaN, mean_iou = kNaN;  ///< scores of a vision model
  /// By task of a recommender. A single task has no name.
  std::vector<std::pair<std::string, double>> auc;
  /// Validation losses that were measured on the same tokens.
  double latest_loss = kNaN, best_loss = kNaN;
  double seconds = 0;
  int64_t best_step = 0;
  DayMeans by_day;
  bool finished = false;
};

/// Returns the AUCs in a line, by task. Tasks without an AUC are left out.
std::vector<std::pair<std::string, double>> auc_of_tasks(const Json& line) {
  std::vector<std::pair<std::string, double>> found;
  const auto add = [&](const std::string& task, const Json& keys) {
    if (const double auc = number_of(keys, "auc"); std::isfinite(auc))
      found.emplace_back(task, auc);
  };
  add("", line);
  if (line.contains("tasks"))
    for (const auto& [task, keys] : line["tasks"].items()) add(task, keys);
  return found;
}

Figures read_figures(const RunFiles& run) {
  Figures f{.steps = run.machine.is_object() ? run.machine.value("steps", run.config.train.steps)
                                             : run.config.train.steps};
  double compared_tokens = kNaN;
  for (const Json& line : run.metrics) {
    f.step = line["step"].get<int64_t>();
    f.skipped += line.value("skipped", false);
    if (const double loss = number_of(line, "loss"); std::isfinite(loss)) f.loss = loss;
    if (const double tokens = number_of(line, (std::string(run.config.unit()) + "s").c_str());
        std::isfinite(tokens))
      f.tokens = tokens;
    const double validation = number_of(line, "validation_loss");
    if (!std::isfinite(validation)) continue;
    f.validation_loss = validation;
    f.validation_per_byte = number_of(line, "validation_nats_per_byte");
    f.auc = auc_of_tasks(line);
    f.accuracy = number_of(line, "accuracy");
    f.mean_iou = number_of(line, "mean_iou");
    // Losses compare only on the same tokens. The last evaluation usually reads more tokens than
    // the ones before.
    const double tokens = number_of(
        line, line.contains("validation_samples") ? "validation_samples" : "validation_tokens");
    if (line.contains("day")) {
      f.by_day.add(tokens, validation, f.auc);
      continue;
    }
    if (std::isnan(f.latest_loss)) compared_tokens = tokens;
    if (tokens != compared_tokens && !std::isnan(compared_tokens)) continue;
    f.latest_loss = validation;
    if (!(validation >= f.best_loss)) {
      f.best_loss = validation;
      f.best_step = f.step;
    }
  }
  for (const Json& line : run.timings) {
    for (const char* key : {"step_ms", "evaluation_ms", "checkpoint_ms"}) {
      if (const double ms = number_of(line, key); std::isfinite(ms)) f.seconds += ms / 1000;
    }
  }
  f.finished = run.machine.is_object() ? run.machine.value("finished", false) : f.step >= f.steps;
  return f;
}

std::string verdict(const Figures& f, const RunConfig& config) {
  const char* unit = config.loss_unit();
  if (f.step == 0) return "No step has been taken yet.";
  std::string text =
      f.step >= f.steps
          ? fmt::format("Trained all {} steps", format_grouped(f.steps))
          : fmt::format("{} of {} steps so far", format_grouped(f.step), format_grouped(f.steps));
  if (std::isfinite(f.validation_loss)) {
    text += ":";
    for (const auto& [task, auc] : f.auc)
      text += fmt::format(" AUC {:.4f}{},", auc, task.empty() ? "" : " of " + task);
    if (std::isfinite(f.accuracy)) text += fmt::format(" accuracy {:.1f} %,", 100 * f.accuracy);
    text += fmt::format(" {:.4g} nats per {} on held-out {}", f.validation_loss, unit,
                        config.kind() == RunKind::kGpt           ? "text"
                        : config.kind() == RunKind::kRecommender ? "rows"
                                                                 : "images");
    if (std::isfinite(f.validation_per_byte))
      text += fmt::format(", {:.4g} per byte", f.validation_per_byte);
    // A rise of half a percent is no trend.
    if (f.latest_loss > 1.005 * f.best_loss) {
      text += fmt::format("; it was best at step {} ({:.4g}) and has risen since: overfitting",
                          format_grouped(f.best_step), f.best_loss);
    }
  } else if (std::isfinite(f.loss)) {
    text += fmt::format(": training loss {:.4g} nats per {}, not validated", f.loss, unit);
  }
  if (f.skipped > 0)
    text += fmt::format("; {} step{} skipped as not finite", f.skipped,
                        f.skipped == 1 ? " was" : "s were");
  return text + ".";
}

/// Returns the median of a column of numbers. Throughput has outliers while other programs run.
double median(const std::vector<Json>& lines, const char* key) {
  std::vector<double> values;
  for (const Json& line : lines) {
    if (const double value = number_of(line, key); std::isfinite(value)) values.push_back(value);
  }
  if (values.empty()) return kNaN;
  return dovetail::median(std::move(values));
}

Json make_tiles(const RunFiles& run, const Figures& f) {
  Json tiles = Json::array();
  const auto add = [&](double value, const char* label, const std::string& text,
                       const std::string& note) {
    if (std::isfinite(value)) tiles.push_back({{"label", label}, {"value", text}, {"note", note}});
  };
  add(f.validation_loss, "validation loss", fmt::format("{:.4f}", f.validation_loss),
      run.config.kind() == RunKind::kGpt
          ? fmt::format("perplexity {:.4g}", std::exp(f.validation_loss))
          : fmt::format("nats per {}", run.config.loss_unit()));
  add(f.accuracy, "accuracy", fmt::format("{:.1f} %", 100 * f.accuracy),
      fmt::format("of held-out {}", run.config.learns_masks() ? "pixels" : "images"));
  add(f.mean_iou, "mean IoU", fmt::format("{:.4f}", f.mean_iou), "of held-out masks");
  for (const auto& [task, auc] : f.auc)
    add(auc, task.empty() ? "AUC" : ("AUC, " + task).c_str(), fmt::format("{:.4f}", auc),
        "of held-out rows");
  if (f.by_day.days > 0) {
    const std::string mean = fmt::format("mean of {} days", format_grouped(f.by_day.days)),
                      note = "weighed by rows";
    add(f.by_day.loss / f.by_day.rows, ("validation loss, " + mean).c_str(),
        fmt::format("{:.4f}", f.by_day.loss / f.by_day.rows), note);
    for (const auto& [task, sum] : f.by_day.auc)
      add(sum.first / sum.second,
          fmt::format("AUC{}, {}", task.empty() ? "" : ", " + task, mean).c_str(),
          fmt::format("{:.4f}", sum.first / sum.second), note);
  }
  add(f.validation_per_byte, "nats per byte", fmt::format("{:.4f}", f.validation_per_byte),
      "of held-out text");
  add(f.loss, "training loss", fmt::format("{:.4f}", f.loss), "last step");
  const std::string unit = run.config.unit();
  add(f.tokens, (unit + "s").c_str(), format_count(f.tokens),
      fmt::format("{} steps", format_grouped(f.step)));
  const double parameters = run.machine.is_object() ? number_of(run.machine, "parameters") : kNaN;
  const double flops = run.machine.is_object() ? number_of(run.machine, "flops_per_token") : kNaN;
  add(parameters, "parameters", format_count(parameters),
      std::isfinite(flops) ? format_flops(flops) + " / " + unit : "");
  const double rate = median(run.timings, (unit + "s_per_s").c_str()),
               utilization = median(run.timings, "utilization");
  add(rate, (unit + "s per second").c_str(), format_count(rate),
      std::isfinite(utilization) ? fmt::format("{:.0f} % of peak", 100 * utilization) : "median");
  add(f.seconds > 0 ? f.seconds : kNaN, "time", format_duration(f.seconds), "with evaluation");
  const Json peak = value_at(run.machine, {"memory", "peak_bytes"});
  if (peak.is_number()) {
    const Json estimate = value_at(run.machine, {"memory", "estimate_bytes"}),
               most = value_at(run.machine, {"memory", "most_bytes"});
    std::string note =
        estimate.is_number() ? "estimated " + format_bytes(estimate.get<double>()) : "";
    if (!note.empty() && most.is_number() && most > estimate)
      note += " to " + format_bytes(most.get<double>());
    add(1, "peak memory", format_bytes(peak.get<double>()), note);
  }
  return tiles;
}

std::string shell_quoted(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,+@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

Json make_commands(const RunFiles& run) {
  Json commands = Json::array();
  const Json words = value_at(run.machine, {"command_line"});
  if (words.is_array() && !words.empty()) {
    std::string line = "dovetail";
    for (size_t i = 1; i < words.size(); ++i)
      line +=
          " " + shell_quoted(words[i].is_string() ? words[i].get<std::string>() : words[i].dump());
    commands.push_back(line);
  }
  commands.push_back(fmt::format("dovetail train {} --set run.folder={}",
                                 shell_quoted((run.folder / "config.toml").string()),
                                 shell_quoted(run.folder.string() + "-again")));
  return commands;
}

Json make_decisions(const RunFiles& run) {
  Json decisions = Json::array();
  const auto add = [&](const char* what, const std::string& asked, const Json& chosen,
                       const std::string& reason) {
    if (!chosen.is_null()) {
      decisions.push_back(
          {{"what", what},
           {"asked", asked},
           {"chosen", chosen.is_string() ? chosen.get<std::string>() : chosen.dump()},
           {"reason", reason}});
    }
  };
  const Json reason = value_at(run.machine, {"precision", "reason"});
  add("precision.recipe", run.config.precision.recipe,
      value_at(run.machine, {"precision", "compute"}),
      reason.is_string() && !reason.get<std::string>().empty() ? reason.get<std::string>()
                                                               : "as asked");
  add("run.device", run.config.run.device, value_at(run.machine, {"device"}),
      run.config.run.device == "auto" ? "the best device that this build and this machine have"
      : run.config.run.names_executors()
          ? "device of weights and optimizer; the executors are as asked"
          : "as asked");
  add("run.threads", std::to_string(run.config.run.threads), value_at(run.machine, {"threads"}),
      run.config.run.names_executors() ? "threads of the first executor, or the cores left to it"
      : run.config.run.threads == 0    ? "cores of the machine divided by its ranks"
                                       : "as asked");
  const std::string& mode = run.config.balance.mode;
  if (mode != "off" && !run.balance.empty()) {
    const auto moves = std::ranges::count_if(
        run.balance, [](const Json& line) { return line.contains("before_ms"); });
    const char* const sharers = run.config.run.names_executors() ? "executors" : "ranks";
    add("balance.mode", mode, value_at(run.balance.back(), {"shares"}),
        mode == "auto"
            ? fmt::format("micro-batches of the {}, by the time that theirs took; moved {} times",
                          sharers, moves)
            : fmt::format("micro-batches of the {}, as asked", sharers));
  }
  for (const Json& line : run.balance) {
    for (const Json& left_out : value_at(line, {"left_out"}))
      add("balance.gain", fmt::format("{}", run.config.balance.gain),
          fmt::format("{} left out from step {} on", value_at(left_out, {"executor"}).dump(),
                      line["step"].dump()),
          fmt::format("a step would take {:.3g} ms with it and {:.3g} ms without it",
                      number_of(left_out, "with_ms"), number_of(left_out, "without_ms")));
  }
  for (const Json& step : value_at(run.machine, {"resumed_from"})) {
    add("resumed", "", fmt::format("from step {}", step.dump()),
        "a process took the run up again from this checkpoint");
  }
  return decisions;
}

Json make_machine(const RunFiles& run) {
  Json rows = Json::array();
  const auto add = [&](const char* label, const Json& value,
                       const std::function<std::string(const Json&)>& words = {}) {
    if (value.is_null()) return;
    rows.push_back({label, words               ? words(value)
                           : value.is_string() ? value.get<std::string>()
                                               : value.dump()});
  };
  const auto bytes = [](const Json& value) {
    return format_bytes(value.is_number() ? value.get<double>() : 0);
  };
  const auto rate = [](const Json& value) {
    return format_flops(value.is_number() ? value.get<double>() : 0) + "/s";
  };
  const auto count = [](const Json& value) {
    return format_grouped(value.is_number() ? value.get<int64_t>() : 0);
  };
  add("Dovetail", value_at(run.machine, {"version"}));
  add("processor", value_at(run.machine, {"machine", "cpu"}));
  add("cores", value_at(run.machine, {"machine", "cores"}));
  add("SIMD", value_at(run.machine, {"machine", "simd"}));
  add("memory", value_at(run.machine, {"machine", "memory_bytes"}), bytes);
  add("ranks", value_at(run.machine, {"ranks"}));
  add("threads per rank", value_at(run.machine, {"threads"}));
  add("measured peak", value_at(run.machine, {"peak_flops"}), rate);
  add("text", value_at(run.machine, {"data", "path"}));
  for (const Json& digest : value_at(run.machine, {"data", "sha256"}))
    add("sha256 of the text", digest);
  add("tokenizer", value_at(run.machine, {"data", "tokenizer"}));
  add("vocabulary", value_at(run.machine, {"data", "vocab_size"}), count);
  add("training tokens", value_at(run.machine, {"data", "train_tokens"}), count);
  add("validation tokens", value_at(run.machine, {"data", "validation_tokens"}), count);
  return rows;
}

/// Returns the quantization statistics of each tensor in the last recorded step. The tensor with
/// the worst signal-to-noise ratio comes first.
Json make_quantization(const RunFiles& run) {
  if (run.quantization.empty()) return nullptr;
  const Json& last = run.quantization.back();
  std::vector<Json> tensors = value_at(last, {"tensors"});
  const auto quality = [](const Json& t) {
    const double decibels = number_of(t, "sqnr_db");
    return std::isnan(decibels) ? std::numeric_limits<double>::infinity() : decibels;
  };
  std::stable_sort(tensors.begin(), tensors.end(),
                   [&](const Json& a, const Json& b) { return quality(a) < quality(b); });
  Json rows = Json::array();
  for (const Json& t : tensors) {
    const auto percent = [&](const char* key) {
      return fmt::format("{:.3g} %", 100 * number_of(t, key));
    };
    const auto word = [&](const char* key) { return t.value(key, std::string()); };
    const Json scales = value_at(t, {"scales"});
    rows.push_back(
        {word("layer"), word("tensor"),
         fmt::format("{}, {}, {}", word("format"), word("blocks"), word("scale_mode")),
         fmt::format("{:.1f} dB", quality(t)), percent("underflow"), percent("saturation"),
         percent("saturating_blocks"), percent("saturating_blocks_under_floor"),
         fmt::format("{:.3g}", number_of(t, "amax")),
         scales.is_array() ? fmt::format("2^{} to 2^{}", scales.at(0).dump(), scales.at(1).dump())
                           : "-"});
  }
  return {{"step", last["step"]}, {"rows", rows}};
}

Json skipped_steps(const RunFiles& run) {
  Json steps = Json::array();
  for (const Json& line : run.metrics) {
    if (line.value("skipped", false)) steps.push_back(line["step"]);
  }
  return steps;
}

Json page_data(const RunFiles& run) {
  const Figures figures = read_figures(run);
  const Json cpu = value_at(run.machine, {"machine", "cpu"});
  return {{"name", run.config.run.name},
          {"model", run.config.kind() == RunKind::kRecommender ? run.config.recommender.model
                    : run.config.kind() == RunKind::kVision    ? run.config.vision.model
                                                               : run.config.model.preset},
          {"where", cpu.is_string() ? cpu.get<std::string>() : ""},
          {"finished", figures.finished},
          {"unit", run.config.unit()},
          {"verdict", verdict(figures, run.config)},
          {"tiles", make_tiles(run, figures)},
          {"charts", make_charts(run)},
          {"skipped_steps", skipped_steps(run)},
          {"samples", run.samples.is_array() ? run.samples : Json::array()},
          {"quantization", make_quantization(run)},
          {"experts", make_experts(run)},
          {"memory", make_memory(run)},
          {"decisions", make_decisions(run)},
          {"machine", make_machine(run)},
          {"commands", make_commands(run)},
          {"config", run.config_text}};
}

}  // namespace

Json report_data(const fs::path& run_folder) {
  const RunFiles run = read_run(run_folder);
  try {
    return page_data(run);
  } catch (const nlohmann::json::exception& error) {
    throw UserError(fmt::format("{}: a file of the run is not as `dovetail train` writes it: {}",
                                run_folder.string(), json_fault(error)),
                    "look for a damaged .json or .jsonl file there, then restore or remove it");
  }
}

fs::path write_report(const fs::path& run_folder) {
  fs::path path = run_folder / "report.html";
  write_file_atomically(path, report_page(report_data(run_folder)));
  return path;
}

}  // namespace dovetail::train
