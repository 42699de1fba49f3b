#include "dovetail/cli/commands/eval_tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/machine.h"
#include "dovetail/cli/parse/output.h"
#include "dovetail/models/gpt.h"
#include "dovetail/train/run/progress.h"
#include "dovetail/train/suites/read_task.h"
#include "dovetail/train/suites/suite_score.h"

namespace dovetail::cli {
namespace {

using nlohmann::ordered_json;
using train::MultipleChoiceResult;
using train::SuiteScore;
using train::SuiteTask;

struct ScoredTasks {
  std::vector<const SuiteTask*> tasks;
  std::vector<MultipleChoiceResult> results;

  void add(const SuiteTask& task, const MultipleChoiceResult& result) {
    tasks.push_back(&task);
    results.push_back(result);
  }
};

ordered_json to_json(const MultipleChoiceResult& r, const std::string& task, int64_t shots) {
  return {{"task", task},
          {"shots", shots},
          {"items", r.items},
          {"accuracy", r.accuracy},
          {"standard_error", r.standard_error},
          {"accuracy_normalized", r.accuracy_normalized},
          {"standard_error_normalized", r.standard_error_normalized},
          {"accuracy_per_byte", r.accuracy_per_byte},
          {"chance", r.chance}};
}

void add_score(const SuiteScore& score, ordered_json& json) {
  json["items"] = score.items;
  json["accuracy"] = score.accuracy;
  json["standard_error"] = score.standard_error;
  json["accuracy_normalized"] = score.accuracy_normalized;
  json["standard_error_normalized"] = score.standard_error_normalized;
}

std::string percent(double accuracy, double standard_error) {
  return fmt::format("{:.2f} % ± {:.2f}", 100 * accuracy, 100 * standard_error);
}

/// Returns "accuracy A ± E", with the normalised accuracy if `normalized`. `score` is a SuiteScore
/// or a MultipleChoiceResult.
template <class Score>
std::string accuracies(const Score& score, bool normalized) {
  std::string text = fmt::format("accuracy {}", percent(score.accuracy, score.standard_error));
  if (normalized)
    text += fmt::format(", normalised {}",
                        percent(score.accuracy_normalized, score.standard_error_normalized));
  return text;
}

}  // namespace

/// Writer of one JSON line per scored question.
class TaskSet::ItemLog {
 public:
  explicit ItemLog(const std::string& path) {
    if (!path.empty() && rank_from_environment() == 0) file_.emplace(path);
  }

  void add(const std::string& task, const train::MultipleChoiceQuestion& question,
           const train::ScoredQuestion& scored) {
    if (!file_) return;
    const ordered_json line = {{"task", task},
                               {"item", scored.index},
                               {"prompts", question.prompts},
                               {"continuations", question.continuations},
                               {"answer", question.answer},
                               {"log_likelihoods", scored.log_likelihoods},
                               {"chosen", scored.chosen},
                               {"chosen_normalized", scored.chosen_normalized},
                               {"chosen_per_byte", scored.chosen_per_byte}};
    file_->write(line.dump() + "\n");
  }

  void commit() {
    if (file_) file_->commit();
  }

