#include <fmt/ranges.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "dovetail/base/error.h"
#include "dovetail/base/log.h"
#include "dovetail/cli/parse/command.h"
#include "dovetail/cli/parse/job_end.h"
#include "dovetail/cli/parse/parser.h"

namespace dovetail::cli {
namespace {

std::vector<char*> exec_words(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// Returns true if `python` can import torch's launcher. It asks only the import system and imports
/// nothing, so it takes 20 ms.
bool has_torch(const std::string& python) {
  std::vector<std::string> words = {
      python, "-c",
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

/// Returns the Python that has torchrun: $DOVETAIL_PYTHON if set, else python3 on the PATH.
std::string python_with_torch() {
  const char* chosen = std::getenv("DOVETAIL_PYTHON");
  std::string python = chosen != nullptr ? chosen : "python3";
  if (has_torch(python)) return python;
  throw UserError(chosen != nullptr ? fmt::format("DOVETAIL_PYTHON={} has no torch", python)
                                    : "python3 on the PATH has no torch",
                  "several ranks are started by torchrun: set DOVETAIL_PYTHON to the Python that "
                  "has torch, or use `./dev run launch ...`");
}

/// Python program that runs torchrun. Its first argument is the rendezvous address; torchrun gets
/// all others. A failure prints one line instead of a traceback.
constexpr const char* kTorchrun = R"(
import sys
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous.api import RendezvousError
from torch.distributed.run import main

def fail(message, help="", code=1):
    print("error: " + message + ("\nhelp: " + help if help else ""), file=sys.stderr)
    sys.exit(code)

try:
    main(sys.argv[2:])
except ChildFailedError as error:
    rank, failure = error.get_first_failure()
    ended = f"was ended by {failure.signal_name()}" if failure.exitcode < 0 else f"exited with {failure.exitcode}"
    fail(f"rank {rank} {ended}, and no restart is left", "its messages are above; --max-restarts N allows more")
except SignalException as error:
    sys.exit(128 + error.sigval)
except (RendezvousError, RuntimeError, OSError) as error:
    reason = str(error.__cause__ or error).splitlines()[0]
    fail(f"the ranks did not meet at {sys.argv[1]}: {reason}",
         "see that --master names a machine of the job that all reach, and a port that no other program uses")
)";

/// Process id of torchrun, for the signal handler.
pid_t g_torchrun = 0;

void forward_signal(int signal) {
  if (g_torchrun > 0) ::kill(g_torchrun, signal);
}

/// Starts a program that ends if this process is killed. The program has its own process group. So
/// a terminal's Ctrl-C reaches only this process, which forwards it once. `threads` is each rank's
/// OMP_NUM_THREADS, unless that is already set.
pid_t start(std::vector<std::string> words, const std::string& job_end, int64_t threads) {
  const pid_t child = fork();
  if (child < 0)
    throw UserError(fmt::format("cannot start {}: {}", words[0], std::strerror(errno)));
  if (child > 0) return child;
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  setenv(JobEnd::kVariable, job_end.c_str(), 1);
  setenv("OMP_NUM_THREADS", std::to_string(threads).c_str(), /*overwrite=*/0);
  execvp(words[0].c_str(), exec_words(words).data());
  _exit(127);
}

/// Returns the exit code of a process in the convention of shells.
int shell_code(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/// Waits for torchrun. After a rank of this machine has ended the job, torchrun has 4 s to end by
/// itself. Other machines do not know that the job has ended, so they could delay it for minutes.
int wait_for(pid_t child, const JobEnd& end) {
  constexpr auto kTick = std::chrono::milliseconds(50);
  constexpr int kTicksToEnd = 80;  // 4 s
  int status = 0, ticks = 0;
  while (true) {
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child || (ended < 0 && errno != EINTR))
      return end.exit_code().value_or(shell_code(status));
    if (end.exit_code() && ++ticks == kTicksToEnd) ::kill(child, SIGTERM);
    if (ticks == 2 * kTicksToEnd) ::kill(child, SIGKILL);
    std::this_thread::sleep_for(kTick);
  }
}

class LaunchCommand : public Command {
 public:
  std::string name() const override { return "launch"; }
  std::string summary() const override {
    return "Run a command on several ranks, on one machine or more (torchrun)";
  }
  std::string example() const override {
    return "dovetail launch -n 2 train configs/quickstart.toml";
  }

  void declare(Arguments& arguments) override {
    arguments.option("-n,--ranks", "N", &ranks_, "Ranks on this machine")
        .is_required()
        .range(1, 4096);
    arguments.option("--nodes", "N", &nodes_, "Number of machines; run the same line on each (1)")
        .range(1, 65536);
    arguments.option("--master", "HOST:PORT", &master_,
                     "Address of one machine where all machines meet, for --nodes > 1");
    arguments
        .option("--max-restarts", "N", &max_restarts_,
                "Restarts after a rank dies, each from the last checkpoint (3)")
        .range(0, 1e6);
    arguments.remainder("COMMAND...", command_, "A `dovetail` command with its arguments")
        .is_required();
  }

  void run() override {
    check_command();
    user_check(nodes_ > 1 || master_.empty(),
               "--master is where several machines meet, but --nodes is 1; give --nodes, or leave "
               "--master out");
    if (nodes_ > 1 && master_.empty()) {
      throw UserError("--nodes is more than 1, but --master is missing",
                      "name an address of one machine that all reach: --master HOST:29500");
    }
    std::vector<std::string> words = {python_with_torch(),
                                      "-c",
                                      kTorchrun,
                                      nodes_ > 1 ? master_ : "this machine",
                                      "--no-python",
                                      "--nproc-per-node",
                                      std::to_string(ranks_),
                                      "--max-restarts",
                                      std::to_string(max_restarts_)};
    if (nodes_ == 1) {
      words.emplace_back("--standalone");
    } else {
      words.insert(words.end(), {"--nnodes", std::to_string(nodes_), "--rdzv-backend", "c10d",
                                 "--rdzv-id", "dovetail", "--rdzv-endpoint", master_});
    }
    words.push_back(std::filesystem::read_symlink("/proc/self/exe").string());
    words.insert(words.end(), command_.begin(), command_.end());
    log_line(LogLevel::kVerbose, fmt::format("{}", fmt::join(words, " ")));

    std::string folder =
        (std::filesystem::temp_directory_path() / "dovetail-launch-XXXXXX").string();
    if (mkdtemp(folder.data()) == nullptr)
      throw UserError(fmt::format("cannot make a folder {}: {}", folder, std::strerror(errno)),
                      "set TMPDIR to a folder that can be written");
    const JobEnd end(std::filesystem::path(folder) / "end");
    const int64_t cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
    if (ranks_ > cores)
      log_warning(
          "{} ranks share {} cores: they take turns, and a step takes longer than with -n {}",
          ranks_, cores, cores);
    const int64_t threads = std::max<int64_t>(1, cores / ranks_);
    g_torchrun = start(words, (std::filesystem::path(folder) / "end").string(), threads);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, forward_signal);
    const int code = wait_for(g_torchrun, end);
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
    std::exit(code);
  }

 private:
  /// Checks the command to launch. A mistake is reported once, instead of by every rank and after
  /// every restart.
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
