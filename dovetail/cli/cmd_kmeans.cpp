#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <charconv>
#include <cmath>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "dovetail/base/cache_folder.h"
#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/log.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/rng.h"
#include "dovetail/base/trace.h"
#include "dovetail/cli/command.h"
#include "dovetail/cli/kmeans_report.h"
#include "dovetail/cli/output.h"
#include "dovetail/data/matrix.h"
#include "dovetail/hybrid/cluster_metrics.h"
#include "dovetail/hybrid/kmeans_init.h"
#include "dovetail/hybrid/runtime.h"
#include "dovetail/train/progress.h"
#include "dovetail/train/run_folder.h"

namespace dovetail::cli {
namespace {

/// Rows of the silhouette and of the picture.
constexpr int64_t kSampleRows = 2000;

const std::map<std::string, BadValues> kBadValues = {
    {"zero", BadValues::kZero}, {"skip", BadValues::kSkip}, {"error", BadValues::kError}};

/// "0,3" as numbers.
std::vector<int64_t> parse_columns(const std::string& text) {
  std::vector<int64_t> columns;
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    int64_t column = 0;
    const auto [next, error] = std::from_chars(at, end, column);
    if (error != std::errc() || (next != end && *next != ',') || next + 1 == end)
      throw UserError(fmt::format("--drop-columns: \"{}\" is no list of columns", text), "for example: 0,3");
    columns.push_back(column);
    at = next + 1;
  }
  return columns;
}

std::string csv_field(const std::string& name) {
  if (name.find_first_of(",\"\r\n") == std::string::npos) return name;
  std::string quoted = "\"";
  for (const char c : name) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

void write_centres(const std::filesystem::path& path, const std::vector<std::string>& columns,
                   const at::Tensor& centres) {
  std::string text;
  for (size_t i = 0; i < columns.size(); ++i) text += (i > 0 ? "," : "") + csv_field(columns[i]);
  text += "\n";
  const auto* value = centres.const_data_ptr<double>();
  for (int64_t c = 0; c < centres.size(0); ++c) {
    for (int64_t p = 0; p < centres.size(1); ++p)
      fmt::format_to(std::back_inserter(text), "{}{}", p > 0 ? "," : "", *value++);
    text += "\n";
  }
  write_file_atomically(path, text);
}

/// "row,label": rows of the file from 0; those that were left out have no line.
void write_labels(const std::filesystem::path& path, const at::Tensor& labels, const std::vector<int64_t>& left_out) {
  constexpr size_t kPieceBytes = size_t{1} << 20;
  AtomicFile file(path);
  std::string text = "row,label\n";
  auto skip = left_out.begin();
  const auto* label = labels.const_data_ptr<int32_t>();
  for (int64_t i = 0, row = 0; i < labels.numel(); ++i, ++row) {
    for (; skip != left_out.end() && *skip == row; ++skip) ++row;
    fmt::format_to(std::back_inserter(text), "{},{}\n", row, label[i]);
    if (text.size() < kPieceBytes) continue;
    file.write(text);
    text.clear();
  }
  file.write(text);
  file.commit();
}

class KMeansCommand : public Command {
 public:
  std::string name() const override { return "kmeans"; }
  std::string summary() const override { return "Cluster the rows of a table of numbers"; }
  std::string example() const override {
    return "dovetail kmeans --data features.parquet --k 8 --drop-columns 0,3 --out runs/clusters";
  }

  void declare(Arguments& arguments) override {
    arguments
        .option("--data", "FILE", &data_,
                "Table: .parquet, .csv, .tsv, .npy; any other name: text with blanks between numbers")
        .is_required()
        .completes(Completion::kFile);
    arguments.option("--k", "K", &k_, "Clusters").is_required().range(1, 1 << 24);
    arguments
        .option("--init", "NAME|FILE", &init_,
                "Where centres start: k-means++, k-means-parallel, random, first, or a table of K rows (k-means++)")
        .completes(Completion::kFile);
    arguments.option("--iterations", "N", &options_.iterations, "At most (300)").range(1, 1e9);
    arguments
        .option("--tolerance", "T", &options_.tolerance,
                "Stop when the centres moved by less: squared, T times the mean variance of the columns (1e-4)")
        .range(0, 1e30);
    arguments
        .option("--empty", "WHAT", &empty_, "A centre without rows: reseed with the farthest row, or keep (reseed)")
        .one_of({"reseed", "keep"});
    arguments.option("--drop-columns", "LIST", &drop_columns_, "Columns to leave out, from 0, such as 0,3");
    arguments.option("--bad-values", "WHAT", &bad_values_, "What is no number: error, zero, or skip its row (error)")
        .one_of({"error", "zero", "skip"});
    arguments.option("--seed", "N", &seed_, "Of the initial centres and of the silhouette's sample (0)").range(0, 9e15);
    arguments.option("--threads", "N", &threads_, "Threads; 0: as torch has them (0)").range(0, 4096);
    arguments.option("--executors", "LIST", &executors_,
                     "Executors that share the rows by their measured speeds, each of so many threads on cores of its "
                     "own, such as cpu:2,cpu:1 (none: --threads share them alike)");
    arguments
        .option(
            "--share", "HOW", &share_,
            "Among executors: stealing (by speed, and who is done helps), affine (by speed), or static (by threads) "
            "(stealing)")
        .one_of({"stealing", "affine", "static"});
    arguments
        .option("--verify", "N", &verify_,
                "Of every N pieces of work compute one on two executors and compare; 0: none (0)")
        .range(0, 1e9);
    arguments.option("--out", "FOLDER", &out_, "Folder of the run (runs/kmeans-<name of the file>)")
        .completes(Completion::kFolder);
    arguments.flag("--json", json_, "Print the result as JSON");
  }

  void check() override {
    if (executors_.empty()) {
      user_check(share_.empty() && verify_ == 0, "--share and --verify are about --executors, of which there are none");
      return;
    }
    hybrid::parse_executors(executors_);
    user_check(threads_ == 0, "--threads: executors have threads of their own; give only --executors {}", executors_);
  }

  void run() override {
    check();
    if (threads_ > 0) at::set_num_threads(static_cast<int>(threads_));
    options_.empty = hybrid::parse_empty_cluster(empty_);
    const double start = now_seconds();
    const Matrix matrix = read_data();
    const std::shared_ptr<hybrid::Runtime> runtime = make_runtime();
    hybrid::KMeansData data(matrix.x, runtime);
    const RunFolder folder(folder_path());
    const double read = now_seconds();
    const at::Tensor centres = initial(data);
    const double begun = now_seconds();
    std::vector<hybrid::LloydIteration> lines;
    const hybrid::KMeansResult result = iterate(data, centres, lines);
    const double done = now_seconds();
    const Sample sample = take_sample(data, result);
    Json json = to_json(matrix, result, sample.silhouette);
    json["seconds"] = {{"read", read - start}, {"init", begun - read}, {"iterations", done - begun}};
    if (runtime) {
      json["executors"] = to_json(runtime->report());
      runtime->save_speeds();
    }
    json["report"] = (folder.path() / "report.html").string();
    write(folder, matrix, result, lines, sample, json);
    if (json_) {
      print_json(json);
    } else {
      print_summary(json);
    }
  }

 private:
  using Json = nlohmann::ordered_json;

  struct Sample {
    at::Tensor x, labels;
    double silhouette = 0;
  };

  Matrix read_data() const {
    Matrix matrix =
        read_matrix(data_, {.bad_values = kBadValues.at(bad_values_), .drop_columns = parse_columns(drop_columns_)});
    if (matrix.num_bad > 0) {
      log_warning("{}: {} bad values, {}", data_, format_grouped(matrix.num_bad),
                  bad_values_ == "zero" ? std::string("0 in their place")
                                        : fmt::format("{} rows left out", format_grouped(std::ssize(matrix.left_out))));
      for (const std::string& bad : matrix.first_bad) log_info("  {}", bad);
    }
    return matrix;
  }

  std::shared_ptr<hybrid::Runtime> make_runtime() const {
    if (executors_.empty()) return nullptr;
    hybrid::SchedulerOptions scheduling{.verify_every = verify_};
    if (!share_.empty()) scheduling.policy = hybrid::parse_share_policy(share_);
    return std::make_shared<hybrid::Runtime>(
        hybrid::parse_executors(executors_),
        hybrid::RuntimeOptions{.scheduling = scheduling, .speeds = cache_folder("speeds")});
  }

  static Json to_json(const std::vector<hybrid::Runtime::Report>& reports) {
    Json list = Json::array();
    for (const auto& report : reports) {
      list.push_back({{"name", report.name}, {"rows", report.rows}});
      if (report.left_out) list.back()["left_out"] = *report.left_out;
    }
    return list;
  }

  at::Tensor initial(hybrid::KMeansData& data) const {
    if (hybrid::is_kmeans_init(init_))
      return hybrid::initial_centres(data, k_, hybrid::parse_kmeans_init(init_), static_cast<uint64_t>(seed_));
    if (!std::filesystem::exists(init_))
      throw UserError(
          fmt::format("--init: {} is neither a file nor k-means++, k-means-parallel, random or first", init_));
    const Matrix matrix = read_matrix(init_);
    user_check(matrix.x.size(0) == k_ && matrix.x.size(1) == data.columns(),
               "--init: {} has {} rows of {} columns, not {} (--k) of {} (the data)", init_, matrix.x.size(0),
               matrix.x.size(1), k_, data.columns());
    return matrix.x.to(at::kDouble);
  }

  hybrid::KMeansResult iterate(hybrid::KMeansData& data, const at::Tensor& centres,
                               std::vector<hybrid::LloydIteration>& lines) const {
    TerminalLine terminal;
    return hybrid::lloyd(data, centres, options_, [&](const hybrid::LloydIteration& line) {
      lines.push_back(line);
      if (terminal.on_terminal())
        terminal.show(
            fmt::format(" iteration {}/{}  inertia {:.6g}  centres moved {:.3g}  {} labels changed  {} rows/s",
                        line.iteration, options_.iterations, line.inertia, line.shift, format_grouped(line.changed),
                        format_count(static_cast<double>(data.rows()) / line.seconds)));
    });
  }

  std::filesystem::path folder_path() const {
    if (!out_.empty()) return out_;
    return std::filesystem::path("runs") / ("kmeans-" + std::filesystem::path(data_).stem().string());
  }

  Sample take_sample(const hybrid::KMeansData& data, const hybrid::KMeansResult& result) const {
    const auto rows = static_cast<uint64_t>(data.rows());
    std::vector<int64_t> index;
    for (uint64_t i = 0; i < std::min<uint64_t>(rows, kSampleRows); ++i)
      index.push_back(static_cast<int64_t>(permuted_index(static_cast<uint64_t>(seed_), i, rows)));
    const at::Tensor which = at::tensor(index, at::kLong);
    Sample sample{.x = data.x().index_select(0, which), .labels = result.labels.index_select(0, which)};
    sample.silhouette = hybrid::silhouette(sample.x, sample.labels);
    return sample;
  }

  Json to_json(const Matrix& matrix, const hybrid::KMeansResult& result, double silhouette) const {
    const auto* count = result.counts.const_data_ptr<int64_t>();
    return {{"folder", folder_path().string()},
            {"rows", matrix.x.size(0)},
            {"columns", matrix.x.size(1)},
            {"bad_values", matrix.num_bad},
            {"rows_left_out", matrix.left_out.size()},
            {"k", k_},
            {"init", init_},
            {"seed", seed_},
            {"iterations", result.iterations},
            {"converged", result.converged},
            {"inertia", result.inertia},
            {"silhouette", std::isfinite(silhouette) ? Json(silhouette) : Json()},
            {"silhouette_rows", std::min(matrix.x.size(0), kSampleRows)},
            {"counts", std::vector<int64_t>(count, count + result.counts.numel())}};
  }

  void write(const RunFolder& folder, const Matrix& matrix, const hybrid::KMeansResult& result,
             const std::vector<hybrid::LloydIteration>& lines, const Sample& sample, const Json& json) const {
    write_centres(folder.path() / "centres.csv", matrix.columns, result.centres);
    write_labels(folder.path() / "labels.csv", result.labels, matrix.left_out);
    folder.write_json("kmeans.json", json);
    folder.write_json("machine.json", machine_json());
    std::string text;
    for (const hybrid::LloydIteration& line : lines)
      text += Json{{"step", line.iteration},
                   {"inertia", line.inertia},
                   {"moved", line.shift},
                   {"changed", line.changed},
                   {"seconds", line.seconds}}
                  .dump() +
              "\n";
    write_file_atomically(folder.path() / "iterations.jsonl", text);
    write_file_atomically(folder.path() / "report.html",
                          kmeans_page({.title = folder_path().filename().string(),
                                       .verdict = verdict(json),
                                       .where = fmt::format("{}, on {}", data_, machine().cpu_name),
                                       .figures = figures(json),
                                       .iterations = lines,
                                       .sample = sample.x,
                                       .labels = sample.labels,
                                       .centres = result.centres,
                                       .counts = result.counts,
                                       .plane = hybrid::principal_plane(sample.x),
                                       .command = command_line()}));
  }

  std::string command_line() const {
    std::string line = fmt::format(
        "dovetail kmeans --data {} --k {} --init {} --iterations {} --tolerance {:g} --empty "
        "{} --bad-values {} --seed {}",
        data_, k_, init_, options_.iterations, options_.tolerance, empty_, bad_values_, seed_);
    if (!drop_columns_.empty()) line += " --drop-columns " + drop_columns_;
    if (!executors_.empty()) line += " --executors " + executors_;
    if (!share_.empty()) line += " --share " + share_;
    if (verify_ > 0) line += fmt::format(" --verify {}", verify_);
    return line + " --out " + folder_path().string();
  }

  static std::string verdict(const Json& json) {
    return fmt::format("{} rows of {} columns in {} clusters: {} after {} iterations.", format_grouped(json.at("rows")),
                       format_grouped(json.at("columns")), format_grouped(json.at("k")),
                       json.at("converged") ? "converged" : "not converged", format_grouped(json.at("iterations")));
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
        {"seconds of iterations", fmt::format("{:.3g}", json.at("seconds").at("iterations").get<double>())}};
    for (const Json& executor : json.value("executors", Json::array()))
      list.emplace_back("rows of " + executor.at("name").get<std::string>(),
                        format_grouped(executor.at("rows")) +
                            (executor.contains("left_out") ? ", left out: " + executor.at("left_out").get<std::string>()
                                                           : std::string()));
    return list;
  }

  void print_summary(const Json& json) const {
    std::vector<std::vector<std::string>> rows = {{"clusters", verdict(json)}};
    for (const auto& [label, value] : figures(json)) rows.push_back({label, value});
    rows.push_back({"report", json.at("report").get<std::string>()});
    print(format_table(rows));
  }

  std::string data_, init_ = "k-means++", empty_ = "reseed", drop_columns_, bad_values_ = "error", out_;
  std::string executors_, share_;
  int64_t k_ = 0, seed_ = 0, threads_ = 0, verify_ = 0;
  hybrid::LloydOptions options_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_kmeans_command() { return std::make_unique<KMeansCommand>(); }

}  // namespace dovetail::cli
