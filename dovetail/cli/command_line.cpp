#include "dovetail/cli/command_line.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/log.h"
#include "dovetail/cli/parse/answer.h"
#include "dovetail/cli/parse/job_end.h"
#include "dovetail/cli/parse/output.h"
#include "dovetail/cli/parse/parser.h"
#include "dovetail/comm/group.h"

namespace dovetail::cli {
namespace {

constexpr int kFailed = 1, kWrongInput = 2;

/// Seconds to wait for a rank's report of its failure, after other ranks lost the connection to it.
constexpr double kReportedWithin_s = 3;

/// Prints the message to standard error. With `--json`, prints it as an object to standard output,
/// too.
void report(const std::string& text, const nlohmann::ordered_json& error, bool json) {
  const int rank = rank_from_environment();
  std::fputs(((rank == 0 ? "" : fmt::format("[rank {}] ", rank)) + text).c_str(), stderr);
  if (json) print_json({{"error", error}});
}

/// Reports a failure that a restart cannot fix, once for all ranks of a job. Returns the exit code
/// of this process.
int end_with(int exit_code, const std::optional<JobEnd>& job, const std::string& text,
             const nlohmann::ordered_json& error, bool json) {
  if (job && !job->may_report()) return 0;
  report(text, error, json);
  if (!job) return exit_code;
  job->announce(exit_code);
  return 0;
}

/// Removes the C++ stack trace from an error of torch. It does not help a user.
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
  // A closed pipe must not kill a training run. `print` handles it for results.
  std::signal(SIGPIPE, SIG_IGN);
  const std::vector<std::string> words(argv + 1, argv + argc);
  const bool json = std::find(words.begin(), std::find(words.begin(), words.end(), "--"),
                              "--json") != words.end();
  const auto job = JobEnd::of_this_rank();
  if (job) job->watch();
  const auto failure = [](const std::string& message) -> nlohmann::ordered_json {
    return {{"kind", "failure"}, {"message", message}, {"exit_code", kFailed}};
  };
  try {
    return run(words);
  } catch (const AnswerIsNo&) {
    if (!job) return kFailed;
    job->announce(kFailed);
    return 0;
  } catch (const UserError& error) {
    return end_with(kWrongInput, job, describe_error(error) + "\n",
                    {{"kind", "input"},
                     {"message", error.what()},
                     {"help", error.help()},
                     {"place", error.place()},
                     {"exit_code", kWrongInput}},
                    json);
  } catch (const comm::CommError& error) {
    if (job && job->announced_within(kReportedWithin_s)) return 0;
    report(fmt::format("error: {}\n", error.what()), failure(error.what()), json);
    return kFailed;
  } catch (const std::exception& error) {
    const std::string message = without_stack_trace(error.what());
    return end_with(kFailed, job, "error: " + message + "\n", failure(message), json);
  }
}

}  // namespace dovetail::cli
