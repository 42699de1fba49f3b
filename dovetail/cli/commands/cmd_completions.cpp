#include "dovetail/cli/parse/command.h"
#include "dovetail/cli/parse/completions.h"
#include "dovetail/cli/parse/output.h"

namespace dovetail::cli {
namespace {

class CompletionsCommand : public Command {
 public:
  std::string name() const override { return "completions"; }
  std::string summary() const override { return "Print the completion script for a shell"; }
  std::string example() const override { return "eval \"$(dovetail completions bash)\""; }

  void declare(Arguments& arguments) override {
    arguments.positional("shell", &shell_, "bash, zsh or fish")
        .is_required()
        .one_of({"bash", "zsh", "fish"});
  }

  void run() override { print(completion_script(shell_, all_commands())); }

 private:
  std::string shell_;
};

}  // namespace

std::unique_ptr<Command> make_completions_command() {
  return std::make_unique<CompletionsCommand>();
}

}  // namespace dovetail::cli
