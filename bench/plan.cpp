// One training step of a convolutional network, captured, profiled, planned at several budgets, and run by each plan:
//   ./dev bench plan --model vgg16 --batch 8 --size 64 --ratios 0.8,0.6,0.4 --folder /tmp
// What is held against eager training is its loss after the same steps, bit for bit, and its time, interleaved.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/trace.h"
#include "dovetail/models/vision.h"
#include "dovetail/plan/capture.h"
#include "dovetail/plan/executor.h"
#include "dovetail/plan/packing.h"
#include "dovetail/plan/profile.h"
#include "dovetail/plan/solve.h"

namespace dovetail::plan {
namespace {

struct Arguments {
  std::string model = "vgg16", folder, out;
  int64_t batch = 8, size = 64;
  std::vector<double> ratios = {0.9, 0.8, 0.7, 0.6, 0.5, 0.4};
  int rounds = 7;
  double time_limit_s = 10;
};

/// Forward, backward and a step of SGD with momentum.
class Training {
 public:
  explicit Training(const Arguments& a)
      : model_(make_vision_model({.preset = a.model, .height = a.size, .width = a.size})) {
    initialize(*model_, 1);
    const int64_t classes = model_->config().classes;
    images_ = at::randn({a.batch, 3, a.size, a.size});
    targets_ =
        a.model == "unet" ? at::randint(0, classes, {a.batch, a.size, a.size}) : at::randint(0, classes, {a.batch});
    for (const auto& item : model_->named_parameters()) {
      parameters_.emplace_back(item.key(), item.value());
      state_.emplace_back(item.key() + ".momentum", at::zeros_like(item.value()));
    }
    for (const auto& item : model_->named_buffers()) state_.emplace_back(item.key(), item.value());
  }

  std::vector<at::Tensor> operator()() {
    for (auto& [name, parameter] : parameters_) parameter.mutable_grad().reset();
    const LossSum loss = model_->loss(images_, targets_);
    const at::Tensor mean = loss.sum / static_cast<double>(loss.weight);
    torch::autograd::backward({mean}, {});
    const at::NoGradGuard no_grad;
    for (size_t p = 0; p < parameters_.size(); ++p) {
      state_[p].second.mul_(0.9).add_(parameters_[p].second.grad());
      parameters_[p].second.add_(state_[p].second, -1e-3);
    }
    return {mean.detach()};
  }

  StepTensors tensors() const {
    return {.inputs = {{"images", images_}, {"targets", targets_}}, .parameters = parameters_, .state = state_};
  }

  std::vector<at::Tensor> values() const {
    std::vector<at::Tensor> out;
    for (const auto* list : {&parameters_, &state_})
      for (const auto& [name, tensor] : *list) out.push_back(tensor.detach().clone());
    return out;
  }
  void set(const std::vector<at::Tensor>& values) {
    const at::NoGradGuard no_grad;
    size_t i = 0;
    for (auto* list : {&parameters_, &state_})
      for (auto& [name, tensor] : *list) tensor.copy_(values[i++]);
  }

