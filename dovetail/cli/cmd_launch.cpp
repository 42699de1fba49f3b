#include <fmt/ranges.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "dovetail/base/error.h"
#include "dovetail/base/log.h"
#include "dovetail/cli/command.h"
#include "dovetail/cli/parser.h"

namespace dovetail::cli {
namespace {

std::vector<char*> exec_words(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// True if `python` can import torch's launcher; asks its import system only, which takes 20 ms, and imports nothing.
bool has_torch(const std::string& python) {
  std::vector<std::string> words = {python, "-c",
                                    "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"};
  const pid_t child = fork();
  if (child < 0) throw UserError(fmt::format("cannot start {}: {}", python, std::strerror(errno)));
  if (child == 0) {
    execvp(words[0].c_str(), exec_words(words).data());
    _exit(127);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/// The Python that holds torchrun: $DOVETAIL_PYTHON if set, else python3 of the PATH.
std::string python_with_torch() {
  const char* chosen = std::getenv("DOVETAIL_PYTHON");
  std::string python = chosen != nullptr ? chosen : "python3";
  if (has_torch(python)) return python;
  throw UserError(
      chosen != nullptr ? fmt::format("DOVETAIL_PYTHON={} has no torch", python) : "python3 on the PATH has no torch",
      "several ranks are started by torchrun: set DOVETAIL_PYTHON to the Python that has torch, or use `./dev run "
      "launch ...`");
}

class LaunchCommand : public Command {
 public:
  std::string name() const override { return "launch"; }
  std::string summary() const override { return "Run a command on several ranks, on one machine or more (torchrun)"; }
  std::string example() const override { return "dovetail launch -n 2 train configs/quickstart.toml"; }

  void declare(Arguments& arguments) override {
    arguments.option("-n,--ranks", "N", &ranks_, "Ranks on this machine").is_required().range(1, 4096);
    arguments.option("--nodes", "N", &nodes_, "Number of machines; run the same line on each (1)").range(1, 65536);
    arguments.option("--master", "HOST:PORT", &master_,
                     "Address of one machine where all machines meet, for --nodes > 1");
    arguments
        .option("--max-restarts", "N", &max_restarts_, "Restarts after a rank dies, each from the last checkpoint (3)")
        .range(0, 1e6);
    arguments.remainder("COMMAND...", command_, "A `dovetail` command with its arguments").is_required();
  }

  void run() override {
    check_command();
    if (nodes_ > 1 && master_.empty()) {
      throw UserError("--nodes is more than 1, but --master is missing",
                      "name an address of one machine that all reach: --master HOST:29500");
    }
    std::vector<std::string> words = {python_with_torch(),     "-m",
                                      "torch.distributed.run", "--no-python",
                                      "--nproc-per-node",      std::to_string(ranks_),
                                      "--max-restarts",        std::to_string(max_restarts_)};
    if (nodes_ == 1) {
      words.emplace_back("--standalone");
    } else {
      words.insert(words.end(), {"--nnodes", std::to_string(nodes_), "--rdzv-backend", "c10d", "--rdzv-id", "dovetail",
                                 "--rdzv-endpoint", master_});
    }
    words.push_back(std::filesystem::read_symlink("/proc/self/exe").string());
    words.insert(words.end(), command_.begin(), command_.end());
    log_line(LogLevel::kVerbose, fmt::format("{}", fmt::join(words, " ")));
    execvp(words[0].c_str(), exec_words(words).data());
    throw UserError(fmt::format("cannot start {}: {}", words[0], std::strerror(errno)));
  }

 private:
  /// A mistake is reported once, here, instead of by every rank and again after every restart.
  void check_command() const {
    const auto commands = all_commands();
    const Parsed parsed = parse_command_line(commands, command_);
    if (parsed.command == nullptr || parsed.command->name() == name()) {
      throw UserError(fmt::format("`dovetail launch` cannot run `{}`", fmt::join(command_, " ")),
                      "for example: " + example());
    }
    parsed.command->check();
  }

  int64_t ranks_ = 1, nodes_ = 1, max_restarts_ = 3;
  std::string master_;
  std::vector<std::string> command_;
};

}  // namespace

std::unique_ptr<Command> make_launch_command() { return std::make_unique<LaunchCommand>(); }

}  // namespace dovetail::cli
