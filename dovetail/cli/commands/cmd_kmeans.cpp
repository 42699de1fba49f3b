#include <ATen/ATen.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/table.h"
#include "dovetail/base/trace.h"
#include "dovetail/cli/fit/cluster_charts.h"
#include "dovetail/cli/fit/clusters.h"
#include "dovetail/cli/fit/fit_page.h"
#include "dovetail/cli/fit/job_state.h"
#include "dovetail/cli/fit/kmeans_predict.h"
#include "dovetail/cli/fit/table_options.h"
#include "dovetail/cli/parse/command.h"
#include "dovetail/cli/parse/output.h"
#include "dovetail/fit/kmeans/batch.h"
#include "dovetail/fit/kmeans/cluster_metrics.h"
#include "dovetail/report/drawing.h"
#include "dovetail/train/run/folder.h"
#include "dovetail/train/run/progress.h"

namespace dovetail::cli {
namespace {

class KMeansCommand : public Command {
 public:
  std::string name() const override { return "kmeans"; }
  std::string summary() const override { return "Cluster the rows of a table of numbers"; }
  std::string example() const override {
    return "dovetail kmeans --data features.parquet --k 8 --drop-columns 0,3 --out runs/clusters";
  }

  void declare(Arguments& arguments) override {
    arguments
        .positional(
            "what", &what_,
            "predict: find the nearest centres of a run for the rows of another table (none: "
            "cluster)")
        .one_of({"predict"});
    arguments.positional("run", &predict_.run, "Folder of the run")
        .goes_with({"predict"})
        .is_required()
        .completes(Completion::kFolder);
    table_.declare_data(arguments);
    const std::vector<std::string> clusters = {""};
    arguments.option("--k", "K", &k_, "Clusters")
        .goes_with(clusters)
        .is_required()
        .range(1, 1 << 24);
    arguments
        .option("--init", "NAME|FILE", &init_,
                "Start of the centres: k-means++, k-means-parallel, random, first, or a table of K "
                "rows (k-means++)")
        .goes_with(clusters)
        .completes(Completion::kFile);
    arguments.option("--weights", "COLUMN", &weights_,
                     "Column with the weight of each row, by name or place. A row of weight 2 "
                     "counts like two rows, one of weight 0 only gets a label (none)");
    arguments.option("--iterations", "N", &iterations_, "Maximum number of iterations (300)")
        .goes_with(clusters)
        .range(1, 1e9);
    arguments
        .option("--tolerance", "T", &tolerance_,
                "Stop when the squared move of the centres is below T times the mean variance of "
                "the columns (1e-4; with --batch 0)")
        .goes_with(clusters)
        .range(0, 1e30);
    arguments
        .option("--batch", "N", &batch_.batch,
                "Rows per mini-batch. Each iteration reads only N rows. 0: all rows, which is "
                "Lloyd's algorithm (0)")
        .goes_with(clusters)
        .range(0, 1e15);
    arguments
        .option("--patience", "N", &patience_,
                "Stop after N iterations without a better smoothed inertia, with --batch; 0: never "
                "(10)")
        .goes_with(clusters)
        .range(0, 1e9);
    arguments
        .option("--empty", "WHAT", &empty_,
                "Treatment of a centre without rows: reseed with the farthest row, or keep "
                "(reseed; with --batch keep)")
        .goes_with(clusters)
        .one_of({"reseed", "keep"});
    arguments
        .option("--seed", "N", &seed_,
                "Seed of the initial centres and of the silhouette's sample (0)")
        .goes_with(clusters)
        .range(0, 9e15);
    table_.declare_workers(arguments);
    arguments
        .option("--out", "PATH", &out_,
                "Folder of the run (runs/kmeans-<name of the file>). With predict: file of the "
                "labels (predict-<name of the file>.csv in the run)")
        .completes(Completion::kFile);
    arguments.flag("--json", json_, "Print the result as JSON");
  }

