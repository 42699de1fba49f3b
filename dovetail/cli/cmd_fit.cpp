#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "dovetail/base/error.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/trace.h"
#include "dovetail/cli/fit_models.h"
#include "dovetail/cli/output.h"

namespace dovetail::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Model {
  const char* name;
  void (*fit)(const FitOptions&, const FitContext&, FitOutcome&);
  std::vector<std::string> options;   ///< beside those of tables
  std::vector<std::string> required;  ///< of these
  FitOptions defaults;
};

const std::array<Model, 4>& models() {
  static const std::array<Model, 4> all = {{
      {"gmm",
       fit_gmm,
       {"--k", "--covariance", "--init", "--seed", "--iterations", "--tolerance", "--regularization"},
       {"--k"},
       {.iterations = 100, .tolerance = 1e-3, .regularization = 1e-6}},
      {"linear", fit_linear_model, {"--target", "--l2"}, {"--target"}, {}},
      {"logistic",
       fit_logistic_model,
       {"--target", "--l2", "--iterations", "--tolerance"},
       {"--target"},
       {.iterations = 200, .tolerance = 1e-6, .l2 = 1}},
      {"pca",
       fit_pca,
       {"--components", "--seed", "--iterations", "--tolerance"},
       {},
       {.components = 2, .iterations = 300, .tolerance = 1e-8}},
  }};
  return all;
}

class FitCommand : public Command {
 public:
  std::string name() const override { return "fit"; }
  std::string summary() const override {
    return "Fit a mixture, a regression or principal components to a table of numbers";
  }
  std::string example() const override { return "dovetail fit logistic --data flights.parquet --target late"; }

  void declare(Arguments& arguments) override {
    arguments
        .positional("model", &model_,
                    "gmm (a mixture of normal distributions), linear or logistic (regression, on any number of "
                    "classes), pca (principal components)")
        .is_required()
        .one_of({"gmm", "linear", "logistic", "pca"});
    table_.declare_data(arguments);
    arguments.option("--target", "COLUMN", &given_.target,
                     "linear, logistic: the column to predict, by its name (c and its number where the file has none)");
    arguments
        .option("--l2", "L", &given_.l2,
                "linear: L |w|^2 is added to the sum of squares (0); logistic: L |w|^2 / 2 to the sum of losses (1)")
        .range(0, 1e30);
    arguments.option("--k", "K", &given_.k, "gmm: components").range(1, 1 << 20);
    arguments.option("--covariance", "WHAT", &given_.covariance, "gmm: full, or diag: columns independent (full)")
        .one_of({"full", "diag"});
    arguments
        .option("--init", "NAME|FILE", &given_.init,
                "gmm: where k-means starts, of whose clusters the first components are made, as in dovetail kmeans "
                "(k-means++)")
        .completes(Completion::kFile);
    arguments.option("--regularization", "R", &given_.regularization, "gmm: is added to every variance (1e-6)")
        .range(0, 1e30);
    arguments.option("--components", "N", &given_.components, "pca: directions (2)").range(1, 1 << 20);
    arguments.option("--iterations", "N", &given_.iterations, "At most (gmm 100, logistic 200, pca 300)").range(1, 1e9);
    arguments
        .option("--tolerance", "T", &given_.tolerance,
                "Stop: gmm when the log-likelihood of a row changed by less (1e-3); logistic when no element of the "
                "gradient is larger (1e-6); pca when directions are right to this part of the largest variance (1e-8)")
        .range(0, 1e30);
    arguments
        .option("--seed", "N", &given_.seed, "gmm: of the start and of the picture's sample; pca: of the start (0)")
        .range(0, 9e15);
    table_.declare_workers(arguments);
    arguments.option("--out", "FOLDER", &out_, "Folder of the run (runs/<model>-<name of the file>)")
        .completes(Completion::kFolder);
    arguments.flag("--json", json_, "Print the result as JSON");
  }

  void check() override {
    table_.check();
    const Model& model = this->model();
    const auto has = [](const std::vector<std::string>& list, const std::string& name) {
      return std::ranges::find(list, name) != list.end();
    };
    for (const std::string& name : given_names())
      user_check(has(model.options, name), "{}: {} has no use for it; its options are {}", name, model.name,
                 fmt::join(model.options, ", "));
    const auto given = given_names();
    for (const std::string& name : model.required)
      user_check(has(given, name), "dovetail fit {} needs {}", model.name, name);
  }

