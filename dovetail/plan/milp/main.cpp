// Program dovetail-milp: solves one integer program with HiGHS. `solve_milp` starts and ends it
// (dovetail/plan/solve/milp.h).
#include <interfaces/highs_c_api.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "dovetail/plan/milp/message.h"

namespace dovetail::plan::milp {
namespace {

using Clock = std::chrono::steady_clock;
using HighsPointer = std::unique_ptr<void, decltype(&Highs_destroy)>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr auto kBoundInterval = std::chrono::milliseconds(100);
constexpr HighsInt kFeasibleSolution = 2;  // value of HiGHS's primal_solution_status

void send(const nlohmann::json& message) {
  const std::vector<uint8_t> bytes = to_bytes(message);
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t now = write(kChildSocket, bytes.data() + sent, bytes.size() - sent);
    if (now < 0 && errno != EINTR) _exit(1);  // the parent has closed the socket
    if (now > 0) sent += static_cast<size_t>(now);
  }
}

nlohmann::json receive() {
  std::vector<uint8_t> received;
  std::array<uint8_t, 1 << 16> block{};
  while (true) {
    const ssize_t now = read(kChildSocket, block.data(), block.size());
    if (now == 0 || (now < 0 && errno != EINTR)) _exit(1);
    if (now < 0) continue;
    received.insert(received.end(), block.begin(), block.begin() + now);
    if (std::optional<nlohmann::json> message = take_message(received)) return *std::move(message);
  }
}

/// State of the callback, which HiGHS may call from any of its threads during the search.
struct News {
  std::mutex mutex;
  Clock::time_point sent = Clock::now();
};

void on_event(int type, const char*, const HighsCallbackDataOut* out, HighsCallbackDataIn*,
              void* user) {
  News& news = *static_cast<News*>(user);
  const std::lock_guard lock(news.mutex);
  const bool solution = type == kHighsCallbackMipImprovingSolution && out->mip_solution != nullptr;
  if (!solution && Clock::now() - news.sent < kBoundInterval) return;
  nlohmann::json message = {{"bound", out->mip_dual_bound}, {"nodes", out->mip_node_count}};
  if (solution)
    message["values"] =
        pack(std::vector<double>(out->mip_solution, out->mip_solution + out->mip_solution_size));
  send(message);
  news.sent = Clock::now();
}

void check(HighsInt status, const char* what) {
  if (status == kHighsStatusError) throw std::runtime_error(std::string("HiGHS refuses ") + what);
}

void set_options(void* highs, const nlohmann::json& program) {
  check(Highs_setBoolOptionValue(highs, "output_flag", 0), "output_flag");
  check(Highs_setDoubleOptionValue(highs, "time_limit", program.at("time_limit_s").get<double>()),
        "time_limit");
  check(Highs_setDoubleOptionValue(highs, "mip_rel_gap", program.at("relative_gap").get<double>()),
        "mip_rel_gap");
  check(Highs_setIntOptionValue(highs, "threads", program.at("threads").get<HighsInt>()),
        "threads");
}

void pass(void* highs, const nlohmann::json& program) {
  const auto doubles = [&](const char* key) { return unpack<double>(program.at(key)); };
  const auto integers = [&](const char* key) { return unpack<HighsInt>(program.at(key)); };
  const std::vector<double> cost = doubles("cost"), row_lower = doubles("row_lower"),
                            value = doubles("value");
  check(Highs_passMip(highs, static_cast<HighsInt>(cost.size()),
                      static_cast<HighsInt>(row_lower.size()), static_cast<HighsInt>(value.size()),
                      kHighsMatrixFormatRowwise, kHighsObjSenseMinimize,
                      program.at("offset").get<double>(), cost.data(), doubles("lower").data(),
                      doubles("upper").data(), row_lower.data(), doubles("row_upper").data(),
                      integers("row_start").data(), integers("index").data(), value.data(),
                      integers("integer").data()),
        "the program");
  if (program.contains("start"))
    check(Highs_setSolution(highs, doubles("start").data(), nullptr, nullptr, nullptr),
          "the start");
}

std::string status_of(void* highs) {
  const HighsInt status = Highs_getModelStatus(highs);
  if (status == kHighsModelStatusOptimal || status == kHighsModelStatusModelEmpty) return "optimal";
  if (status == kHighsModelStatusInfeasible) return "infeasible";
  if (status == kHighsModelStatusUnbounded) return "unbounded";
  if (status == kHighsModelStatusTimeLimit || status == kHighsModelStatusIterationLimit)
    return "limit";
  throw std::runtime_error("HiGHS ends with model status " + std::to_string(status));
}

/// Resolves presolve's status "unbounded or infeasible". Without costs, the program can only be
/// infeasible.
std::string unbounded_or_infeasible(void* highs) {
  Highs_stopCallback(highs, kHighsCallbackMipImprovingSolution);
  Highs_stopCallback(highs, kHighsCallbackMipInterrupt);
  const std::vector<double> none(static_cast<size_t>(Highs_getNumCol(highs)), 0);
  check(Highs_changeColsCostByRange(highs, 0, Highs_getNumCol(highs) - 1, none.data()),
        "costs of 0");
  check(Highs_run(highs), "the program without costs");
  const std::string status = status_of(highs);
  return status == "optimal" ? "unbounded" : status;
}

nlohmann::json solve(const nlohmann::json& program) {
  const HighsPointer highs(Highs_create(), &Highs_destroy);
  set_options(highs.get(), program);
  pass(highs.get(), program);
  News news;
  check(Highs_setCallback(highs.get(), on_event, &news), "a callback");
  check(Highs_startCallback(highs.get(), kHighsCallbackMipImprovingSolution),
        "a callback of solutions");
  check(Highs_startCallback(highs.get(), kHighsCallbackMipInterrupt), "a callback of bounds");
  check(Highs_run(highs.get()), "to run");
  nlohmann::json answer = {{"bound", -kInfinity}, {"nodes", 0}};
  if (Highs_getModelStatus(highs.get()) == kHighsModelStatusUnboundedOrInfeasible) {
    answer["status"] = unbounded_or_infeasible(highs.get());
    return answer;
  }
  const std::string status = status_of(highs.get());
  answer["status"] = status;
  HighsInt solution = 0;
  Highs_getIntInfoValue(highs.get(), "primal_solution_status", &solution);
  if (status == "optimal" || (status == "limit" && solution == kFeasibleSolution)) {
    std::vector<double> values(static_cast<size_t>(Highs_getNumCol(highs.get())));
    check(Highs_getSolution(highs.get(), values.data(), nullptr, nullptr, nullptr), "its solution");
    answer["values"] = pack(values);
  }
  if (!program.at("is_linear").get<bool>() && (status == "optimal" || status == "limit")) {
    double bound = -kInfinity;
    int64_t nodes = 0;
    Highs_getDoubleInfoValue(highs.get(), "mip_dual_bound", &bound);
    Highs_getInt64InfoValue(highs.get(), "mip_node_count", &nodes);
    answer["bound"] = bound;
    answer["nodes"] = nodes;
  }
  return answer;
}

}  // namespace
}  // namespace dovetail::plan::milp

int main(int count, char** words) {
  using namespace dovetail::plan::milp;
  if (count != 2) {
    std::fputs("dovetail-milp solves an integer program for dovetail, which starts it\n", stderr);
    return 2;
  }
  std::signal(SIGINT, SIG_IGN);  // Ctrl-C in a terminal: the parent decides when the child ends
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != std::atoi(words[1])) return 1;  // the parent died before prctl
  try {
    send(solve(receive()));
  } catch (const std::exception& error) {
    send({{"status", "error"}, {"message", error.what()}});
  }
  _exit(0);  // skips the orderly end of HiGHS's threads
}
