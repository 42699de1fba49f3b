#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/table.h"
#include "dovetail/cli/commands/eval_recommender.h"
#include "dovetail/cli/commands/eval_tasks.h"
#include "dovetail/cli/parse/command.h"
#include "dovetail/cli/parse/output.h"
#include "dovetail/models/gpt.h"
#include "dovetail/train/gpt/load_model.h"
#include "dovetail/train/load_run.h"
#include "dovetail/train/metrics/validation.h"
#include "dovetail/train/run/stored_run.h"
#include "dovetail/train/vision/trained_vision.h"

namespace dovetail::cli {
namespace {

class EvalCommand : public Command {
 public:
  std::string name() const override { return "eval"; }
  std::string summary() const override {
    return "Measure a trained model: validation loss, tasks, ranking of rows, classes of images";
  }
  std::string example() const override {
    return "dovetail eval runs/quickstart --task arc_easy.jsonl --shots 5";
  }

  void declare(Arguments& arguments) override {
    arguments
        .positional("run", &run_,
                    "Folder of a run, of one of its checkpoints, or of an exported recommender")
        .is_required()
        .completes(Completion::kFolder);
    arguments
        .option(
            "--data", "PATH", &data_,
            "Prepared folder to validate on. --suite: folder of data sets. A recommender: files of "
            "rows, repeatable. A vision model: images, then their targets (the run's own data)")
        .completes(Completion::kFile);
    arguments
        .option("--split", "NAME", &rows_.split,
                "Split of a recommender's files (validation; with --data all)")
        .one_of({"train", "validation", "all"});
    arguments
        .option("--max-rows", "N", &rows_.max_rows,
                "First N rows to read, for a recommender; 0: all (0)")
        .range(0, 1e15);
    arguments
        .option("--predictions", "FILE", &rows_.predictions,
                "CSV to write, for a recommender: file, row and the probability of each task")
        .completes(Completion::kFile);
    arguments.option("--precision", "RECIPE", &precision_,
                     "Number formats of a GPT: float32, bf16, mxfp8, ... or a recipe of the run's "
                     "config (the run's own, with its overrides). A recommender: float32 or bf16");
    arguments
        .option("--max-tokens", "N", &max_tokens_,
                "Evenly spread windows of about N tokens; 0: the whole split (0)")
        .range(0, 1e15);
    arguments
        .option("--task", "FILE", &tasks_.files,
                "Multiple-choice task, JSONL of context, choices, answer; repeatable")
        .completes(Completion::kFile);
    arguments
        .option("--suite", "NAME", &tasks_.suites,
                "Benchmark suite read from Parquet files in --data; repeatable")
        .one_of(train::suite_names());
    arguments
        .option("--shots", "N", &tasks_.shots,
                "Solved items of the task before each question (0; mmlu 5, other suites 1)")
        .range(0, 1000);
    arguments
        .option("--limit", "N", &tasks_.max_items,
                "Only the first N items of each task; 0: all (0)")
        .range(0, 1e9);
    arguments
        .option("--log-items", "FILE", &tasks_.log,
                "JSONL to write: prompt, scores and answer of each item of the tasks")
        .completes(Completion::kFile);
    arguments.flag("--json", json_, "Print the result as JSON");
  }

  void check() override {
    user_check(
        tasks_.any() || (tasks_.shots < 0 && tasks_.max_items == 0 && tasks_.log.empty()),
        "--shots, --limit and --log-items are about --task or --suite; give one or leave them out");
    user_check(tasks_.suites.empty() || data_.size() == 1,
               "--suite reads its data sets from one folder; name it with --data FOLDER");
    user_check(max_tokens_ == 0 || validates(),
               "--max-tokens is about validation data, but with --task only tasks are measured; "
               "give --data too, and no --suite");
  }

  void run() override {
    check();
    if (!tasks_.suites.empty()) tasks_.folder = data_.front();
    // Read task files first, so that their mistakes show before the model is read.
    const TaskSet tasks(tasks_);
    train::StoredRun stored = train::read_stored_run(run_);
    nlohmann::ordered_json result = {{"checkpoint", stored.checkpoint.string()},
                                     {"step", stored.snapshot.step}};
    std::vector<std::vector<std::string>> rows = {{"checkpoint", stored.checkpoint.string()}};
    check_options(stored.config);
    if (stored.config.kind() == train::RunKind::kVision) {
      add_vision(stored, result, rows);
    } else if (stored.config.kind() == train::RunKind::kRecommender) {
      rows_.files = data_;
      rows_.precision = precision_;
      evaluate_recommender(std::move(stored), rows_, result, rows);
    } else {
      const train::LoadedModel loaded = train::load_model(stored, precision_);
      result["precision"] = loaded.precision.json();
      rows.push_back({"precision", loaded.precision.text()});
      if (validates()) add_validation(loaded, result, rows);
      if (tasks_.any()) tasks.score(loaded, result, rows);
    }
    if (json_) {
      print_json(result);
    } else {
      print(format_table(rows));
    }
  }

