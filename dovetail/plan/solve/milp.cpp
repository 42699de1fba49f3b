#include "dovetail/plan/solve/milp.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "dovetail/base/error.h"
#include "dovetail/base/module.h"
#include "dovetail/plan/milp/message.h"

namespace dovetail::plan {

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kGrace = 0.1, kGraceSeconds = 2;
constexpr int kNotLoaded = 127;  // exit status of the dynamic loader
constexpr std::chrono::milliseconds kExit(2000), kExitPoll(1);

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Child process and our end of the socket to it. The destructor kills a child that still runs.
class Child {
 public:
  explicit Child(const std::filesystem::path& program) : program_(program) {
    std::array<int, 2> ends{};
    user_check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0,
               "no socket for {}: {}", program.string(), std::strerror(errno));
    socket_ = ends[0];
    const int error = spawn(ends[1]);
    close(ends[1]);
    if (error == 0) return;
    close(socket_);
    throw UserError(fmt::format("cannot start {}, which solves integer programs: {}",
                                program.string(), std::strerror(error)),
                    "it belongs to dovetail: in a source tree `./dev build dovetail-milp` makes "
                    "it, else install dovetail again");
  }
  ~Child() {
    close(socket_);
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    reap(0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  /// Sends the rest of `out` and appends received bytes to `in`. Waits at most `wait_s` for the
  /// socket to be ready. Returns false if the child has closed it.
  bool exchange(std::vector<uint8_t>& out, size_t& sent, std::vector<uint8_t>& in,
                double wait_s) const {
    const bool sending = sent < out.size();
    pollfd ready{.fd = socket_,
                 .events = static_cast<int16_t>(sending ? POLLIN | POLLOUT : POLLIN),
                 .revents = 0};
    poll(&ready, 1, static_cast<int>(std::clamp(1000 * wait_s, 0.0, 1e6)) + 1);
    if (sending && (ready.revents & POLLOUT) != 0) {
      // MSG_NOSIGNAL avoids SIGPIPE. MSG_DONTWAIT avoids waiting for a child that does not read.
      const ssize_t now =
          ::send(socket_, out.data() + sent, out.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (now > 0) sent += static_cast<size_t>(now);
    }
    if ((ready.revents & (POLLIN | POLLHUP | POLLERR)) == 0) return true;
    std::array<uint8_t, 1 << 16> block;
    const ssize_t now = recv(socket_, block.data(), block.size(), MSG_DONTWAIT);
    if (now > 0) in.insert(in.end(), block.begin(), block.begin() + now);
    return now > 0 || (now < 0 && (errno == EAGAIN || errno == EINTR));
  }

  /// Throws the error of a child that has closed the socket before its last message.
  [[noreturn]] void fail() {
    const auto begin = Clock::now();
    while (!reap(WNOHANG) && Clock::now() - begin < kExit) std::this_thread::sleep_for(kExitPoll);
    if (pid_ == 0 && WIFEXITED(status_) && WEXITSTATUS(status_) == kNotLoaded)
      throw UserError(fmt::format("{}, which solves integer programs, does not load its libraries",
                                  program_.string()),
                      "it needs HiGHS: pip install 'highsbox==1.15.*' beside dovetail");
    DOVETAIL_CHECK(pid_ == 0, "{} sends no more and does not end", program_.string());
    DOVETAIL_CHECK(!WIFSIGNALED(status_), "{} was killed by signal {} ({})", program_.string(),
                   WTERMSIG(status_), strsignal(WTERMSIG(status_)));
    DOVETAIL_CHECK(false, "{} ended without an answer, exit status {}", program_.string(),
                   WEXITSTATUS(status_));
  }

 private:
  /// Uses posix_spawn instead of fork, so that page tables of the training process are not copied.
  int spawn(int child_end) {
    std::string path = program_.string(), parent = std::to_string(getpid());
    std::array<char*, 3> words = {path.data(), parent.data(), nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, child_end, milp::kChildSocket);
    for (const int file : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
      posix_spawn_file_actions_addopen(&actions, file, "/dev/null", O_RDWR, 0);
    const int error = posix_spawn(&pid_, path.c_str(), &actions, nullptr, words.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) pid_ = 0;
    return error;
  }

  /// Returns true if the child has ended and has been removed from the system's process table. Its
  /// process id may then be reused.
  bool reap(int flags) {
    pid_t ended = 0;
    while ((ended = waitpid(pid_, &status_, flags)) < 0 && errno == EINTR) {
    }
    if (ended == 0) return false;
    if (ended < 0) status_ = 0;  // waitpid fails if the process ignores SIGCHLD
    pid_ = 0;
    return true;
  }

  std::filesystem::path program_;
  int socket_ = -1;
  pid_t pid_ = 0;  // 0: no child process
  int status_ = 0;
};

nlohmann::json to_message(const LinearProgram& program, const MilpOptions& options, bool is_linear,
                          bool with_start) {
  nlohmann::json message = {
      {"time_limit_s", options.time_limit_s},
      {"relative_gap", options.relative_gap},
      {"threads", options.threads},
      {"is_linear", is_linear},
      {"offset", program.offset},
      {"cost", milp::pack(program.cost)},
      {"lower", milp::pack(program.lower)},
      {"upper", milp::pack(program.upper)},
      {"integer", milp::pack(is_linear ? std::vector<int>(program.cost.size()) : program.integer)},
      {"row_lower", milp::pack(program.row_lower)},
      {"row_upper", milp::pack(program.row_upper)},
      {"row_start", milp::pack(program.row_start)},
      {"index", milp::pack(program.index)},
      {"value", milp::pack(program.value)}};
  if (with_start) message["start"] = milp::pack(*program.start);
  return message;
}

/// Best solution and bound known so far, from the messages of the child.
class Answer {
 public:
  Answer(const LinearProgram& program, bool is_linear) : program_(program), is_linear_(is_linear) {}

  void offer(std::vector<double> values) {
    DOVETAIL_CHECK(values.size() == program_.cost.size(), "{} values for {} columns", values.size(),
                   program_.cost.size());
    const double objective = program_.objective(values);
    if (found_ && objective >= result_.objective) return;
    found_ = true;
    result_.values = std::move(values);
    result_.objective = objective;
  }

  /// Returns true for the last message.
  bool take(const nlohmann::json& message) {
    const std::string status = message.value("status", "");
    DOVETAIL_CHECK(status != "error", "dovetail-milp: {}", message.value("message", ""));
    DOVETAIL_CHECK(status != "unbounded",
                   "an integer program of {} columns and {} rows has no least value",
                   program_.columns(), program_.rows());
    result_.bound = message.at("bound").get<double>();
    result_.nodes = message.at("nodes").get<int64_t>();
    if (message.contains("values")) offer(milp::unpack<double>(message.at("values")));
    optimal_ = status == "optimal";
    infeasible_ = status == "infeasible";
    return !status.empty();
  }

  MilpResult finish(double relative_gap, double seconds) {
    result_.seconds = seconds;
    if (found_) {
      const bool exact = is_linear_ && optimal_;
      result_.bound = exact ? result_.objective : std::min(result_.bound, result_.objective);
      const double distance = result_.objective - result_.bound;
      result_.gap = distance == 0 ? 0 : distance / std::abs(result_.objective);
      result_.status =
          optimal_ || result_.gap <= relative_gap ? MilpResult::kOptimal : MilpResult::kFeasible;
    } else if (infeasible_) {
      result_.status = MilpResult::kInfeasible;
      result_.bound = LinearProgram::kInfinity;
    }
    return std::move(result_);
  }

 private:
  const LinearProgram& program_;
  bool is_linear_;
  MilpResult result_;
  bool found_ = false, optimal_ = false, infeasible_ = false;
};

MilpResult solve_linear(const LinearProgram& program, const MilpOptions& options) {
  const auto begin = Clock::now();
  const double deadline_s = (1 + kGrace) * options.time_limit_s + kGraceSeconds;
  const bool is_linear =
      options.relax || std::ranges::find(program.integer, 1) == program.integer.end();
  Answer answer(program, is_linear);
  if (program.start) answer.offer(*program.start);

  Child child(options.program.empty() ? module_path("../bin/dovetail-milp").lexically_normal()
                                      : options.program);
  std::vector<uint8_t> out =
      milp::to_bytes(to_message(program, options, is_linear, program.start && !is_linear));
  std::vector<uint8_t> in;
  size_t sent = 0;
  while (seconds_since(begin) < deadline_s) {
    const bool open = child.exchange(out, sent, in, deadline_s - seconds_since(begin));
    while (const std::optional<nlohmann::json> message = milp::take_message(in))
      if (answer.take(*message)) return answer.finish(options.relative_gap, seconds_since(begin));
    if (!open) child.fail();
  }
  return answer.finish(options.relative_gap, seconds_since(begin));
}

}  // namespace

int LinearProgram::add_column(double column_cost, double column_lower, double column_upper,
                              bool is_integer) {
  DOVETAIL_CHECK(
      std::isfinite(column_cost) && !std::isnan(column_lower) && !std::isnan(column_upper),
      "column {}: cost {} in [{}, {}]", columns(), column_cost, column_lower, column_upper);
  cost.push_back(column_cost);
  lower.push_back(column_lower);
  upper.push_back(column_upper);
  integer.push_back(is_integer ? 1 : 0);
  return columns() - 1;
}

int LinearProgram::add_row(double lowest, double highest,
                           std::vector<std::pair<int, double>> entries) {
  DOVETAIL_CHECK(!std::isnan(lowest) && !std::isnan(highest), "row {} in [{}, {}]", rows(), lowest,
                 highest);
  std::ranges::stable_sort(entries, {}, &std::pair<int, double>::first);
  for (size_t e = 0; e < entries.size(); ++e) {
    const auto [column, coefficient] = entries[e];
    DOVETAIL_CHECK(column >= 0 && column < columns() && std::isfinite(coefficient),
                   "row {}: {} of column {} of {}", rows(), coefficient, column, columns());
    if (e > 0 && entries[e - 1].first == column) {
      value.back() += coefficient;
      continue;
    }
    index.push_back(column);
    value.push_back(coefficient);
  }
  row_lower.push_back(lowest);
  row_upper.push_back(highest);
  row_start.push_back(static_cast<int>(index.size()));
  return rows() - 1;
}

double LinearProgram::objective(const std::vector<double>& values) const {
  double sum = offset;
  for (size_t c = 0; c < cost.size(); ++c) sum += cost[c] * values[c];
  return sum;
}

double LinearProgram::violation(const std::vector<double>& values) const {
  double worst = 0;
  for (size_t c = 0; c < cost.size(); ++c) {
    if (!std::isfinite(values[c])) return kInfinity;
    worst = std::max({worst, lower[c] - values[c], values[c] - upper[c]});
    if (integer[c] != 0) worst = std::max(worst, std::abs(values[c] - std::round(values[c])));
  }
  for (size_t r = 0; r < row_lower.size(); ++r) {
    double sum = 0;
    for (auto e = static_cast<size_t>(row_start[r]); e < static_cast<size_t>(row_start[r + 1]); ++e)
      sum += value[e] * values[static_cast<size_t>(index[e])];
    worst = std::max({worst, row_lower[r] - sum, sum - row_upper[r]});
  }
  return worst;
}

MilpResult solve_milp(const LinearProgram& program, const MilpOptions& options) {
  DOVETAIL_CHECK(options.time_limit_s >= 0 && options.relative_gap >= 0 && options.threads >= 1,
                 "time limit {} s, gap {}, {} threads", options.time_limit_s, options.relative_gap,
                 options.threads);
  if (program.start) {
    DOVETAIL_CHECK(program.start->size() == program.cost.size(),
                   "a start of {} values for {} columns", program.start->size(),
                   program.cost.size());
    DOVETAIL_CHECK(program.violation(*program.start) <= kMilpTolerance,
                   "the start breaks the program by {}", program.violation(*program.start));
  }
  if (!options.cutoff) return solve_linear(program, options);
  LinearProgram limited = program;
  std::vector<std::pair<int, double>> entries;
  for (int c = 0; c < program.columns(); ++c)
    if (program.cost[static_cast<size_t>(c)] != 0)
      entries.emplace_back(c, program.cost[static_cast<size_t>(c)]);
  limited.add_row(-LinearProgram::kInfinity, *options.cutoff - program.offset, entries);
  if (limited.start && limited.violation(*limited.start) > kMilpTolerance) limited.start.reset();
  return solve_linear(limited, options);
}

}  // namespace dovetail::plan
