#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dovetail/train/gpt/load_model.h"
#include "dovetail/train/gpt/multiple_choice.h"
#include "dovetail/train/suites/task.h"

namespace dovetail::cli {

/// Options of `dovetail eval` about multiple-choice tasks.
struct TaskEvaluation {
  std::vector<std::string> files;   ///< --task: JSONL files
  std::vector<std::string> suites;  ///< --suite: names of suites
  std::string folder;               ///< --data: folder of the suites' data sets
  int64_t shots = -1;               ///< --shots; -1: 0 for a file, the suite's number for a suite
  int64_t max_items = 0;            ///< --limit; 0: all
  std::string log;                  ///< --log-items: JSONL to write; empty: none

  bool any() const { return !files.empty() || !suites.empty(); }
};

/// Multiple-choice tasks in memory, ready to score.
class TaskSet {
 public:
  /// Reads all tasks. Throws UserError for a mistake in a file.
  explicit TaskSet(const TaskEvaluation& options);

  /// Scores the tasks. Adds the figures to the output of `dovetail eval`: to `result` as JSON, and
  /// to `rows` as lines of a table. Rank 0 writes the log of items.
  void score(const train::LoadedModel& loaded, nlohmann::ordered_json& result,
             std::vector<std::vector<std::string>>& rows) const;

 private:
  using Questions = std::vector<train::MultipleChoiceQuestion>;
  struct LoadedSuite {
    train::Suite suite;
    std::vector<Questions> questions;  ///< questions of each task
  };
  class ItemLog;

  train::MultipleChoiceResult score_task(const train::LoadedModel& loaded, const std::string& name,
                                         const Questions& questions, ItemLog& log) const;
  void score_suite(const train::LoadedModel& loaded, const LoadedSuite& loaded_suite, ItemLog& log,
                   nlohmann::ordered_json& result,
                   std::vector<std::vector<std::string>>& rows) const;

  TaskEvaluation options_;
  std::vector<Questions> files_;  ///< questions of each file
  std::vector<LoadedSuite> suites_;
};

}  // namespace dovetail::cli
