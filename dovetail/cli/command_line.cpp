#include "dovetail/cli/command_line.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/log.h"
#include "dovetail/cli/answer.h"
#include "dovetail/cli/output.h"
#include "dovetail/cli/parser.h"

namespace dovetail::cli {
namespace {

constexpr int kFailed = 1, kWrongInput = 2;

/// The message for people on standard error, and with `--json` the same as an object on standard output. Every rank
/// reports its own failure: the cause may lie on one of them alone.
void report(const std::string& text, const nlohmann::ordered_json& error, bool json) {
  const int rank = rank_from_environment();
  std::fputs(((rank == 0 ? "" : fmt::format("[rank {}] ", rank)) + text).c_str(), stderr);
  if (json) print_json({{"error", error}});
}

/// torch's errors carry a C++ stack trace, which says nothing to a user.
std::string without_stack_trace(const std::string& message) {
  return message.substr(0, message.find("\nException raised from"));
}

int run(const std::vector<std::string>& words) {
  const auto commands = all_commands();
  const Parsed parsed = parse_command_line(commands, words);
  if (rank_from_environment() != 0) set_log_level(LogLevel::kQuiet);
  if (parsed.command == nullptr) {
    print(parsed.text);
  } else {
    parsed.command->run();
  }
  return 0;
}

}  // namespace

int run_command_line(int argc, char** argv) {
  // A pipe whose reader has gone must not kill a training run; `print` handles it for results.
  std::signal(SIGPIPE, SIG_IGN);
  const std::vector<std::string> words(argv + 1, argv + argc);
  const bool json = std::find(words.begin(), std::find(words.begin(), words.end(), "--"), "--json") != words.end();
  try {
    return run(words);
  } catch (const AnswerIsNo&) {
    return kFailed;
  } catch (const UserError& error) {
    report(describe_error(error) + "\n",
           {{"kind", "input"},
            {"message", error.what()},
            {"help", error.help()},
            {"place", error.place()},
            {"exit_code", kWrongInput}},
           json);
    return kWrongInput;
  } catch (const std::exception& error) {
    const std::string message = without_stack_trace(error.what());
    report("error: " + message + "\n", {{"kind", "failure"}, {"message", message}, {"exit_code", kFailed}}, json);
    return kFailed;
  }
}

}  // namespace dovetail::cli
