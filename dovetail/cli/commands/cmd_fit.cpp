#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/table.h"
#include "dovetail/base/trace.h"
#include "dovetail/cli/fit/fit_models.h"
#include "dovetail/cli/fit/fitted_model.h"
#include "dovetail/cli/fit/predict.h"
#include "dovetail/cli/parse/output.h"
#include "dovetail/fit/components/principal_components.h"
#include "dovetail/fit/mixture/mixture.h"
#include "dovetail/fit/regression/regression.h"
#include "dovetail/report/drawing.h"

namespace dovetail::cli {
namespace {

using Json = nlohmann::ordered_json;

/// Word in place of a model that applies a fitted one.
constexpr const char* kPredict = "predict";

struct Model {
  const char* name;
  void (*fit)(const FitOptions&, const FitContext&, FitOutcome&);
  FitOptions defaults;
};

/// Models and their default options, which come from fit/.
const std::array<Model, 4>& models() {
  const fit::MixtureOptions mixture;
  const fit::LogisticOptions logistic;
  const fit::PrincipalOptions principal;
  static const std::array<Model, 4> all = {{
      {"gmm",
       fit_gmm,
       {.iterations = mixture.iterations,
        .tolerance = mixture.tolerance,
        .regularization = mixture.regularization}},
      {"linear", fit_linear_model, {}},
      {"logistic",
       fit_logistic_model,
       {.iterations = logistic.iterations, .tolerance = logistic.tolerance, .l2 = logistic.l2}},
      {"pca",
       fit_pca,
       {.components = principal.components,
        .iterations = principal.iterations,
        .tolerance = principal.tolerance}},
  }};
  return all;
}

const Model& model_of(const std::string& name) {
  return *std::ranges::find_if(models(), [&](const Model& model) { return model.name == name; });
}

/// Declares the options of models. The parser refuses an option if the model does not have it.
void declare_models(Arguments& arguments, FitOptions& options) {
  const FitOptions &gmm = model_of("gmm").defaults, &linear = model_of("linear").defaults,
                   &logistic = model_of("logistic").defaults, &pca = model_of("pca").defaults;
  arguments
      .option("--target", "COLUMN", &options.target,
              "column to predict, by its name (c and its number if the file has no names)")
      .goes_with({"linear", "logistic"})
      .is_required();
  arguments
      .option(
          "--l2", "L", &options.l2,
          fmt::format(
              "adds L |w|^2 to the sum of squares ({}), or L |w|^2 / 2 to the sum of losses ({})",
              linear.l2, logistic.l2))
      .goes_with({"linear", "logistic"})
      .range(0, 1e30);
  arguments.option("--k", "K", &options.k, "components")
      .goes_with({"gmm"})
      .is_required()
      .range(1, 1 << 20);
  arguments
      .option("--covariance", "WHAT", &options.covariance,
              fmt::format("full, diag: columns independent, tied: one for all components, or "
                          "spherical: one variance a component ({})",
                          gmm.covariance))
      .goes_with({"gmm"})
      .one_of({"full", "diag", "tied", "spherical"});
  arguments
      .option("--init", "NAME|FILE", &options.init,
              fmt::format("start of k-means, whose clusters give the first components, as in "
                          "dovetail kmeans ({})",
                          gmm.init))
      .goes_with({"gmm"})
      .completes(Completion::kFile);
  arguments
      .option("--regularization", "R", &options.regularization,
              fmt::format("value added to each variance ({})", gmm.regularization))
      .goes_with({"gmm"})
      .range(0, 1e30);
  arguments
      .option("--components", "N", &options.components,
              fmt::format("directions ({})", pca.components))
      .goes_with({"pca"})
      .range(1, 1 << 20);
  arguments
      .option(
          "--solver", "WHAT", &options.solver,
          fmt::format("covariance: one pass over the rows for their covariance matrix. power: a "
                      "pass an iteration, for very many columns. auto: covariance up to {} "
                      "columns ({})",
                      format_grouped(fit::kMostCovariance), pca.solver))
      .goes_with({"pca"})
      .one_of({"auto", "covariance", "power"});
  arguments
      .option("--iterations", "N", &options.iterations,
              fmt::format("maximum number of iterations ({}, {}, {} of the solver power)",
                          gmm.iterations, logistic.iterations, pca.iterations))
      .goes_with({"gmm", "logistic", "pca"})
      .range(1, 1e9);
  arguments
      .option(
          "--tolerance", "T", &options.tolerance,
          fmt::format("stop below this value. gmm: change of the log-likelihood of a row ({}). "
                      "logistic: largest element of the gradient ({}). pca, solver power: error "
                      "of directions, as a part of the largest variance ({})",
                      gmm.tolerance, logistic.tolerance, pca.tolerance))
      .goes_with({"gmm", "logistic", "pca"})
      .range(0, 1e30);
  arguments
      .option("--seed", "N", &options.seed,
              fmt::format("of the start (pca: of the solver power), and of the sample in a picture "
                          "({})",
                          gmm.seed))
      .goes_with({"gmm", "pca"})
      .range(0, 9e15);
}

/// Returns all options of a model: "--k 3 --covariance full".
std::string words_of(const std::string& model, FitOptions options) {
  Arguments arguments;
  declare_models(arguments, options);
  std::string words;
  const auto add = [&](const std::string& name, const auto& value) {
    words += fmt::format(" {} {}", name, value);
  };
  for (const Argument& argument : arguments.list()) {
    if (!argument.goes_with_only(model)) continue;
    if (auto* const* text = std::get_if<std::string*>(&argument.target)) add(argument.name, **text);
    if (auto* const* number = std::get_if<int64_t*>(&argument.target)) add(argument.name, **number);
    if (auto* const* number = std::get_if<double*>(&argument.target)) add(argument.name, **number);
  }
  return words;
}

}  // namespace

void write_iterations(const train::RunFolder& folder, const std::vector<std::vector<double>>& lines,
                      const std::vector<const char*>& names) {
  std::string text;
  for (size_t i = 0; i < lines.size(); ++i) {
    Json step = {{"step", i + 1}};
    for (size_t name = 0; name < names.size(); ++name) step[names[name]] = lines[i].at(name);
    text += step.dump() + "\n";
  }
  write_file_atomically(folder.path() / "iterations.jsonl", text);
}

namespace {

class FitCommand : public Command {
 public:
  std::string name() const override { return "fit"; }
  std::string summary() const override {
    return "Fit a mixture, a regression or principal components to a table of numbers, or apply "
           "one";
  }
  std::string example() const override {
    return "dovetail fit logistic --data flights.parquet --target late";
  }

