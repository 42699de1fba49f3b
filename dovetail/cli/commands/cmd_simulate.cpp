#include "dovetail/cli/parse/command.h"
#include "dovetail/cli/simulate/simulate_hybrid.h"
#include "dovetail/cli/simulate/simulate_moe.h"

namespace dovetail::cli {
namespace {

class SimulateCommand : public Command {
 public:
  std::string name() const override { return "simulate"; }
  std::string summary() const override {
    return "Predict a layer of experts on up to 4096 ranks, or a job shared by CPU cores and GPUs "
           "on thousands of nodes";
  }
  std::string example() const override {
    return "dovetail simulate moe --cost cost.json --ranks 64 --experts 64 --plot layer.svg\n"
           "  dovetail simulate hybrid --nodes 6 --report studies.html";
  }

  void declare(Arguments& arguments) override {
    arguments.positional("what", &what_, "Simulation: moe or hybrid")
        .is_required()
        .one_of({"moe", "hybrid"});
    Arguments moe, hybrid;
    moe_.declare(moe);
    hybrid_.declare(hybrid);
    arguments.add_only_for({"moe"}, moe);
    arguments.add_only_for({"hybrid"}, hybrid);
    arguments.option("--plot", "FILE", &plot_, "Draw the time by number of ranks or nodes (SVG)")
        .completes(Completion::kFile);
    arguments.flag("--json", json_, "Print the result as JSON");
  }

  void run() override {
    if (what_ == "moe") {
      moe_.run(plot_, json_);
    } else {
      hybrid_.run(plot_, json_);
    }
  }

 private:
  std::string what_, plot_;
  SimulateMoe moe_;
  SimulateHybrid hybrid_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_simulate_command() { return std::make_unique<SimulateCommand>(); }

}  // namespace dovetail::cli
