#include "dovetail/cli/commands/eval_recommender.h"

#include <ATen/ops/sigmoid.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/log.h"
#include "dovetail/base/machine.h"
#include "dovetail/cli/parse/output.h"
#include "dovetail/data/rows/row_stream.h"
#include "dovetail/train/metrics/metrics.h"
#include "dovetail/train/recommender/trained_recommender.h"
#include "dovetail/train/recommender/validation.h"
#include "dovetail/train/run/stored_run.h"

namespace dovetail::cli {
namespace {

/// Writer of lines "file,row,<probability of each task>" as CSV (RFC 4180). Probabilities have as
/// many digits as a float32.
class PredictionFile {
 public:
  PredictionFile(const std::string& path, const std::vector<std::string>& tasks) : file_(path) {
    std::string header = "file,row";
    for (const std::string& task : tasks) header += "," + csv_field(task);
    file_.write(header + "\n");
  }

  void add(const at::Tensor& logits, const data::StreamedRows& rows,
           const std::vector<std::filesystem::path>& files) {
    const at::Tensor scores = logits.sigmoid().contiguous();
    const auto* score = scores.const_data_ptr<float>();
    std::string lines;
    for (size_t i = 0; i < rows.numbers.size(); ++i) {
      lines += fmt::format("{},{}", csv_field(files[static_cast<size_t>(rows.files[i])].string()),
                           rows.numbers[i]);
      for (int64_t k = 0; k < scores.size(1); ++k) lines += fmt::format(",{}", *score++);
      lines += '\n';
    }
    file_.write(lines);
  }
  void commit() { file_.commit(); }

 private:
  AtomicFile file_;
};

/// Returns the rows to read: [rows] of the run, with the options of the command in place of its
/// keys.
data::RowsConfig rows_to_read(const train::RunConfig& config,
                              const RecommenderEvaluation& options) {
  data::RowsConfig rows = config.rows;
  if (!options.files.empty()) rows.files = options.files;
  if (rows.by_day() &&
      (options.files.empty() ? options.split != "all" : options.split == "validation"))
    throw UserError(
        fmt::format("the run went through its rows by rows.day = \"{}\" and holds none out",
                    rows.day),
        options.files.empty()
            ? "name rows it has not seen with --data, or read its own with --split all"
            : "leave --split out");
  rows.day.clear();
  return rows;
}

data::RowSplit split_of(const RecommenderEvaluation& options) {
  if (!options.split.empty()) return data::parse_row_split(options.split);
  return options.files.empty() ? data::RowSplit::kValidation : data::RowSplit::kAll;
}

struct Evaluated {
  train::Validation validation;
  int64_t bad = 0, unlabelled = 0;
};

Evaluated score_all(const train::TrainedRecommender& recommender,
                    const RecommenderEvaluation& options,
                    const std::shared_ptr<comm::Group>& group) {
  const train::RunConfig& config = recommender.config();
  data::RowStream stream(rows_to_read(config, options), split_of(options), recommender.scales());
  std::optional<PredictionFile> predictions;
  if (!options.predictions.empty()) predictions.emplace(options.predictions, config.rows.label);
  train::ScoredRows scored;
  int64_t rows = 0;
  while (options.max_rows == 0 || rows < options.max_rows) {
    const int64_t at_once = train::scored_at_once(config);
    const data::StreamedRows next =
        stream.next(options.max_rows == 0 ? at_once : std::min(at_once, options.max_rows - rows),
                    {.rank = group->rank(), .world = group->size()});
    if (next.taken == 0) break;
    rows += next.taken;
    const at::Tensor logits = recommender.logits(next.batch);
    scored.add(logits, next.batch);
    if (predictions) predictions->add(logits, next, stream.files());
  }
  user_check(rows > 0,
             "there is no row to measure: {} have no label, {} are bad; look at --split, "
             "rows.validation_fraction, rows.label",
             stream.num_unlabelled(), stream.num_bad());
  Evaluated found{.validation = scored.measure(config, rows, group),
                  .bad = stream.num_bad(),
                  .unlabelled = stream.num_unlabelled()};
  if (group->rank() == 0)
    for (const std::string& warning : stream.warnings()) log_warning("{}", warning);
  if (predictions) predictions->commit();
  return found;
}

void check_options(const RecommenderEvaluation& options, const comm::Group& group) {
  if (options.predictions.empty()) return;
  user_check(options.predictions.ends_with(".csv"),
             "--predictions {}: predictions are written as CSV; name a .csv file",
             options.predictions);
  user_check(group.size() == 1,
             "--predictions: {} ranks each score a part of the rows; run it on one rank",
             group.size());
}

}  // namespace

void evaluate_recommender(train::StoredRun stored, const RecommenderEvaluation& options,
                          nlohmann::ordered_json& result,
                          std::vector<std::vector<std::string>>& rows) {
  const auto group = comm::world_from_environment();
  check_options(options, *group);
  const std::string precision = train::choose_recommender_precision(stored, options.precision);
  const train::TrainedRecommender recommender(std::move(stored), precision);
  result["precision"] = {{"recipe", precision}};
  rows.push_back({"precision", precision});
  const Evaluated found = score_all(recommender, options, group);
  const train::Validation& validation = found.validation;
  const std::vector<std::string>& files =
      options.files.empty() ? recommender.config().rows.files : options.files;
  nlohmann::ordered_json& json = result["validation"];
  json = {{"data", files}, {"loss", validation.loss}, {"samples", validation.tokens}};
  json["left_out"] = {{"bad", found.bad}, {"unlabelled", found.unlabelled}};
  for (const train::TaskRanking& task : validation.tasks) {
    json["tasks"][task.name] = to_json(task);
    rows.push_back(
        {task.name,
         fmt::format("{}, log loss {:.4f}, normalised entropy {:.4f}, calibration {:.3f}{}",
                     train::describe_auc(task.metrics), task.metrics.log_loss,
                     task.metrics.normalized_entropy, task.metrics.calibration,
                     task.gauc ? fmt::format(", GAUC {:.4f}", *task.gauc) : "")});
  }
  rows.push_back({"  measured on", fmt::format("{} rows of {}", format_grouped(validation.tokens),
                                               fmt::join(files, ", "))});
  if (found.bad + found.unlabelled > 0)
    rows.push_back(
        {"  left out", fmt::format("{} without label, {} bad", format_grouped(found.unlabelled),
                                   format_grouped(found.bad))});
  if (!options.predictions.empty()) rows.push_back({"  predictions", options.predictions});
}

}  // namespace dovetail::cli