  void declare(Arguments& arguments) override {
    arguments
        .positional("model", &model_,
                    "gmm (mixture of normal distributions), linear or logistic (regression, for "
                    "any number of classes), pca (principal components). predict: apply the model "
                    "of RUN to other rows")
        .is_required()
        .one_of({"gmm", "linear", "logistic", "pca", kPredict});
    arguments.positional("run", &model_run_, "folder of the run whose model predicts")
        .goes_with({kPredict})
        .completes(Completion::kFolder);
    table_.declare_data(arguments);
    declare_models(arguments, given_);
    Arguments workers;
    table_.declare_workers(workers);
    arguments.add_only_for({"gmm", "linear", "logistic", "pca"}, workers);
    arguments
        .option("--out", "PATH", &out_,
                "Folder of the run (runs/<model>-<name of the file>); with predict the file of "
                "the predictions, CSV")
        .completes(Completion::kFile);
    arguments.flag("--json", json_, "Print the result as JSON");
  }

  void check() override {
    user_check(model_ != "linear" || !table_.fresh(),
               "--fresh starts a stopped job over, but fit linear is one pass that leaves nothing "
               "to continue; leave it out");
    if (model_ == kPredict) {
      if (model_run_.empty())
        throw UserError("dovetail fit predict: the folder of a run is missing",
                        "for example: dovetail fit predict runs/linear-houses --data new.csv "
                        "--out prices.csv");
      user_check(!out_.empty(), "dovetail fit predict: --out is required: the file of predictions");
    }
    table_.check();
  }

  void run() override {
    check();
    model_ == kPredict ? predict() : fit();
  }

 private:
  void predict() const {
    const std::shared_ptr<comm::Group> group = table_.join();
    user_check(group->size() == 1,
               "dovetail fit predict runs on one node; leave out `dovetail "
               "launch`");
    const FittedModel model = load_model(model_run_);
    const data::Matrix matrix = table_.read(*group, {.columns = model.columns,
                                                     .columns_by = "the model of " + model_run_,
                                                     .type = data::MatrixType::kExact});
    write_predictions(out_, model, columns_of(model, matrix), matrix.left_out);
    const Json json = {{"file", out_},
                       {"model", model.model},
                       {"rows", matrix.x.size(0)},
                       {"bad_values", matrix.num_bad},
                       {"rows_left_out", matrix.left_out.size()}};
    if (json_) return print_json(json);
    print(format_table({{"rows", format_grouped(matrix.x.size(0))},
                        {"rows left out", format_grouped(std::ssize(matrix.left_out))},
                        {"file", out_}}));
  }

