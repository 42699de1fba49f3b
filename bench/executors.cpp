// Two executors of unequal speed share the steps of a GPT. Compares their joint speed with the sum
// of both alone, and their split with the best one.
//
//   ./dev bench executors [--device cpu|cuda] [--threads-a N] [--threads-b N] [--wait-a MS]
//                         [--wait-b MS] [--rounds N] [--out FILE] ...
//
// Executor A is the owner: CPU threads or a GPU. Executor B is CPU threads. Each micro-batch waits
// for --wait-a or --wait-b milliseconds. By default B waits for two micro-batches' time of A, and
// so has a third of A's speed on equal cores. Measured per side, the best of all rounds; sides take
// turns within a round:
//
//   alone      a step on A, and a step on B, each without the other
//   both       a step that both share by ExecutorShares, after its first moves
//   together   micro-batches per second of both, divided by the sum of A and B alone
//   static     a step with each fixed split; the chosen one is compared with the best
//   distance   largest relative distance of a gradient of the first step from A's alone; 0 on CPUs
//
// Exit code 1 when a claim does not hold.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "bench/program.h"
#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/gpu.h"
#include "dovetail/base/kept_memory.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/trace.h"
#include "dovetail/comm/group.h"
#include "dovetail/train/gpt/step.h"

namespace dovetail::train {
namespace {

using Json = nlohmann::ordered_json;
using Counts = std::vector<int64_t>;
constexpr double kTogether = 0.93, kOfBestSplit = 1.05;

struct Options {
  models::ModelConfig model = {.layers = 4, .width = 256, .heads = 4, .context = 128};
  int64_t vocab = 2048, micro_batch = 2, count = 12, threads_a = 1, threads_b = 1;
  int rounds = 12;
  double wait_a = 0, wait_b = -1;
  std::string device = "cpu", out;
};

/// Wait of a micro-batch on the calling thread, in ms.
thread_local double t_wait_ms = 0;
/// Wait on threads that have none of their own: threads of StepExecutors.
double g_wait_b_ms = 0;
std::thread::id g_main;

/// Waits once in each micro-batch: the loss calls this operation once.
std::unique_ptr<at::ObserverContext> wait(const at::RecordFunction& function) {
  if (std::strcmp(function.name(), "aten::masked_fill") == 0) {
    const double ms = std::this_thread::get_id() == g_main ? t_wait_ms : g_wait_b_ms;
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms));
  }
  return nullptr;
}

/// A model that trains alone on a device, or with another executor.
class Side {
 public:
  Side(const Options& options, c10::Device device, const Counts& shares = {})
      : model_(make(options)) {
    model_->to(device);
    optimizer_.emplace(*model_, OptimizerSection{.lr = 1e-3});
    optimizer_->bind(*model_);
    if (!shares.empty()) {
      std::vector<std::unique_ptr<StepExecutor>> others;
      others.push_back(std::make_unique<StepExecutor>(
          make(options), optimizer_->parameters(), model_->buffers(),
          StepExecutor::Options{.threads = options.threads_b, .micro_batch = options.micro_batch}));
      sharing_.emplace(std::move(others), shares, options.micro_batch, device);
    }
    step_.emplace(model_, *optimizer_, comm::local_groups(1)[0],
                  StepOptions{.micro_batch = options.micro_batch,
                              .sharing = sharing_ ? &*sharing_ : nullptr});
  }

  /// Returns the seconds of one step. A step ends with a value read from the device.
  double run(const at::Tensor& tokens) {
    const double begin_s = now_seconds();
    step_->run(tokens, 1e-3, /*want_stop=*/false);
    return now_seconds() - begin_s;
  }
  StepSharing& sharing() { return *sharing_; }
  at::Tensor gradient(size_t i) const { return step_->gradients().gradient(i); }
  size_t size() const { return step_->gradients().size(); }

 private:
  static std::shared_ptr<models::GPT> make(const Options& options) {
    auto model =
        std::make_shared<models::GPT>(models::resolve_model_config(options.model, options.vocab));
    initialize(*model, /*seed=*/1);
    return model;
  }
  std::shared_ptr<models::GPT> model_;
  std::optional<Optimizer> optimizer_;
  std::optional<StepSharing> sharing_;
  std::optional<TrainStep> step_;
};

/// Runs `work` on this thread with a wait per micro-batch and a number of threads.
double timed(Side& side, const at::Tensor& tokens, double wait_ms, int64_t threads) {
  at::set_num_threads(static_cast<int>(threads));
  t_wait_ms = wait_ms;
  const double seconds = side.run(tokens);
  t_wait_ms = 0;
  return seconds;
}

double distance(const Side& want, const Side& got) {
  double most = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const at::Tensor a = want.gradient(i).to(at::kDouble), b = got.gradient(i).to(at::kDouble);
    most = std::max(most, ((a - b).norm() / a.norm().clamp_min(1e-30)).item<double>());
  }
  return most;
}

