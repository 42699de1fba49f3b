#include "dovetail/train/suites/read_task.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "dovetail/base/error.h"
#include "dovetail/base/json_fault.h"
#include "dovetail/data/files/parquet.h"
#include "dovetail/data/files/python_text.h"
#include "dovetail/train/suites/python_random.h"

namespace dovetail::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint32_t kHarnessSeed = 1234;

/// Row of a data set as text.
struct Example {
  std::vector<std::string> contexts, answers, choices;
  int64_t right = 0;     ///< index of the right choice
  std::string identity;  ///< equal for rows of equal columns; empty unless shots are kDrawnApart

  /// The example with its answer, as it precedes a question.
  std::string solved() const {
    const auto index = static_cast<size_t>(right);
    const std::string& context = contexts[contexts.size() > 1 ? index : 0];
    const std::string& answer = answers[answers.size() > 1 ? index : 0];
    // The harness takes an empty end of a sentence for a missing answer.
    if (answers.size() == 1 && answer.empty()) return context;
    return fmt::format("{} {}\n\n", context, answer);
  }
};

const json& value_at(const json& row, std::string_view path) {
  const json* value = &row;
  for (std::string_view left = path; !left.empty();) {
    const std::string_view step = left.substr(0, left.find('.'));
    left.remove_prefix(std::min(left.size(), step.size() + 1));
    size_t index = 0;
    const bool is_index =
        std::from_chars(step.data(), step.data() + step.size(), index).ec == std::errc();
    const bool found = is_index ? value->is_array() && index < value->size()
                                : value->is_object() && value->contains(step);
    user_check(found, "there is no `{}`: `{}` is missing or of another type", path, step);
    value = is_index ? &value->at(index) : &value->at(step);
  }
  return *value;
}

std::string text_of(const json& value, std::string_view path) {
  if (value.is_number_integer()) return value.dump();
  user_check(value.is_string(), "`{}` is {}, not a text or an integer", path, value.type_name());
  return value;
}

/// Fills in a template of SuiteTask.
std::string render(std::string_view pattern, const json& row) {
  constexpr std::string_view kStrip = "|strip";
  std::string text;
  while (!pattern.empty()) {
    const size_t open = std::min(pattern.find('{'), pattern.size());
    text += pattern.substr(0, open);
    pattern.remove_prefix(open);
    if (pattern.empty()) break;
    const size_t close = pattern.find('}');
    std::string_view path = pattern.substr(1, close - 1);
    pattern.remove_prefix(close + 1);
    const bool strips = path.ends_with(kStrip);
    if (strips) path.remove_suffix(kStrip.size());
    const std::string value = text_of(value_at(row, path), path);
    text += strips ? data::strip(value) : std::string_view(value);
  }
  return text;
}

/// Fills in templates, or returns the elements of the list that a single path names.
std::vector<std::string> render_all(const std::vector<std::string>& patterns, const json& row) {
  std::vector<std::string> texts;
  if (patterns.size() == 1 && patterns[0].find('{') == std::string::npos) {
    const json& list = value_at(row, patterns[0]);
    user_check(list.is_array(), "`{}` is {}, not a list", patterns[0], list.type_name());
    for (const json& value : list) texts.push_back(text_of(value, patterns[0]));
  } else {
    for (const std::string& pattern : patterns) texts.push_back(render(pattern, row));
  }
  return texts;
}

Example make_example(const SuiteTask& task, json row) {
  Example example;
  if (task.shots == SuiteTask::Shots::kDrawnApart) example.identity = row.dump();
  if (task.prepare != nullptr) task.prepare(row);
  for (const std::string& pattern : task.contexts) example.contexts.push_back(render(pattern, row));
  example.answers = render_all(task.answers, row);
  example.choices = example.contexts.size() > 1 ? example.contexts : example.answers;
  const std::string label = render(task.label, row);
  const std::vector<std::string> labels = render_all(task.labels, row);
  const auto found = std::ranges::find(labels, label);
  example.right = found - labels.begin();
  user_check(found != labels.end() && example.right < static_cast<int64_t>(example.choices.size()),
             "the label {:?} is not one of {} for {} choices", label, fmt::join(labels, ", "),
             example.choices.size());
  return example;
}

std::vector<Example> read_examples(const SuiteTask& task, const fs::path& path, size_t limit) {
  json records;
  try {
    records = data::read_parquet_records(path, task.columns);
  } catch (const UserError& e) {
    throw UserError(e.what(),
                    fmt::format("{} reads the columns {} of the data set {}{}{}", task.name,
                                fmt::join(task.columns, ", "), task.repository,
                                e.help().empty() ? "" : "; ", e.help()),
                    e.place());
  }
  std::vector<Example> examples;
  for (size_t row = 0; row < std::min(records.size(), limit); ++row) {
    const auto fail = [&](const std::string& reason) {
      throw UserError(reason,
                      fmt::format("{} expects rows of the data set {}", task.name, task.repository),
                      fmt::format("{}: row {}", path.string(), row));
    };
    try {
      examples.push_back(make_example(task, std::move(records[row])));
    } catch (const UserError& e) {
      fail(e.what());
    } catch (const json::exception& e) {
      fail(json_fault(e));
    }
  }
  return examples;
}

