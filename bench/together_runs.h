#pragma once

#include <ATen/ops/equal.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "bench/together.h"
#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/rng.h"
#include "dovetail/io/checkpoint.h"
#include "dovetail/train/config/run_config.h"
#include "dovetail/train/resolve/load_config.h"
#include "dovetail/train/trainer.h"

/// Trains the runs that bench/together.h defines.
namespace dovetail::together {

inline constexpr int64_t kSteps = 20;

inline constexpr const char* kTrainToml = R"(
[run]
device = "cpu"
threads = 1
[train]
steps = 20
batch = 16
micro_batch = 4
[optimizer]
lr = 1e-3
[checkpoint]
every_steps = "end"
[eval]
every_steps = 0
[log]
tensorboard = false
)";

/// Result of one run: its losses and final tensors, or the reason why the engine refuses it.
struct Run {
  std::optional<std::string> refusal;
  std::vector<double> losses;
  io::Snapshot end;
};

/// Writes texts and clicks to train on.
inline void write_data(const std::filesystem::path& folder) {
  static const char* const kWords[] = {"two ",   "gears ", "mesh ", "and ",    "neither ",
                                       "waits ", "for ",   "the ",  "other.\n"};
  const auto draw = [](uint64_t key, int i, uint64_t below) {
    return random_below(key, RandomStream::kTest, static_cast<uint64_t>(i), below);
  };
  std::string text, rows = "user\titem\tsize\tclicked\n";
  for (int i = 0; i < 4000; ++i) text += kWords[draw(7, i, std::size(kWords))];
  for (int i = 0; i < 2000; ++i) {
    const uint64_t user = draw(1, i, 300), item = draw(2, i, 200);
    rows += fmt::format("u{}\ti{}\t{}\t{}\n", user, item, draw(6, i, 100), (user + item) % 2);
  }
  write_file_atomically(folder / "text.txt", text);
  write_file_atomically(folder / "clicks.tsv", rows);
}

/// Runs in one folder. Each run is trained once.
class Runs {
 public:
  explicit Runs(std::filesystem::path folder) : folder_(std::move(folder)) {
    std::filesystem::create_directories(folder_);
    write_data(folder_);
  }

  using Set = std::set<size_t>;  ///< indices into kCapabilities

  /// Returns the reason why a run is refused before it begins, or nullopt. Trains nothing.
  std::optional<std::string> refusal(const Model& model, const Set& with) {
    const Job job = make_job(model, with);
    try {
      train_on(job.ranks, train::load_run_config(job.file, job.settings),
               {.dry_run = true, .quiet = true});
    } catch (const UserError& error) {
      return error.what();
    }
    return std::nullopt;
  }

  const Run& run(const Model& model, const Set& with) {
    const auto key = std::pair(std::string(model.name), with);
    if (const auto found = runs_.find(key); found != runs_.end()) return found->second;
    return runs_.emplace(key, make_run(model, with)).first->second;
  }

  Cell cell(const Model& model, size_t first, size_t second) {
    const Run& both = run(model, {first, second});
    Cell cell{.refusal = both.refusal, .without = {}};
    if (cell.refusal) return cell;
    cell.without = {change(both, run(model, {second}), most_change(first, second)),
                    change(both, run(model, {first}), most_change(second, first))};
    return cell;
  }

 private:
  struct Job {
    int ranks = 1;
    std::filesystem::path file;
    std::vector<std::string> settings;
  };

  Job make_job(const Model& model, const Set& with) const {
    Job job;
    std::string name = model.name;
    for (const size_t i : with) {
      const Capability& capability = kCapabilities[i];
      name += fmt::format("+{}", capability.name);
      for (const char* setting : capability.*model.settings) job.settings.emplace_back(setting);
      if (capability.ranks) job.ranks = 2;
    }
    const bool of_rows = model.settings == &Capability::dlrm;
    const auto path = [this](const std::string& file) {
      return '"' + (folder_ / file).string() + '"';
    };
    job.settings.push_back("run.folder=" + path(name));
    job.settings.push_back(of_rows ? "rows.files=[" + path("clicks.tsv") + "]"
                                   : "data.text=[" + path("text.txt") + "]");
    if (!of_rows) job.settings.push_back("data.path=" + path("data"));
    job.file = folder_ / (name + ".toml");
    write_file_atomically(job.file, std::string(kTrainToml) + model.toml);
    return job;
  }