Json measure(Options options) {
  const c10::Device owner = options.device == "cuda" ? c10::Device(c10::kCUDA, 0) : c10::kCPU;
  if (owner.is_cuda()) {
    const std::string reason = load_gpu();
    user_check(reason.empty(), "--device cuda, but {}", reason);
  }
  const at::Tensor tokens = at::randint(
      options.vocab, {options.count * options.micro_batch, options.model.context + 1}, at::kLong);
  const Counts probe = jobs::ExecutorShares::probe(2, options.count);
  Side a(options, owner), b(options, c10::kCPU), both(options, owner, probe);
  double a_s = std::numeric_limits<double>::infinity(), b_s = a_s, both_s = a_s;
  timed(a, tokens, 0, options.threads_a);
  timed(both, tokens, 0, options.threads_a);
  const double first_distance = distance(a, both);
  for (int i = 0; i < 3; ++i)
    a_s = std::min(a_s, timed(a, tokens, options.wait_a, options.threads_a));
  if (options.wait_b < 0) options.wait_b = 2e3 * a_s / static_cast<double>(options.count);
  g_wait_b_ms = options.wait_b;

  jobs::ExecutorShares shares(probe, /*gain=*/0.02);
  Counts last = probe;
  for (int round = 0; round < options.rounds; ++round) {
    a_s = std::min(a_s, timed(a, tokens, options.wait_a, options.threads_a));
    b_s = std::min(b_s, timed(b, tokens, options.wait_b, options.threads_b));
    const double seconds = timed(both, tokens, options.wait_a, options.threads_a);
    if (both.sharing().shares() == last && round >= 4) both_s = std::min(both_s, seconds);
    if (!both.sharing().shared()) continue;
    if (const auto move = shares.add(both.sharing().times())) both.sharing().set_shares(move->to);
    last = shares.shares();
  }

  std::vector<double> split_s(static_cast<size_t>(options.count),
                              std::numeric_limits<double>::infinity());
  Side fixed(options, owner, probe);
  for (int round = 0; round < 1 + options.rounds / 3; ++round) {
    for (int64_t n = 1; n < options.count; ++n) {
      fixed.sharing().set_shares({options.count - n, n});
      const double seconds = timed(fixed, tokens, options.wait_a, options.threads_a);
      if (round > 0)
        split_s[static_cast<size_t>(n)] = std::min(split_s[static_cast<size_t>(n)], seconds);
    }
  }
  split_s[0] = a_s;
  const auto best = std::ranges::min_element(split_s) - split_s.begin();
  const auto chosen = static_cast<size_t>(shares.shares()[1]);
  const double rate = 1 / a_s + 1 / b_s;
  return {{"device", owner.str()},
          {"machine", machine_json()},
          {"wait_ms", {options.wait_a, options.wait_b}},
          {"a_ms", 1e3 * a_s},
          {"b_ms", 1e3 * b_s},
          {"both_ms", 1e3 * both_s},
          {"together", 1 / both_s / rate},
          {"shares", shares.shares()},
          {"chosen_static_ms", 1e3 * split_s[chosen]},
          {"best_static", {options.count - best, best}},
          {"best_static_ms", 1e3 * split_s[static_cast<size_t>(best)]},
          {"distance", first_distance}};
}

int claim(const std::string& text, bool holds) {
  fmt::print("{}: {}\n", holds ? "holds" : "DOES NOT HOLD", text);
  return holds ? 0 : 1;
}

int run(const Options& options) {
  keep_freed_memory();  // as `dovetail train`
  g_main = std::this_thread::get_id();
  at::addGlobalCallback(at::RecordFunctionCallback(wait).scopes({at::RecordScope::FUNCTION}));
  const Json row = measure(options);
  fmt::print("{}\n", row.dump(2));
  if (!options.out.empty()) write_file_atomically(options.out, row.dump(2) + "\n");
  int failed = claim(fmt::format("both have at least {} of the sum of both speeds: {:.3f}",
                                 kTogether, row["together"].get<double>()),
                     row["together"] >= kTogether);
  const double of_best =
      row["chosen_static_ms"].get<double>() / row["best_static_ms"].get<double>();
  failed += claim(fmt::format("the chosen split takes at most {} times the best: {:.3f}",
                              kOfBestSplit, of_best),
                  of_best <= kOfBestSplit);
  const double most = options.device == "cuda" ? 1e-6 : 0;
  failed += claim(fmt::format("gradients differ from A's alone by at most {}: {:.2g}", most,
                              row["distance"].get<double>()),
                  row["distance"] <= most);
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace dovetail::train

int main(int argc, char** argv) {
  dovetail::train::Options options;
  CLI::App app("Two executors of unequal speed share the steps of a GPT");
  app.add_option("--device", options.device, "device of A")->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--threads-a", options.threads_a, "CPU threads of A");
  app.add_option("--threads-b", options.threads_b, "CPU threads of B");
  app.add_option("--wait-a", options.wait_a, "ms that each micro-batch waits on A");
  app.add_option("--wait-b", options.wait_b, "the same on B; default: two micro-batches of A");
  app.add_option("--layers", options.model.layers, "of the model");
  app.add_option("--width", options.model.width, "of the model");
  app.add_option("--heads", options.model.heads, "of the model");
  app.add_option("--context", options.model.context, "of the model");
  app.add_option("--vocab", options.vocab, "of the model");
  app.add_option("--micro-batch", options.micro_batch, "samples of a micro-batch");
  app.add_option("--count", options.count, "micro-batches of a step")->check(CLI::Range(3, 4096));
  app.add_option("--rounds", options.rounds, "turns of the sides")->check(CLI::Range(6, 10000));
  app.add_option("--out", options.out, "JSON file for the result");
  return dovetail::run_program(app, argc, argv, [&] { return dovetail::train::run(options); });
}
