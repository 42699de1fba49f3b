#include "dovetail/train/suites/task.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/data/files/python_text.h"

namespace dovetail::train {
namespace {

using nlohmann::json;
using Shots = SuiteTask::Shots;

constexpr std::array<std::pair<const char*, const char*>, 57> kSubjects = {{
    {"abstract_algebra", "stem"},
    {"anatomy", "stem"},
    {"astronomy", "stem"},
    {"business_ethics", "other"},
    {"clinical_knowledge", "other"},
    {"college_biology", "stem"},
    {"college_chemistry", "stem"},
    {"college_computer_science", "stem"},
    {"college_mathematics", "stem"},
    {"college_medicine", "other"},
    {"college_physics", "stem"},
    {"computer_security", "stem"},
    {"conceptual_physics", "stem"},
    {"econometrics", "social sciences"},
    {"electrical_engineering", "stem"},
    {"elementary_mathematics", "stem"},
    {"formal_logic", "humanities"},
    {"global_facts", "other"},
    {"high_school_biology", "stem"},
    {"high_school_chemistry", "stem"},
    {"high_school_computer_science", "stem"},
    {"high_school_european_history", "humanities"},
    {"high_school_geography", "social sciences"},
    {"high_school_government_and_politics", "social sciences"},
    {"high_school_macroeconomics", "social sciences"},
    {"high_school_mathematics", "stem"},
    {"high_school_microeconomics", "social sciences"},
    {"high_school_physics", "stem"},
    {"high_school_psychology", "social sciences"},
    {"high_school_statistics", "stem"},
    {"high_school_us_history", "humanities"},
    {"high_school_world_history", "humanities"},
    {"human_aging", "other"},
    {"human_sexuality", "social sciences"},
    {"international_law", "humanities"},
    {"jurisprudence", "humanities"},
    {"logical_fallacies", "humanities"},
    {"machine_learning", "stem"},
    {"management", "other"},
    {"marketing", "other"},
    {"medical_genetics", "other"},
    {"miscellaneous", "other"},
    {"moral_disputes", "humanities"},
    {"moral_scenarios", "humanities"},
    {"nutrition", "other"},
    {"philosophy", "humanities"},
    {"prehistory", "humanities"},
    {"professional_accounting", "other"},
    {"professional_law", "humanities"},
    {"professional_medicine", "other"},
    {"professional_psychology", "social sciences"},
    {"public_relations", "social sciences"},
    {"security_studies", "social sciences"},
    {"sociology", "social sciences"},
    {"us_foreign_policy", "social sciences"},
    {"virology", "other"},
    {"world_religions", "humanities"},
}};

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

/// Removes the marks that WikiHow's articles leave in HellaSwag: "[title]", "[step]" and so on.
std::string without_marks(std::string_view raw) {
  std::string text(data::strip(raw));
  replace_all(text, " [title]", ". ");
  for (size_t open = 0; (open = text.find('[', open)) != std::string::npos;) {
    const size_t close = text.find_first_of("]\n", open);
    if (close != std::string::npos && text[close] == ']')
      text.erase(open, close + 1 - open);
    else
      ++open;
  }
  replace_all(text, "  ", " ");
  return text;
}

void prepare_hellaswag(json& row) {
  row["query"] = without_marks(fmt::format(
      "{}: {} {}", row.at("activity_label").get<std::string>(), row.at("ctx_a").get<std::string>(),
      data::capitalize(row.at("ctx_b").get_ref<const std::string&>())));
  for (json& ending : row.at("endings"))
    ending = without_marks(ending.get_ref<const std::string&>());
}

void prepare_winogrande(json& row) {
  const std::string sentence = row.at("sentence");
  const size_t blank = sentence.find('_');
  user_check(blank != std::string::npos, "the sentence has no blank `_`");
  row["before"] = sentence.substr(0, blank);
  row["after"] = data::strip(std::string_view(sentence).substr(blank + 1));
}

/// Puts the solved problems of an article before its last one, which is the question.
void prepare_race(json& row) {
  const json problems =
      data::parse_python_literal(row.at("problems").get_ref<const std::string&>());
  user_check(problems.is_array() && !problems.empty(), "`problems` is not a list of problems");
  std::string text = fmt::format("Article: {}\n\n", row.at("article").get<std::string>());
  for (size_t i = 0; i + 1 < problems.size(); ++i) {
    std::string question = problems[i].at("question");
    const std::string letter = problems[i].at("answer");
    const size_t index = letter.size() == 1 ? static_cast<size_t>(letter[0] - 'A') : 4;
    user_check(index < 4, "the answer {:?} is not A, B, C or D", letter);
    const std::string answer = problems[i].at("options").at(index);
    if (question.ends_with("  _  .")) {
      question.resize(question.size() - std::string_view(" _  .").size());
      text += fmt::format("{}{}\n", question, answer);
    } else {
      text += fmt::format("Question: {}\nAnswer: {}\n", question, answer);
    }
  }
  row["solved"] = text;
  row["last"] = problems.back();
}

SuiteTask mmlu_task(const std::string& subject, const std::string& category) {
  std::string words = subject;
  std::ranges::replace(words, '_', ' ');
  return {.name = "mmlu_" + subject,
          .repository = "cais/mmlu",
          .config = subject,
          .question_split = "test",
          .shot_split = "dev",
          .shots = Shots::kFirst,
          .columns = {"question", "choices", "answer"},
          .description = fmt::format(
              "The following are multiple choice questions (with answers) about {}.\n\n", words),
          .contexts = {"{question|strip}\nA. {choices.0}\nB. {choices.1}\nC. {choices.2}\n"
                       "D. {choices.3}\nAnswer:"},
          .answers = {"A", "B", "C", "D"},
          .label = "{answer}",
          .labels = {"0", "1", "2", "3"},
          .category = category};
}

SuiteTask arc_task(const std::string& name, const std::string& config) {
  return {.name = name,
          .repository = "allenai/ai2_arc",
          .config = config,
          .question_split = "test",
          .shot_split = "train",
          .columns = {"id", "question", "choices", "answerKey"},
          .contexts = {"Question: {question}\nAnswer:"},
          .answers = {"choices.text"},
          .label = "{answerKey}",
          .labels = {"choices.label"},
          .normalized = true};
}

SuiteTask hellaswag_task() {
  return {.name = "hellaswag",
          .repository = "Rowan/hellaswag",
          .question_split = "validation",
          .shot_split = "train",
          .shots = Shots::kDrawnApart,
          .columns = {"ind", "split", "activity_label", "ctx_a", "ctx_b", "endings", "label"},
          .prepare = prepare_hellaswag,
          .contexts = {"{query}"},
          .answers = {"endings"},
          .label = "{label}",
          .labels = {"0", "1", "2", "3"},
          .normalized = true};
}

SuiteTask openbookqa_task() {
  return {.name = "openbookqa",
          .repository = "allenai/openbookqa",
          .config = "main",
          .question_split = "test",
          .shot_split = "train",
          .columns = {"id", "question_stem", "choices", "answerKey"},
          .contexts = {"{question_stem}"},
          .answers = {"choices.text"},
          .label = "{answerKey|strip}",
          .labels = {"choices.label"},
          .normalized = true};
}

SuiteTask piqa_task() {
  return {.name = "piqa",
          .repository = "baber/piqa",
          .question_split = "validation",
          .shot_split = "train",
          .shots = Shots::kDrawnApart,
          .columns = {"goal", "sol1", "sol2", "label"},
          .contexts = {"Question: {goal}\nAnswer:"},
          .answers = {"{sol1}", "{sol2}"},
          .label = "{label}",
          .labels = {"0", "1"},
          .normalized = true};
}

/// Scores the end of the sentence after each way to fill its blank (Trinh and Le, 2018).
SuiteTask winogrande_task() {
  return {.name = "winogrande",
          .repository = "allenai/winogrande",
          .config = "winogrande_xl",
          .question_split = "validation",
          .shot_split = "train",
          .shots = Shots::kDrawnApart,
          .columns = {"sentence", "option1", "option2", "answer"},
          .prepare = prepare_winogrande,
          .contexts = {"{before}{option1}", "{before}{option2}"},
          .answers = {"{after}"},
          .label = "{answer}",
          .labels = {"1", "2"}};
}

SuiteTask race_task() {
  return {
      .name = "race",
      .repository = "EleutherAI/race",
      .config = "high",
      .question_split = "test",
      .shot_split = "test",
      .columns = {"article", "problems"},
      .prepare = prepare_race,
      .contexts = {"{solved}{last.question}"},
      .answers = {"{last.options.0}", "{last.options.1}", "{last.options.2}", "{last.options.3}"},
      .label = "{last.answer}",
      .labels = {"A", "B", "C", "D"}};
}

SuiteTask commonsense_qa_task() {
  return {.name = "commonsense_qa",
          .repository = "tau/commonsense_qa",
          .question_split = "validation",
          .shot_split = "train",
          .shots = Shots::kDrawnApart,
          .columns = {"id", "question", "choices", "answerKey"},
          .contexts = {"Question: {question|strip}\nA. {choices.text.0}\nB. {choices.text.1}\n"
                       "C. {choices.text.2}\nD. {choices.text.3}\nE. {choices.text.4}\nAnswer:"},
          .answers = {"A", "B", "C", "D", "E"},
          .label = "{answerKey}",
          .labels = {"A", "B", "C", "D", "E"}};
}

SuiteTask social_iqa_task() {
  return {.name = "social_iqa",
          .repository = "lighteval/siqa",
          .question_split = "validation",
          .shot_split = "train",
          .shots = Shots::kDrawnApart,
          .columns = {"context", "question", "answerA", "answerB", "answerC", "label"},
          .contexts = {"Q: {context} {question}\nA:"},
          .answers = {"{answerA}", "{answerB}", "{answerC}"},
          .label = "{label}",
          .labels = {"1", "2", "3"}};
}

/// Nine tasks of commonsense and reading that NVIDIA reports beside MMLU for its 8B models.
/// Source: Nemotron-CC, arXiv 2412.02595, table 5. They stand for the nine 1-shot tasks of arXiv
/// 2506.08027.
std::vector<SuiteTask> reasoning_tasks() {
  return {arc_task("arc_challenge", "ARC-Challenge"),
          arc_task("arc_easy", "ARC-Easy"),
          race_task(),
          piqa_task(),
          winogrande_task(),
          hellaswag_task(),
          openbookqa_task(),
          social_iqa_task(),
          commonsense_qa_task()};
}

}  // namespace

std::vector<std::string> suite_names() {
  std::vector<std::string> names = {"mmlu", "reasoning"};
  for (const SuiteTask& task : reasoning_tasks()) names.push_back(task.name);
  return names;
}

Suite find_suite(const std::string& name) {
  if (name == "mmlu") {
    Suite suite{.name = name, .shots = 5, .weights = Suite::Weights::kItems};
    for (const auto& [subject, category] : kSubjects)
      suite.tasks.push_back(mmlu_task(subject, category));
    return suite;
  }
  Suite suite{.name = name, .tasks = reasoning_tasks()};
  if (name != "reasoning")
    std::erase_if(suite.tasks, [&](const SuiteTask& task) { return task.name != name; });
  DOVETAIL_CHECK(!suite.tasks.empty(), "no suite is named {}", name);
  return suite;
}

}  // namespace dovetail::train