 private:
  std::optional<AtomicFile> file_;
};

TaskSet::TaskSet(const TaskEvaluation& options) : options_(options) {
  for (const std::string& path : options.files) {
    files_.push_back(make_questions(
        train::read_multiple_choice(path),
        {.shots = std::max<int64_t>(options.shots, 0), .max_items = options.max_items}));
  }
  for (const std::string& name : options.suites) {
    LoadedSuite loaded{.suite = train::find_suite(name)};
    if (options.shots >= 0) loaded.suite.shots = options.shots;
    for (const train::SuiteTask& task : loaded.suite.tasks) {
      loaded.questions.push_back(read_suite_task(
          task, options.folder, {.shots = loaded.suite.shots, .max_items = options.max_items}));
    }
    suites_.push_back(std::move(loaded));
  }
}

MultipleChoiceResult TaskSet::score_task(const train::LoadedModel& loaded, const std::string& name,
                                         const Questions& questions, ItemLog& log) const {
  train::TerminalLine line;
  return score_multiple_choice(
      *loaded.model, *loaded.tokenizer, questions, [&](const train::ScoredQuestion& scored) {
        log.add(name, questions[scored.index], scored);
        if (line.on_terminal())
          line.show(fmt::format(" {}  {} of {} items", name,
                                format_grouped(static_cast<int64_t>(scored.index + 1)),
                                format_grouped(static_cast<int64_t>(questions.size()))));
      });
}

void TaskSet::score_suite(const train::LoadedModel& loaded, const LoadedSuite& loaded_suite,
                          ItemLog& log, ordered_json& result,
                          std::vector<std::vector<std::string>>& rows) const {
  const train::Suite& suite = loaded_suite.suite;
  ScoredTasks all;
  std::map<std::string, ScoredTasks> categories;
  for (size_t i = 0; i < suite.tasks.size(); ++i) {
    const train::SuiteTask& task = suite.tasks[i];
    all.add(task, score_task(loaded, task.name, loaded_suite.questions[i], log));
    if (!task.category.empty()) categories[task.category].add(task, all.results.back());
  }
  const SuiteScore whole = combine_results(suite.weights, all.tasks, all.results);
  ordered_json json = {{"suite", suite.name}, {"data", options_.folder}, {"shots", suite.shots}};
  add_score(whole, json);
  rows.push_back(
      {suite.name,
       fmt::format("{}, {} tasks, {} items, {} shots",
                   accuracies(whole, std::ranges::any_of(suite.tasks, &SuiteTask::normalized)),
                   suite.tasks.size(), format_grouped(whole.items), suite.shots)});
  for (const auto& [name, members] : categories) {
    const SuiteScore score = combine_results(suite.weights, members.tasks, members.results);
    ordered_json entry = {{"category", name}, {"tasks", members.tasks.size()}};
    add_score(score, entry);
    json["categories"].push_back(entry);
    rows.push_back({"  " + name, fmt::format("{}, {} tasks, {} items", accuracies(score, false),
                                             members.tasks.size(), format_grouped(score.items))});
  }
  for (size_t i = 0; i < all.tasks.size(); ++i) {
    const SuiteTask& task = *all.tasks[i];
    const MultipleChoiceResult& r = all.results[i];
    json["tasks"].push_back(to_json(r, task.name, suite.shots));
    rows.push_back({"  " + task.name,
                    fmt::format("{}, chance {:.2f} %, {} items", accuracies(r, task.normalized),
                                100 * r.chance, format_grouped(r.items))});
  }
  result["suites"].push_back(json);
}

void TaskSet::score(const train::LoadedModel& loaded, ordered_json& result,
                    std::vector<std::vector<std::string>>& rows) const {
  ItemLog log(options_.log);
  for (size_t i = 0; i < files_.size(); ++i) {
    const std::string& path = options_.files[i];
    const int64_t shots = std::max<int64_t>(options_.shots, 0);
    const MultipleChoiceResult r = score_task(loaded, path, files_[i], log);
    result["tasks"].push_back(to_json(r, path, shots));
    rows.push_back({path, fmt::format("accuracy {}, normalised {:.2f} %, chance {:.2f} %",
                                      percent(r.accuracy, r.standard_error),
                                      100 * r.accuracy_normalized, 100 * r.chance)});
    rows.push_back(
        {"  measured on", fmt::format("{} items, {} shots", format_grouped(r.items), shots)});
  }
  for (const LoadedSuite& suite : suites_) score_suite(loaded, suite, log, result, rows);
  log.commit();
  if (!options_.log.empty()) rows.push_back({"items", options_.log});
}

}  // namespace dovetail::cli