 private:
  std::shared_ptr<VisionModel> model_;
  at::Tensor images_, targets_;
  std::vector<std::pair<std::string, at::Tensor>> parameters_, state_;
};

/// Bytes of each fate: copied out, and made again.
struct Moved {
  int64_t offloaded = 0, again = 0;
};
Moved moved(const Graph& graph, const Plan& plan) {
  Moved out;
  std::vector<int> runs(graph.nodes.size());
  for (const Action& action : plan.actions) {
    if (action.op == Op::kOffload) out.offloaded += graph.tensors[action.tensor].bytes;
    if (action.op == Op::kCompute && runs[action.node]++ > 0)
      for (const int t : graph.nodes[action.node].outputs) out.again += graph.tensors[t].bytes;
  }
  return out;
}

double mib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

int run(const Arguments& a) {
  constexpr int kSteps = 3;
  Training training(a);
  training();
  const double captured_s = now_seconds();
  const CapturedStep step = capture([&] { return training(); }, training.tensors());
  StepGraph graph = graph_of(step);
  const double profiled_s = now_seconds();
  profile_nodes(step, graph, 5);
  graph.graph.bandwidth = measure_bandwidth(a.folder, int64_t{128} << 20, 5);
  const double solved_s = now_seconds();
  graph.graph.budget_bytes = std::numeric_limits<int64_t>::max() / 8;
  const int64_t peak = check(graph.graph, keep_all(graph.graph)).peak_bytes;
  const SolveOptions options{.compress = false, .least_bytes = kPagedBytes, .time_limit_s = a.time_limit_s};
  const Floor floor = floor_of(graph.graph, options);
  fmt::print("{} {} threads\n", machine().cpu_name, at::get_num_threads());
  fmt::print("{} batch {} at {} x {}: {} nodes, {} storages; captured in {:.1f} s, profiled in {:.1f} s\n", a.model,
             a.batch, a.size, a.size, graph.nodes.size(), graph.graph.tensors.size(), profiled_s - captured_s,
             solved_s - profiled_s);
  fmt::print("keeping all {:.1f} MiB, floor {:.1f} MiB; to the {} tier {:.2f} GB/s, back {:.2f} GB/s\n", mib(peak),
             mib(floor.bytes), a.folder.empty() ? "memory" : "disk", graph.graph.bandwidth.to_host / 1e9,
             graph.graph.bandwidth.to_device / 1e9);
  const auto start = training.values();
  const auto generator = at::globalContext().defaultGenerator(at::kCPU);
  const at::Tensor random = generator.get_state();
  std::vector<float> losses;
  for (int i = 0; i < kSteps; ++i) losses.push_back(training()[0].item<float>());
  const auto reference = training.values();
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  fmt::print("{:>6} {:>9} {:>9} {:>10} {:>10} {:>8} {:>9} {:>9} {:>8} {:>5}\n", "ratio", "budget", "arena", "predicted",
             "measured", "x eager", "offloaded", "again", "solve s", "bits");
  for (const double ratio : a.ratios) {
    StepGraph planned = graph;
    const auto budget = static_cast<int64_t>(ratio * static_cast<double>(peak));
    planned.graph.budget_bytes = budget;
    std::optional<Solution> solution;
    try {
      solution = solve(planned.graph, options);
    } catch (const UserError& error) {
      fmt::print("{:>6.2f} {:>9.1f} {}\n", ratio, mib(budget), error.what());
      continue;
    }
    const Moved what = moved(planned.graph, solution->schedule.plan);
    double measured_s = std::numeric_limits<double>::infinity(), eager_s = measured_s;
    int64_t arena = 0;
    bool same = true;
    training.set(start);
    auto again = generator;
    again.set_state(random);
    {
      Executor executor(step, planned, solution->schedule.plan, {.folder = a.folder});
      arena = executor.arena_bytes();
      for (int i = 0; i < kSteps; ++i) {
        executor.run();
        same = same && executor.results()[0].item<float>() == losses[i];
      }
      const auto now = training.values();
      for (size_t i = 0; i < now.size(); ++i) same = same && now[i].equal(reference[i]);
      for (int round = 0; round < a.rounds; ++round) {
        measured_s = std::min(measured_s, executor.run().seconds);
        const double eager_start_s = now_seconds();
        training();
        eager_s = std::min(eager_s, now_seconds() - eager_start_s);
      }
    }
    const double predicted_s = solution->schedule.timeline.makespan_s;
    fmt::print("{:>6.2f} {:>9.1f} {:>9.1f} {:>8.1f}ms {:>8.1f}ms {:>8.3f} {:>9.1f} {:>9.1f} {:>8.1f} {:>5}\n", ratio,
               mib(budget), mib(arena), predicted_s * 1e3, measured_s * 1e3, measured_s / eager_s, mib(what.offloaded),
               mib(what.again), solution->seconds, same ? "same" : "DIFFER");
    rows.push_back({{"ratio", ratio},
                    {"budget_bytes", budget},
                    {"predicted_peak_bytes", solution->schedule.timeline.peak_bytes},
                    {"arena_bytes", arena},
                    {"predicted_s", predicted_s},
                    {"measured_s", measured_s},
                    {"eager_s", eager_s},
                    {"bound_s", solution->bound_s},
                    {"offloaded_bytes", what.offloaded},
                    {"again_bytes", what.again},
                    {"solve_s", solution->seconds},
                    {"complete", solution->complete},
                    {"same_bits", same}});
  }
  if (!a.out.empty())
    std::ofstream(a.out) << nlohmann::ordered_json{{"cpu", machine().cpu_name},
                                                   {"threads", at::get_num_threads()},
                                                   {"model", a.model},
                                                   {"batch", a.batch},
                                                   {"size", a.size},
                                                   {"tier", a.folder.empty() ? "memory" : "disk"},
                                                   {"to_host_bytes_per_s", graph.graph.bandwidth.to_host},
                                                   {"to_device_bytes_per_s", graph.graph.bandwidth.to_device},
                                                   {"keep_all_bytes", peak},
                                                   {"floor_bytes", floor.bytes},
                                                   {"plans", rows}}
                                .dump(1)
                         << '\n';
  return 0;
}

}  // namespace
}  // namespace dovetail::plan

int main(int argc, char** argv) {
  dovetail::plan::Arguments a;
  CLI::App app("Memory plans of a training step, predicted and measured");
  app.add_option("--model", a.model, "vgg16, vgg19, resnet50 or unet");
  app.add_option("--batch", a.batch, "images of a step");
  app.add_option("--size", a.size, "height and width of an image");
  app.add_option("--ratios", a.ratios, "budgets, of the peak with everything kept")->delimiter(',');
  app.add_option("--folder", a.folder, "disk tier: a folder (absent: memory)");
  app.add_option("--rounds", a.rounds, "timed steps, of which the fastest counts");
  app.add_option("--time-limit", a.time_limit_s, "seconds of solving for each budget");
  app.add_option("--out", a.out, "write the result as JSON");
  CLI11_PARSE(app, argc, argv);
  try {
    return dovetail::plan::run(a);
  } catch (const dovetail::UserError& error) {
    std::cerr << dovetail::describe_error(error) << '\n';
    return 2;
  }
}
