#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dovetail/train/gpt/multiple_choice.h"
#include "dovetail/train/suites/task.h"

namespace dovetail::train {

/// Returns the Parquet files of a task's split below `folder`, sorted by path. They are in the
/// folder `folder`/repository/config. The path of a file from there has the split as a word.
/// Examples: "test-00000-of-00001.parquet", "data/piqa_test.parquet", "default/test/0000.parquet".
/// Throws UserError if there is none, or if two folders hold some.
std::vector<std::filesystem::path> split_files(const SuiteTask& task,
                                               const std::filesystem::path& folder,
                                               const std::string& split);

/// Reads a task's questions, with `options.shots` solved examples before each. Prompts and choices
/// equal the ones of lm-evaluation-harness 0.4.13 with its default seed. Throws UserError that
/// names the file, and the row or the missing column.
std::vector<MultipleChoiceQuestion> read_suite_task(const SuiteTask& task,
                                                    const std::filesystem::path& folder,
                                                    const MultipleChoiceOptions& options);

}  // namespace dovetail::train