  void run() override {
    check();
    const FitOptions options = resolved();
    const double start = now_seconds();
    const Matrix matrix = table_.read();
    const auto runtime = table_.make_runtime();
    const std::filesystem::path path = out_.empty() ? "runs/" + model_ + "-" + table_.stem() : out_;
    const RunFolder folder(path);
    const double read = now_seconds();
    Json json = {{"folder", path.string()},
                 {"model", model_},
                 {"rows", matrix.x.size(0)},
                 {"bad_values", matrix.num_bad},
                 {"rows_left_out", matrix.left_out.size()}};
    FitOutcome outcome{.result = json, .verdict = {}, .figures = {}};
    model().fit(options,
                {.matrix = matrix,
                 .runtime = runtime,
                 .folder = folder,
                 .title = path.filename().string(),
                 .where = fmt::format("{}, on {}", table_.data(), machine().cpu_name),
                 .command = command_line(options, path)},
                outcome);
    json["seconds"] = {{"read", read - start}, {"fit", now_seconds() - read}};
    TableOptions::finish(runtime.get(), json);
    folder.write_json("fit.json", json);
    folder.write_json("machine.json", machine_json());
    if (json_) {
      print_json(json);
    } else {
      print_summary(json, outcome);
    }
  }

 private:
  const Model& model() const {
    return *std::ranges::find_if(models(), [this](const Model& model) { return model.name == model_; });
  }

  std::vector<std::string> given_names() const {
    std::vector<std::string> names;
    const auto add = [&](const char* name, bool given) {
      if (given) names.emplace_back(name);
    };
    add("--target", !given_.target.empty());
    add("--l2", given_.l2 >= 0);
    add("--k", given_.k > 0);
    add("--components", given_.components > 0);
    add("--covariance", !given_.covariance.empty());
    add("--init", !given_.init.empty());
    add("--regularization", given_.regularization >= 0);
    add("--iterations", given_.iterations > 0);
    add("--tolerance", given_.tolerance >= 0);
    add("--seed", given_.seed >= 0);
    return names;
  }

  /// What was given, and the model's defaults.
  FitOptions resolved() const {
    FitOptions options = model().defaults;
    options.target = given_.target;
    options.k = given_.k;
    if (given_.components > 0) options.components = given_.components;
    if (!given_.covariance.empty()) options.covariance = given_.covariance;
    if (!given_.init.empty()) options.init = given_.init;
    if (given_.l2 >= 0) options.l2 = given_.l2;
    if (given_.regularization >= 0) options.regularization = given_.regularization;
    if (given_.iterations > 0) options.iterations = given_.iterations;
    if (given_.tolerance >= 0) options.tolerance = given_.tolerance;
    if (given_.seed >= 0) options.seed = given_.seed;
    return options;
  }

  std::string command_line(const FitOptions& options, const std::filesystem::path& path) const {
    std::string line = fmt::format("dovetail fit {} {}", model_, table_.data_words());
    for (const std::string& name : model().options) {
      line += " " + name + " ";
      if (name == "--target") line += options.target;
      if (name == "--l2") line += fmt::format("{}", options.l2);
      if (name == "--k") line += fmt::format("{}", options.k);
      if (name == "--components") line += fmt::format("{}", options.components);
      if (name == "--covariance") line += options.covariance;
      if (name == "--init") line += options.init;
      if (name == "--regularization") line += fmt::format("{}", options.regularization);
      if (name == "--iterations") line += fmt::format("{}", options.iterations);
      if (name == "--tolerance") line += fmt::format("{}", options.tolerance);
      if (name == "--seed") line += fmt::format("{}", options.seed);
    }
    return line + table_.worker_words() + " --out " + path.string();
  }

  void print_summary(const Json& json, const FitOutcome& outcome) const {
    std::vector<std::vector<std::string>> rows = {{model_, outcome.verdict}};
    for (const auto& [label, value] : outcome.figures) rows.push_back({label, value});
    rows.push_back({"rows left out", format_grouped(json.at("rows_left_out"))});
    rows.push_back({"seconds", fmt::format("{:.3g}", json.at("seconds").at("fit").get<double>())});
    for (const auto& [label, value] : TableOptions::executor_figures(json)) rows.push_back({label, value});
    rows.push_back({"folder", json.at("folder").get<std::string>()});
    print(format_table(rows));
  }

  TableOptions table_;
  std::string model_, out_;
  /// What was not given is empty or -1.
  FitOptions given_ = {.init = {},
                       .covariance = {},
                       .target = {},
                       .k = -1,
                       .components = -1,
                       .iterations = -1,
                       .seed = -1,
                       .tolerance = -1,
                       .l2 = -1,
                       .regularization = -1};
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_fit_command() { return std::make_unique<FitCommand>(); }

}  // namespace dovetail::cli