  void check() override {
    user_check(what_ != "predict" || !table_.fresh(),
               "--fresh starts a stopped job over, but predict is one pass that leaves nothing to "
               "continue; leave it out");
    if (batch_.batch == 0) {
      user_check(patience_ < 0, "--patience is about mini-batches; give --batch too");
    } else if (empty_ == "reseed") {
      throw UserError(
          "--empty reseed looks for the farthest of all rows, which --batch never looks at "
          "together",
          "leave one of the two out");
    }
    table_.check();
  }

  void run() override {
    check();
    if (what_ == "predict") return predict();
    settle_options();
    const double start = now_seconds();
    const std::shared_ptr<comm::Group> group = table_.join();
    const bool writes = group->rank() == 0;
    std::optional<train::RunFolder> folder;
    if (writes) folder.emplace(folder_path());
    const data::Matrix matrix =
        table_.read(*group, {.target = weights_, .target_option = "--weights"});
    const std::shared_ptr<jobs::Workers> workers = table_.make_workers(group);
    fit::KMeansData data(matrix.x, workers, matrix.target);
    JobState state(*group, folder_path(),
                   "kmeans " + table_.table_words() + algorithm_words() + file_words(init_),
                   table_.fresh());
    const double read = now_seconds();
    const bool resumed = !state.stopped().empty();
    const at::Tensor centres =
        resumed ? state.stopped()[1] : centres_by(init_, matrix, data, k_, seed_);
    const double begun = now_seconds();
    const jobs::Runtime* executors = TableOptions::executors_of(workers.get());
    const fit::KMeansResult result = iterate(data, centres, state, executors, writes);
    const double done = now_seconds();
    Json workers_json = Json::object();
    table_.finish(workers.get(), workers_json);
    if (!writes) return;
    const RowSample sample = sample_rows(matrix.x, result.labels, seed_);
    Json json = to_json(matrix, result, sample, data.total_weight());
    json["seconds"] = {
        {"read", read - start}, {"init", begun - read}, {"iterations", done - begun}};
    json.update(workers_json);
    json["report"] = (folder->path() / "report.html").string();
    write(*folder, matrix, result, state.lines(), sample, json);
    state.done();
    if (json_) {
      print_json(json);
    } else {
      print_summary(json);
    }
  }

 private:
  using Json = nlohmann::ordered_json;

  void predict() {
    predict_.weights = weights_;
    predict_.out = out_;
    const Json json = predict_clusters(table_, predict_);
    if (json.is_null()) return;
    if (json_) return print_json(json);
    std::vector<std::vector<std::string>> rows = {
        {"rows", format_grouped(json.at("rows"))},
        {"rows left out", format_grouped(json.at("rows_left_out"))},
        {"inertia", fmt::format("{:.6g}", json.at("inertia").get<double>())},
        {"labels", json.at("labels").get<std::string>()}};
    for (const auto& [label, value] : TableOptions::worker_figures(json))
      rows.push_back({label, value});
    print(format_table(rows));
  }

  /// Sets the options that were not given, by the algorithm.
  void settle_options() {
    if (empty_.empty()) empty_ = batch_.batch > 0 ? "keep" : "reseed";
    if (tolerance_ < 0) tolerance_ = batch_.batch > 0 ? batch_.tolerance : lloyd_.tolerance;
    if (patience_ >= 0) batch_.patience = patience_;
    lloyd_.empty = fit::parse_empty_cluster(empty_);
    lloyd_.tolerance = batch_.tolerance = tolerance_;
    lloyd_.iterations = batch_.iterations = iterations_;
    batch_.seed = static_cast<uint64_t>(seed_);
  }

  fit::KMeansResult iterate(fit::KMeansData& data, const at::Tensor& centres, JobState& state,
                            const jobs::Runtime* executors, bool shows) {
    train::TerminalLine terminal;
    const int64_t rows = batch_.batch > 0 ? batch_.batch : data.rows();
    const auto report = [&](const fit::LloydIteration& line) {
      std::vector<double> figures = {line.inertia, line.shift,
                                     static_cast<double>(line.changed.value_or(-1)), line.seconds};
      if (executors != nullptr) {
        const jobs::Runtime::LastJob job = executors->last_job();
        figures.push_back(job.apart_s);
        figures.insert(figures.end(), job.rows.begin(), job.rows.end());
      }
      state.add(std::move(figures), line.state);
      if (!shows || !terminal.on_terminal()) return;
      const std::string changed =
          line.changed ? fmt::format("  {} labels changed", format_grouped(*line.changed))
                       : std::string();
      terminal.show(
          fmt::format(" iteration {}/{}  inertia {:.6g}  centres moved {:.3g}{}  {} rows/s",
                      line.iteration, iterations_, line.inertia, line.shift, changed,
                      format_count(static_cast<double>(rows) / line.seconds)));
    };
    lloyd_.state = batch_.state = state.stopped();
    return batch_.batch > 0 ? fit::mini_batch(data, centres, batch_, report)
                            : fit::lloyd(data, centres, lloyd_, report);
  }