  /// Returns a refusal or a whole run. Errors during the run are thrown.
  Run make_run(const Model& model, const Set& with) {
    Run run{.refusal = refusal(model, with), .losses = {}, .end = {}};
    if (run.refusal) return run;
    const Job job = make_job(model, with);
    const train::RunConfig config = train::load_run_config(job.file, job.settings);
    // A process records one step at a time. So each rank with a plan needs a process of its own.
    if (job.ranks > 1 && !config.memory.budget.empty()) {
      launch(job);
    } else {
      train_on(job.ranks, config, {.quiet = true});
    }
    std::istringstream lines(read_file((config.folder() / "metrics.jsonl").string()));
    for (std::string line; std::getline(lines, line);)
      run.losses.push_back(nlohmann::json::parse(line)["loss"].get<double>());
    run.end = io::read_latest_checkpoint(config.folder() / "checkpoints");
    return run;
  }

  static void train_on(int ranks, const train::RunConfig& config,
                       const train::TrainOptions& options) {
    auto groups = comm::local_groups(ranks);
    std::vector<std::exception_ptr> errors(groups.size());
    std::vector<std::thread> threads;
    for (size_t r = 0; r < groups.size(); ++r)
      threads.emplace_back([&, r, group = std::move(groups[r])]() mutable {
        try {
          train::train(config, std::move(group), options);
        } catch (...) {
          errors[r] = std::current_exception();
        }
      });
    for (auto& thread : threads) thread.join();
    for (const std::exception_ptr& error : errors)
      if (error) std::rethrow_exception(error);
  }

  static std::string quoted(const std::string& word) {
    std::string text = "'";
    for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return text + "'";
  }

  static void launch(const Job& job) {
    const char* given = std::getenv("DOVETAIL_BINARY");
    const std::string binary =
        given != nullptr
            ? given
            : std::filesystem::read_symlink("/proc/self/exe").replace_filename("dovetail").string();
    const std::string log = job.file.string() + ".log";
    std::string command = fmt::format("{} launch -n {} train {}", quoted(binary), job.ranks,
                                      quoted(job.file.string()));
    for (const std::string& setting : job.settings) command += " --set " + quoted(setting);
    if (std::system((command + " > " + quoted(log) + " 2>&1").c_str()) == 0) return;
    throw std::runtime_error(fmt::format("{} failed:\n{}", command, read_file(log)));
  }

  static Change change(const Run& with, const Run& without, double bound) {
    DOVETAIL_CHECK(!without.refusal, "one capability is refused, two are not: {}",
                   *without.refusal);
    DOVETAIL_CHECK(std::ssize(with.losses) == kSteps && std::ssize(without.losses) == kSteps,
                   "{} and {} steps", with.losses.size(), without.losses.size());
    Change change{.same_bits = with.losses == without.losses && same_tensors(with.end, without.end),
                  .bound = bound};
    for (size_t i = 0; i < with.losses.size(); ++i)
      change.most = std::max(change.most, std::abs(with.losses[i] / without.losses[i] - 1));
    return change;
  }

  static bool same_tensors(const io::Snapshot& a, const io::Snapshot& b) {
    return a.tensors.size() == b.tensors.size() &&
           std::ranges::all_of(a.tensors, [&](const auto& item) {
             const auto found = b.tensors.find(item.first);
             return found != b.tensors.end() && item.second.sizes() == found->second.sizes() &&
                    at::equal(item.second, found->second);
           });
  }

  std::filesystem::path folder_;
  std::map<std::pair<std::string, Set>, Run> runs_;
};

}  // namespace dovetail::together