 private:
  using Rows = std::vector<std::vector<std::string>>;

  /// Returns true if the validation loss of a GPT is measured, not tasks alone.
  bool validates() const { return !tasks_.any() || (tasks_.suites.empty() && !data_.empty()); }

  /// Throws UserError for an option that the trained model does not read.
  void check_options(const train::RunConfig& config) const {
    const auto only = [&](const char* option, bool given, bool read) {
      user_check(!given || read, "{} does nothing here: {} holds a {}; leave it out", option, run_,
                 config.kind_in_words());
    };
    const bool gpt = config.kind() == train::RunKind::kGpt,
               recommends = config.kind() == train::RunKind::kRecommender;
    only("--max-tokens", max_tokens_ > 0, gpt);
    only("--precision", !precision_.empty(), gpt || recommends);
    only("--task and --suite", tasks_.any(), gpt);
    only("--split", !rows_.split.empty(), recommends);
    only("--max-rows", rows_.max_rows > 0, recommends);
    only("--predictions", !rows_.predictions.empty(), recommends);
    const size_t most = gpt ? 1 : 2;
    user_check(recommends || data_.size() <= most,
               "--data names {} paths, but a {} is measured on {}", data_.size(),
               config.kind_in_words(), gpt ? "one folder" : "images and their targets");
  }

  std::string data_folder(const train::RunConfig& config) const {
    if (!data_.empty()) return data_.front();
    if (!config.data.path.empty()) return config.data.path;
    if (!config.data.mixture.empty()) return config.data.mixture.front().path;
    throw UserError("the run's config names no prepared data",
                    "name a folder made by `dovetail prepare` with --data");
  }

  void add_validation(const train::LoadedModel& loaded, nlohmann::ordered_json& result,
                      Rows& rows) const {
    const data::TokenStore store(data_folder(loaded.config));
    if (store.tokenizer().kind() != loaded.tokenizer->kind() ||
        store.tokenizer().serialized() != loaded.tokenizer->serialized()) {
      throw UserError(
          fmt::format("{} was prepared with another tokenizer ({}) than the model's ({})",
                      store.folder().string(), store.tokenizer().kind(), loaded.tokenizer->kind()),
          "prepare the text again with the run's tokenizer: --tokenizer FILE");
    }
    const auto group = comm::world_from_environment();
    if (group->rank() == 0) train::warn_of_later_tokens(loaded.config.model);
    const auto validation = train::validate(*loaded.model, store, *group,
                                            {.context = loaded.config.model.context,
                                             .batch = loaded.micro_batch,
                                             .max_tokens = max_tokens_});
    if (!validation)
      throw UserError(fmt::format("{} has no validation tokens", store.folder().string()));
    result["validation"] = {{"data", store.folder().string()},
                            {"nats_per_token", validation->loss},
                            {"nats_per_byte", validation->nats_per_byte},
                            {"perplexity", std::exp(validation->loss)},
                            {"tokens", validation->tokens}};
    rows.push_back(
        {"validation",
         fmt::format("{:.4f} nats per token, {:.4f} per byte, perplexity {:.2f}", validation->loss,
                     validation->nats_per_byte, std::exp(validation->loss))});
    rows.push_back(
        {"  measured on", fmt::format("{} tokens of {}", format_grouped(validation->tokens),
                                      store.folder().string())});
  }

  void add_vision(const train::StoredRun& stored, nlohmann::ordered_json& result,
                  Rows& rows) const {
    const auto group = comm::world_from_environment();
    const auto path = [&](size_t i) { return i < data_.size() ? data_[i] : std::string(); };
    const train::Validation found =
        train::measure_vision(train::load_vision(stored), stored.config, path(0), path(1), *group);
    result["validation"] = {
        {"samples", found.tokens}, {"loss", found.loss}, {"accuracy", found.images->accuracy}};
    if (found.images->mean_iou) result["validation"]["mean_iou"] = *found.images->mean_iou;
    rows.push_back({"validation", train::scores_text(found)});
    rows.push_back({"  measured on", fmt::format("{} images", format_grouped(found.tokens))});
  }

  std::string run_, precision_;
  std::vector<std::string> data_;
  TaskEvaluation tasks_;
  RecommenderEvaluation rows_;
  int64_t max_tokens_ = 0;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_eval_command() { return std::make_unique<EvalCommand>(); }

}  // namespace dovetail::cli