  std::filesystem::path folder_path() const {
    if (!out_.empty()) return out_;
    return std::filesystem::path("runs") / ("kmeans-" + table_.stem());
  }

  Json to_json(const data::Matrix& matrix, const fit::KMeansResult& result, const RowSample& sample,
               double total_weight) const {
    const double silhouette = fit::silhouette(sample.x, sample.labels);
    const auto* count = result.counts.const_data_ptr<int64_t>();
    Json json = {{"folder", folder_path().string()},
                 {"rows", matrix.x.size(0)},
                 {"columns", matrix.x.size(1)},
                 {"bad_values", matrix.num_bad},
                 {"rows_left_out", matrix.left_out.size()},
                 {"k", k_},
                 {"init", init_},
                 {"seed", seed_},
                 {"batch", batch_.batch},
                 {"iterations", result.iterations},
                 {"converged", result.converged},
                 {"inertia", result.inertia},
                 {"silhouette", std::isfinite(silhouette) ? Json(silhouette) : Json()},
                 {"silhouette_rows", sample.x.size(0)},
                 {"counts", std::vector<int64_t>(count, count + result.counts.numel())}};
    if (!weights_.empty()) json.update({{"weights", weights_}, {"total_weight", total_weight}});
    return json;
  }

  void write(const train::RunFolder& folder, const data::Matrix& matrix,
             const fit::KMeansResult& result, const std::vector<std::vector<double>>& lines,
             const RowSample& sample, const Json& json) const {
    write_table(folder.path() / "centres.csv", matrix.columns, matrix.original(result.centres));
    write_labels(folder.path() / "labels.csv", result.labels, matrix.left_out);
    folder.write_json("kmeans.json", json);
    folder.write_json("machine.json", machine_json());
    std::string text;
    std::vector<Json> steps;
    for (const std::vector<double>& line : lines) {
      Json step = {{"step", steps.size() + 1}, {"inertia", line[0]}, {"moved", line[1]}};
      if (line[2] >= 0) step["changed"] = static_cast<int64_t>(line[2]);
      step["seconds"] = line[3];
      if (line.size() > 4) {  // executors
        step["apart_s"] = line[4];
        step["executor_rows"] = std::vector<int64_t>(line.begin() + 5, line.end());
      }
      text += step.dump() + "\n";
      steps.push_back(std::move(step));
    }
    write_file_atomically(folder.path() / "iterations.jsonl", text);
    const Clusters clusters{.sample = sample.x,
                            .labels = sample.labels,
                            .centres = result.centres,
                            .counts = result.counts};
    write_file_atomically(folder.path() / "report.html", page(clusters, steps, json));
  }

  std::string page(const Clusters& clusters, const std::vector<Json>& steps,
                   const Json& json) const {
    const auto by_iteration = [&](const char* measure, const char* key) {
      std::vector<double> values;
      for (const Json& step : steps)
        if (step.contains(key)) values.push_back(step.at(key).get<double>());
      return iterations_chart(measure, values);
    };
    FitPage page{.title = folder_path().filename().string(),
                 .algorithm = "k-means",
                 .verdict = verdict(json),
                 .where = fmt::format("{}, on {}", table_.data(), machine().cpu_name),
                 .command = command_line(),
                 .tiles = tiles(json)};
    page.sections = {
        {"Clusters", charts_html({clusters_chart(clusters), sizes_chart(clusters.counts),
                                  by_iteration("inertia", "inertia"),
                                  by_iteration("distance that the centres moved", "moved"),
                                  by_iteration("labels that changed", "changed")})}};
    for (PageSection& section : worker_sections(json, steps))
      page.sections.push_back(std::move(section));
    page.sections.push_back({"Sizes", sizes_table(clusters.counts)});
    return fit_page(page);
  }

