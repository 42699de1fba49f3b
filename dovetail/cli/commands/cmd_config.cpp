#include <nlohmann/json.hpp>

#include "dovetail/base/error.h"
#include "dovetail/base/schema/schema.h"
#include "dovetail/cli/parse/command.h"
#include "dovetail/cli/parse/output.h"
#include "dovetail/train/config/run_config.h"
#include "dovetail/train/resolve/load_config.h"

namespace dovetail::cli {
namespace {

class ConfigCommand : public Command {
 public:
  std::string name() const override { return "config"; }
  std::string summary() const override {
    return "Show the resolved config, explain a key, or print the reference page";
  }
  std::string example() const override {
    return "dovetail config configs/quickstart.toml --set model.layers=6";
  }

  void declare(Arguments& arguments) override {
    arguments.positional("config", &config_, "Config file (TOML); without one, the defaults")
        .completes(Completion::kFile);
    arguments.option("--set", "KEY=VALUE", &overrides_,
                     "Override a key of the config, as section.key=value; repeatable");
    arguments.option("--explain", "KEY", &explain_,
                     "Explain one key: type, default, range, meaning");
    arguments.flag("--reference", reference_, "Print the reference of all keys as a Markdown page");
    arguments.flag("--json", json_, "Print the resolved config as JSON instead of TOML");
  }

  void run() override {
    train::RunConfig config;
    const Describe describe = [&](Section& s) { config.describe(s); };
    const int modes =
        int{reference_} + int{!explain_.empty()} + int{!config_.empty() || !overrides_.empty()};
    if (modes > 1 || (json_ && (reference_ || !explain_.empty()))) {
      throw UserError("--explain and --reference stand alone",
                      "leave out the config, --set and --json");
    }
    if (reference_) {
      print(config_reference(describe));
    } else if (!explain_.empty()) {
      print_explanation(describe);
    } else {
      config = config_.empty() ? train::default_run_config(overrides_)
                               : train::load_run_config(config_, overrides_);
      if (json_) {
        print_json(config_to_json(describe));
      } else {
        print(config_to_toml(describe));
      }
    }
  }

 private:
  void print_explanation(const Describe& describe) const {
    std::string text = explain_key(describe, explain_);
    if (!text.ends_with('\n')) text += '\n';
    print(text);
  }

  std::string config_, explain_;
  std::vector<std::string> overrides_;
  bool reference_ = false, json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_config_command() { return std::make_unique<ConfigCommand>(); }

}  // namespace dovetail::cli