  void fit() {
    const FitOptions options = resolved();
    const double start = now_seconds();
    const std::shared_ptr<comm::Group> group = table_.join();
    const std::filesystem::path path = out_.empty() ? "runs/" + model_ + "-" + table_.stem() : out_;
    const bool writes = group->rank() == 0;
    std::optional<train::RunFolder> folder;
    if (writes) folder.emplace(path);
    const data::Matrix matrix = table_.read(
        *group,
        {.target = options.target,
         .target_kind = model_ == "logistic" ? data::TargetKind::kClass : data::TargetKind::kNumber,
         .type = data::MatrixType::kExact});
    const auto workers = table_.make_workers(group);
    const std::string words = words_of(model_, options);
    JobState state(*group, path,
                   "fit " + model_ + " " + table_.table_words() + words + file_words(options.init),
                   table_.fresh());
    const double read = now_seconds();
    Json json = {{"folder", path.string()},
                 {"model", model_},
                 {"rows", matrix.x.size(0)},
                 {"bad_values", matrix.num_bad},
                 {"rows_left_out", matrix.left_out.size()}};
    FitOutcome outcome{
        .result = json, .verdict = {}, .figures = {}, .tiles = {}, .sections = {}, .write = {}};
    const FitContext context{.matrix = matrix, .workers = workers, .state = state, .shows = writes};
    check_solver(options, matrix.x.size(1));
    try {
      model_of(model_).fit(options, context, outcome);
    } catch (const UserError&) {
      state.done();  // a resumed job would end in the same way
      throw;
    }
    json["seconds"] = {{"read", read - start}, {"fit", now_seconds() - read}};
    table_.finish(workers.get(), json);
    if (!writes) return;
    json["report"] = (path / "report.html").string();
    outcome.write(*folder);
    folder->write_json("fit.json", json);
    folder->write_json("machine.json", machine_json());
    write_file_atomically(
        path / "report.html",
        page(outcome, path.filename().string(),
             fmt::format(
                 "dovetail fit {} {}{}{} --out {}", model_, table_.data_words(),
                 is_one_pass(options, matrix.x.size(1))
                     ? fmt::format(" --components {} --solver covariance", options.components)
                     : words,
                 table_.worker_words(), path.string())));
    state.done();
    if (json_) {
      print_json(json);
    } else {
      print_summary(json, outcome);
    }
  }

  /// Returns true for principal components from one pass, which have no options of an iteration.
  bool is_one_pass(const FitOptions& options, int64_t columns) const {
    return model_ == "pca" && fit::resolved(fit::parse_principal_solver(options.solver), columns) !=
                                  fit::PrincipalSolver::kPower;
  }

  /// Refuses options of an iteration that the solver does not have.
  void check_solver(const FitOptions& options, int64_t columns) const {
    if (!is_one_pass(options, columns)) return;
    const char* name = given_.iterations > 0   ? "--iterations"
                       : given_.tolerance >= 0 ? "--tolerance"
                       : given_.seed >= 0      ? "--seed"
                                               : nullptr;
    if (name != nullptr)
      throw UserError(fmt::format("dovetail fit pca: {} is an option of --solver power; the "
                                  "components of {} columns are found in one pass",
                                  name, columns),
                      "leave it out, or add --solver power");
  }

  /// Returns the given options, with the model's defaults for all others.
  FitOptions resolved() const {
    FitOptions options = model_of(model_).defaults;
    options.target = given_.target;
    options.k = given_.k;
    if (given_.components > 0) options.components = given_.components;
    if (!given_.covariance.empty()) options.covariance = given_.covariance;
    if (!given_.init.empty()) options.init = given_.init;
    if (!given_.solver.empty()) options.solver = given_.solver;
    if (given_.l2 >= 0) options.l2 = given_.l2;
    if (given_.regularization >= 0) options.regularization = given_.regularization;
    if (given_.iterations > 0) options.iterations = given_.iterations;
    if (given_.tolerance >= 0) options.tolerance = given_.tolerance;
    if (given_.seed >= 0) options.seed = given_.seed;
    return options;
  }

  std::string page(const FitOutcome& outcome, const std::string& title,
                   const std::string& command) const {
    const Json& json = outcome.result;
    FitPage page{.title = title,
                 .algorithm = model_,
                 .verdict = outcome.verdict,
                 .where = fmt::format("{}, on {}", table_.data(), machine().cpu_name),
                 .command = command,
                 .tiles = outcome.tiles,
                 .sections = outcome.sections()};
    const auto time = [&](const char* key) {
      return report::short_number(json.at("seconds").at(key).get<double>(), 3);
    };
    page.tiles.push_back({.label = "rows", .value = format_grouped(json.at("rows"))});
    page.tiles.push_back({.label = "seconds",
                          .value = time("fit"),
                          .note = fmt::format("after {} of reading", time("read"))});
    page.tiles.push_back(
        {.label = "bad values",
         .value = format_grouped(json.at("bad_values")),
         .note = fmt::format("{} rows left out", format_grouped(json.at("rows_left_out")))});
    for (PageSection& section : worker_sections(json, {}))
      page.sections.push_back(std::move(section));
    return fit_page(page);
  }

  void print_summary(const Json& json, const FitOutcome& outcome) const {
    std::vector<std::vector<std::string>> rows = {{model_, outcome.verdict}};
    for (const auto& [label, value] : outcome.figures) rows.push_back({label, value});
    rows.push_back({"rows left out", format_grouped(json.at("rows_left_out"))});
    rows.push_back({"seconds", fmt::format("{:.3g}", json.at("seconds").at("fit").get<double>())});
    for (const auto& [label, value] : TableOptions::worker_figures(json))
      rows.push_back({label, value});
    rows.push_back({"folder", json.at("folder").get<std::string>()});
    print(format_table(rows));
  }

  TableOptions table_;
  std::string model_, model_run_, out_;
  /// Options as given; empty or -1 if not given.
  FitOptions given_ = {.init = {},
                       .covariance = {},
                       .target = {},
                       .solver = {},
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