/// Reads the first `limit` rows of a split.
std::vector<Example> read_split(const SuiteTask& task, const fs::path& folder,
                                const std::string& split, size_t limit) {
  std::vector<Example> examples;
  for (const fs::path& path : split_files(task, folder, split)) {
    if (examples.size() == limit) break;
    std::ranges::move(read_examples(task, path, limit - examples.size()),
                      std::back_inserter(examples));
  }
  if (examples.empty())
    throw UserError(fmt::format("the split {} of {} has no rows", split, task.repository), {},
                    (folder / task.repository / task.config).string());
  return examples;
}

/// Chooses the solved examples of one question after another.
class ShotChooser {
 public:
  ShotChooser(const SuiteTask& task, const std::vector<Example>& pool, size_t shots)
      : kind_(task.shots), pool_(pool), shots_(shots) {
    const size_t needed = shots + (kind_ == SuiteTask::Shots::kDrawnApart && shots > 0 ? 1 : 0);
    user_check(
        needed <= pool.size(),
        "{}: {} shots need {} rows of the split {}, which has {}; ask for fewer with --shots",
        task.name, shots, needed, task.shot_split, pool.size());
  }

  std::vector<size_t> next(const Example& question) {
    std::vector<size_t> chosen;
    if (kind_ == SuiteTask::Shots::kFirst || shots_ == 0) {
      for (size_t i = 0; i < shots_; ++i) chosen.push_back(i);
    } else if (kind_ == SuiteTask::Shots::kDrawn) {
      chosen = random_.sample(pool_.size(), shots_);
    } else {
      chosen = random_.sample(pool_.size(), shots_ + 1);
      const auto is_question = [&](size_t i) { return pool_[i].identity == question.identity; };
      std::erase_if(chosen, is_question);
      if (chosen.size() < shots_) chosen = sample_others(is_question);
      chosen.resize(shots_);
    }
    return chosen;
  }

 private:
  /// Draws from the rows that are not the question, which the pool holds several times.
  template <class IsQuestion>
  std::vector<size_t> sample_others(const IsQuestion& is_question) {
    std::vector<size_t> others, chosen;
    for (size_t i = 0; i < pool_.size(); ++i)
      if (!is_question(i)) others.push_back(i);
    user_check(shots_ <= others.size(), "{} shots need {} rows that are not the question, not {}",
               shots_, shots_, others.size());
    for (const size_t i : random_.sample(others.size(), shots_)) chosen.push_back(others[i]);
    return chosen;
  }

  SuiteTask::Shots kind_;
  const std::vector<Example>& pool_;
  size_t shots_;
  PythonRandom random_{kHarnessSeed};
};

/// Returns true if `split` is a word of `path`, between characters that are no letters or digits.
bool names_split(const std::string& path, std::string_view split) {
  const auto is_inside = [&](size_t at) {
    return at < path.size() && std::isalnum(static_cast<unsigned char>(path[at])) != 0;
  };
  for (size_t at = 0; (at = path.find(split, at)) != std::string::npos; ++at)
    if ((at == 0 || !is_inside(at - 1)) && !is_inside(at + split.size())) return true;
  return false;
}

}  // namespace

std::vector<fs::path> split_files(const SuiteTask& task, const fs::path& folder,
                                  const std::string& split) {
  const fs::path root = folder / task.repository / task.config;
  const std::string help = fmt::format(
      "download the data set: hf download {} --repo-type dataset --local-dir {}. Without "
      "Parquet files there, add --revision refs/convert/parquet",
      task.repository, (folder / task.repository).string());
  if (!fs::is_directory(root))
    throw UserError(fmt::format("{} reads {}, which is no folder", task.name, root.string()), help);
  std::set<fs::path> files, folders;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (entry.path().extension() != ".parquet" ||
        !names_split(entry.path().lexically_relative(root).string(), split))
      continue;
    files.insert(entry.path());
    folders.insert(entry.path().parent_path());
  }
  if (files.empty())
    throw UserError(fmt::format("{} finds no Parquet file of the split {} in {}, such as "
                                "{}-00000-of-00001.parquet",
                                task.name, split, root.string(), split),
                    help);
  user_check(folders.size() == 1,
             "{} finds Parquet files of the split {} in {} folders, {} and {}; keep one of them",
             task.name, split, folders.size(), folders.begin()->string(),
             folders.rbegin()->string());
  return {files.begin(), files.end()};
}

std::vector<MultipleChoiceQuestion> read_suite_task(const SuiteTask& task, const fs::path& folder,
                                                    const MultipleChoiceOptions& options) {
  const size_t all = std::numeric_limits<size_t>::max();
  const std::vector<Example> examples =
      read_split(task, folder, task.question_split,
                 options.max_items > 0 ? static_cast<size_t>(options.max_items) : all);
  std::vector<Example> pool;
  if (options.shots > 0) pool = read_split(task, folder, task.shot_split, all);
  ShotChooser chooser(task, pool, static_cast<size_t>(options.shots));
  std::vector<MultipleChoiceQuestion> questions;
  for (const Example& example : examples) {
    std::string beginning = task.description;
    for (const size_t shot : chooser.next(example)) beginning += pool[shot].solved();
    MultipleChoiceQuestion question{.choices = example.choices, .answer = example.right};
    for (const std::string& context : example.contexts)
      question.prompts.push_back(beginning + context);
    for (const std::string& answer : example.answers)
      question.continuations.push_back(" " + answer);
    questions.push_back(std::move(question));
  }
  return questions;
}

}  // namespace dovetail::train
