#include <nlohmann/json.hpp>

#include "dovetail/cli/parse/command.h"
#include "dovetail/cli/parse/output.h"
#include "dovetail/train/report/run_report.h"

namespace dovetail::cli {
namespace {

class ReportCommand : public Command {
 public:
  std::string name() const override { return "report"; }
  std::string summary() const override {
    return "Write a run's report.html: plots, samples, config, machine, decisions";
  }
  std::string example() const override { return "dovetail report runs/quickstart"; }

  void declare(Arguments& arguments) override {
    arguments.positional("run", &run_, "Folder of the run, which may still be training")
        .is_required()
        .completes(Completion::kFolder);
    arguments.flag("--json", json_, "Print the result as JSON");
  }

  void run() override {
    const std::filesystem::path path = train::write_report(run_);
    if (json_) {
      print_json({{"report", path.string()}});
    } else {
      print(path.string() + "\n");
    }
  }

 private:
  std::string run_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_report_command() { return std::make_unique<ReportCommand>(); }

}  // namespace dovetail::cli
