#include <nlohmann/json.hpp>

#include "dovetail/base/error.h"
#include "dovetail/base/kept_memory.h"
#include "dovetail/base/log.h"
#include "dovetail/base/machine.h"
#include "dovetail/cli/parse/command.h"
#include "dovetail/cli/parse/output.h"
#include "dovetail/train/resolve/load_config.h"
#include "dovetail/train/trainer.h"

namespace dovetail::cli {
namespace {

class TrainCommand : public Command {
 public:
  std::string name() const override { return "train"; }
  std::string summary() const override {
    return "Train a model from a config, or continue a stopped run";
  }
  std::string example() const override {
    return "dovetail train configs/quickstart.toml --set train.steps=500";
  }

  void declare(Arguments& arguments) override {
    arguments
        .positional("config", &config_,
                    "Config file (TOML); every key is in `dovetail config --reference`")
        .is_required()
        .completes(Completion::kFile);
    arguments.option("--set", "KEY=VALUE", &overrides_,
                     "Override a key of the config, as section.key=value; repeatable");
    arguments.flag("--dry-run", dry_run_,
                   "Print parameters, FLOPs and the memory estimate, then stop");
    arguments.flag(
        "--fresh,--no-resume", fresh_,
        "Start over: remove the run's checkpoints instead of continuing from the last one");
    arguments.flag("--quiet", quiet_, "Print no progress, only warnings and errors");
    arguments.flag("--json", json_, "Print the result as JSON");
  }

  void check() override {
    user_check(!dry_run_ || !fresh_,
               "--fresh does nothing with --dry-run, which removes no checkpoint; leave it out");
    train::load_run_config(config_, overrides_);
  }

  void run() override {
    check();
    if (quiet_) set_log_level(LogLevel::kQuiet);
    keep_freed_memory();
    const train::RunConfig config = train::load_run_config(config_, overrides_);
    const auto group = comm::world_from_environment({.timeout_s = config.comm.timeout_s});
    // A job that asked for a fresh start and lost a rank resumes from its own checkpoints.
    const train::TrainResult result = train::train(
        config, group,
        {.dry_run = dry_run_, .resume = !fresh_ || comm::restarted_by_torchrun(), .quiet = quiet_});
    if (json_) print_json(to_json(config, result));
  }

 private:
  static nlohmann::ordered_json number_or_null(const std::optional<double>& number) {
    return number ? nlohmann::ordered_json(*number) : nlohmann::ordered_json();
  }

  nlohmann::ordered_json to_json(const train::RunConfig& config,
                                 const train::TrainResult& result) const {
    if (dry_run_) return {{"run", config.folder().string()}, {"dry_run", true}};
    return {{"run", config.folder().string()},
            {"report", (config.folder() / "report.html").string()},
            {"steps", result.steps},
            {"loss", result.loss},
            {"validation_loss", number_or_null(result.validation_loss)},
            {"validation_nats_per_byte", number_or_null(result.validation_nats_per_byte)},
            {"interrupted", result.interrupted}};
  }

  std::string config_;
  std::vector<std::string> overrides_;
  bool dry_run_ = false, fresh_ = false, quiet_ = false, json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_train_command() { return std::make_unique<TrainCommand>(); }

}  // namespace dovetail::cli
