#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace dovetail::train {

/// Multiple-choice task of a benchmark suite: a data set on the Hugging Face Hub, and how its rows
/// become prompts. The prompts are the ones of EleutherAI's lm-evaluation-harness 0.4.13.
///
/// A template is a text in which "{path}" stands for a value of the row. A path names a column, and
/// after each '.' a field of a structure or the index in a list: "{choices.text.0}". "{path|strip}"
/// removes white space at both ends.
struct SuiteTask {
  /// Choice of the solved examples in a prompt. kFirst: the first rows. kDrawn: random rows, drawn
  /// by Python's `random.Random(1234).sample` for one question after another. kDrawnApart: as
  /// kDrawn, but one more is drawn, and rows equal to the question are left out.
  enum class Shots { kFirst, kDrawn, kDrawnApart };

  std::string name;            ///< as in the harness, for example "arc_easy"
  std::string repository;      ///< name of the data set, for example "allenai/ai2_arc"
  std::string config;          ///< folder in the repository, for example "ARC-Easy"; may be empty
  std::string question_split;  ///< "test" or "validation"
  std::string shot_split;      ///< split that the solved examples come from
  Shots shots = Shots::kDrawn;
  std::vector<std::string> columns;  ///< columns of the Parquet files that are read
  /// Adds values to a row before the templates read it; null: none are added.
  void (*prepare)(nlohmann::json& row) = nullptr;
  std::string description;  ///< beginning of each prompt
  /// Templates of the text before the answer: one, or one per choice.
  std::vector<std::string> contexts;
  /// Templates of the answers. One: the answer is the same for all choices, which differ in their
  /// context. A single path of a list, without braces: its elements are the answers.
  std::vector<std::string> answers;
  /// Template of the row's label of the right choice, and the labels of all choices. A single path
  /// of a list, without braces: its elements are the labels.
  std::string label;
  std::vector<std::string> labels;
  /// True if the harness reports the accuracy by log-likelihood per character (acc_norm).
  bool normalized = false;
  std::string category;  ///< group of MMLU: "stem", "humanities", "social sciences" or "other"
};

/// Suite: one task, or several with one figure for all.
struct Suite {
  /// Weights of the tasks in the suite's accuracy: the number of their items, or 1 each.
  enum class Weights { kItems, kEqual };

  std::string name;
  int64_t shots = 1;  ///< default number of solved examples
  Weights weights = Weights::kEqual;
  std::vector<SuiteTask> tasks;
};

/// Returns the names of all suites: "mmlu", "reasoning" and each of its nine tasks.
std::vector<std::string> suite_names();
/// Returns the suite of this name, which must be one of suite_names().
Suite find_suite(const std::string& name);

}  // namespace dovetail::train