  static std::vector<report::Tile> tiles(const Json& json) {
    const Json &silhouette = json.at("silhouette"), &seconds = json.at("seconds");
    const auto count = [&](const char* label, const char* key) {
      return report::Tile{.label = label, .value = format_grouped(json.at(key))};
    };
    const auto time = [&](const char* key) {
      return report::short_number(seconds.at(key).get<double>(), 3);
    };
    return {
        number_tile("inertia", json.at("inertia").get<double>()),
        {.label = "silhouette",
         .value = silhouette.is_null() ? "none" : fmt::format("{:.4f}", silhouette.get<double>()),
         .note = fmt::format("of {} rows", format_grouped(json.at("silhouette_rows")))},
        count("rows", "rows"),
        count("columns", "columns"),
        count("clusters", "k"),
        count("iterations", "iterations"),
        {.label = "seconds",
         .value = time("iterations"),
         .note =
             fmt::format("after {} of reading and {} of the start", time("read"), time("init"))},
        {.label = "bad values",
         .value = format_grouped(json.at("bad_values")),
         .note = fmt::format("{} rows left out", format_grouped(json.at("rows_left_out")))}};
  }

  std::string algorithm_words() const {
    std::string line =
        fmt::format(" --k {} --init {} --iterations {} --tolerance {} --empty {} --seed {}", k_,
                    init_, iterations_, tolerance_, empty_, seed_);
    if (!weights_.empty()) line += " --weights " + weights_;
    if (batch_.batch > 0)
      line += fmt::format(" --batch {} --patience {}", batch_.batch, batch_.patience);
    return line;
  }

  std::string command_line() const {
    return "dovetail kmeans " + table_.data_words() + algorithm_words() + table_.worker_words() +
           " --out " + folder_path().string();
  }

  static std::string verdict(const Json& json) {
    return fmt::format("{} rows of {} columns in {} clusters: {} after {} iterations.",
                       format_grouped(json.at("rows")), format_grouped(json.at("columns")),
                       format_grouped(json.at("k")),
                       json.at("converged") ? "converged" : "not converged",
                       format_grouped(json.at("iterations")));
  }

  static std::vector<std::pair<std::string, std::string>> figures(const Json& json) {
    const Json& silhouette = json.at("silhouette");
    std::vector<std::pair<std::string, std::string>> list = {
        {"inertia", fmt::format("{:.6g}", json.at("inertia").get<double>())},
        {fmt::format("silhouette of {} rows", format_grouped(json.at("silhouette_rows"))),
         silhouette.is_null() ? "none" : fmt::format("{:.4f}", silhouette.get<double>())},
        {"rows", format_grouped(json.at("rows"))},
        {"rows left out", format_grouped(json.at("rows_left_out"))},
        {"bad values", format_grouped(json.at("bad_values"))},
        {"iterations", format_grouped(json.at("iterations"))},
        {"seconds of iterations",
         fmt::format("{:.3g}", json.at("seconds").at("iterations").get<double>())}};
    for (auto& figure : TableOptions::worker_figures(json)) list.push_back(std::move(figure));
    return list;
  }

  void print_summary(const Json& json) const {
    std::vector<std::vector<std::string>> rows = {{"clusters", verdict(json)}};
    for (const auto& [label, value] : figures(json)) rows.push_back({label, value});
    rows.push_back({"report", json.at("report").get<std::string>()});
    print(format_table(rows));
  }

  TableOptions table_;
  std::string what_, init_ = "k-means++", weights_, empty_, out_;
  PredictOptions predict_;
  int64_t k_ = 0, iterations_ = 300, seed_ = 0, patience_ = -1;
  double tolerance_ = -1;
  fit::LloydOptions lloyd_;
  fit::MiniBatchOptions batch_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_kmeans_command() { return std::make_unique<KMeansCommand>(); }

}  // namespace dovetail::cli
