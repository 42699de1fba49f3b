// One training step of a convolutional network is captured, profiled and planned at several
// budgets. As in training, each budget has two plans. The second one uses times and copies measured
// in some steps by the first plan. Each second plan is run:
//
//   ./dev bench plan --model vgg16 --batch 8 --size 64 --ratios 0.8,0.6,0.4 --folder /tmp
//
// Convolutions run by the algorithms that each plan chose. The reference step keeps everything and
// uses the same algorithms. The loss and all values after some steps must be bitwise equal to it.
// The time is compared with eager training, interleaved. With three batches or more it also fits
// the line of time against batch.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/program.h"
#include "dovetail/base/error.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/median.h"
#include "dovetail/base/trace.h"
#include "dovetail/models/vision.h"
#include "dovetail/plan/device/step_device.h"
#include "dovetail/plan/model/packing.h"
#include "dovetail/plan/record/algorithms.h"
#include "dovetail/plan/record/capture.h"
#include "dovetail/plan/run/executor.h"
#include "dovetail/plan/run/profile.h"
#include "dovetail/plan/show/outcome.h"
#include "dovetail/plan/solve/placed.h"
#include "tests/plan/momentum_step.h"

namespace dovetail::plan {
namespace {

struct Arguments {
  std::string model = "vgg16", folder, out;
  std::vector<int64_t> batches = {8};
  int64_t batch = 8, size = 64, extended_batch = 144;  // batch: of the trial under way
  std::vector<double> ratios = {0.9, 0.8, 0.7, 0.6, 0.5, 0.4};
  int rounds = 7;
  double time_limit_s = 10;
  std::string cache = ProfileCache::default_folder().string();
};

/// Forward, backward and a step of SGD with momentum.
class Training : public MomentumStep {
 public:
  explicit Training(const Arguments& a)
      : MomentumStep(1e-3),
        model_(models::make_vision_model({.preset = a.model, .height = a.size, .width = a.size})) {
    initialize(*model_, 1);
    const int64_t classes = model_->config().classes;
    images_ = at::randn({a.batch, 3, a.size, a.size});
    targets_ = a.model == "unet" ? at::randint(0, classes, {a.batch, a.size, a.size})
                                 : at::randint(0, classes, {a.batch});
    for (const auto& item : model_->named_parameters()) add_parameter(item.key(), item.value());
    for (const auto& item : model_->named_buffers()) add_state(item.key(), item.value());
  }

  std::vector<at::Tensor> operator()() {
    forget_gradients();
    const models::LossSum loss = model_->loss(images_, targets_);
    return train(loss.sum / static_cast<double>(loss.weight));
  }

 private:
  std::shared_ptr<models::VisionModel> model_;
};

double ratio_of(int64_t a, int64_t b) { return static_cast<double>(a) / static_cast<double>(b); }
double mib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

/// Time and workspace of each way to run each convolution; a star before the fastest.
void print_algorithms(const Graph& graph) {
  for (const GraphNode& node : graph.nodes) {
    if (node.algorithms.size() < 2) continue;
    const bool backward = node.name.find("backward") != std::string::npos;
    fmt::print("  {:<24}{:<9}", node.layer, backward ? "backward" : "forward");
    const auto faster = [](const Algorithm& x, const Algorithm& y) { return x.time_s < y.time_s; };
    const auto fastest = std::min_element(node.algorithms.begin(), node.algorithms.end(), faster);
    for (const Algorithm& algorithm : node.algorithms)
      fmt::print(" {}{} {:.2f} ms {:.1f} MiB;", &algorithm == &*fastest ? "*" : "", algorithm.name,
                 algorithm.time_s * 1e3, mib(algorithm.workspace_bytes));
    fmt::print("\n");
  }
}

/// The algorithms that were chosen for the convolutions: how many nodes, how long they take, and
/// the most workspace.
nlohmann::ordered_json chosen(const Graph& graph, const std::vector<int>& algorithms) {
  struct Use {
    int nodes = 0;
    double time_s = 0, aten_s = 0;
    int64_t workspace_bytes = 0;
  };
  std::map<std::string, Use> uses;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const auto& all = graph.nodes[n].algorithms;
    if (all.size() < 2) continue;
    const Algorithm& algorithm = all[algorithms[n]];
    Use& use = uses[algorithm.name];
    ++use.nodes;
    use.time_s += algorithm.time_s;
    use.aten_s += all[0].time_s;
    use.workspace_bytes = std::max(use.workspace_bytes, algorithm.workspace_bytes);
  }
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  for (const auto& [name, use] : uses) {
    fmt::print("       {:>3} by {:<18} {:>8.1f} ms (aten {:.1f}), workspace up to {:.1f} MiB\n",
               use.nodes, name, use.time_s * 1e3, use.aten_s * 1e3, mib(use.workspace_bytes));
    out[name] = {{"nodes", use.nodes},
                 {"seconds", use.time_s},
                 {"aten_seconds", use.aten_s},
                 {"workspace_bytes", use.workspace_bytes}};
  }
  return out;
}

/// A training step as captured and profiled, and where it starts from.
class Trial {
 public:
  explicit Trial(const Arguments& a) : a_(a), training_(a_) {
    training_();
    const double captured_s = now_seconds();
    step_ = capture([&] { return training_(); }, training_.tensors());
    graph_ = graph_of(step_);
    const double profiled_s = now_seconds();
    ProfileCache cache(a.cache);
    add_convolution_algorithms(step_, graph_, cache);
    const Profile profile = profile_nodes(step_, graph_, 5, cache);
    cache.save();
    graph_.graph.bandwidth = cpu_step_device().bandwidth(a.folder, int64_t{128} << 20, 5);
    const double end_s = now_seconds();
    graph_.graph.budget_bytes = std::numeric_limits<int64_t>::max() / 8;
    peak_ = check(graph_.graph, keep_all(graph_.graph)).peak_bytes;
    floor_ = floor_of(graph_.graph, options()).bytes;
    fmt::print("{} {} threads\n", machine().cpu_name, at::get_num_threads());
    fmt::print(
        "{} batch {} at {} x {}: {} nodes, {} storages; captured in {:.1f} s, profiled in {:.1f} s "
        "({} algorithms measured, {} known from {})\n",
        a.model, a.batch, a.size, a.size, graph_.nodes.size(), graph_.graph.tensors.size(),
        profiled_s - captured_s, end_s - profiled_s, profile.measured, profile.known,
        cache.file().string());
    fmt::print(
        "keeping all {:.1f} MiB, floor {:.1f} MiB; to the {} tier {:.2f} GB/s, back {:.2f} GB/s\n",
        mib(peak_), mib(floor_), tier(), graph_.graph.bandwidth.to_host / 1e9,
        graph_.graph.bandwidth.to_device / 1e9);
    print_algorithms(graph_.graph);
    start_ = training_.values();
    random_ = generator().get_state();
  }

  /// Plans for a share of the peak and runs it; null where there is no plan.
  nlohmann::ordered_json run(double ratio) {
    StepGraph planned = graph_;
    const auto budget = static_cast<int64_t>(ratio * static_cast<double>(peak_));
    planned.graph.budget_bytes = budget;
    PlacedSolution placed;
    double first_solve_s = 0;
    try {
      const Solution first = solve_placed(planned.graph, options()).solution;
      first_solve_s = first.seconds;
      measure_by(first.schedule.plan, planned);
      placed = solve_placed(planned.graph, options());
    } catch (const UserError& error) {
      fmt::print("{:>6.2f} {:>9.1f} {}\n", ratio, mib(budget), error.what());
      return nullptr;
    }
    const Solution& solution = placed.solution;
    const double solved_s = first_solve_s + solution.seconds;
    const Plan& plan = solution.schedule.plan;
    const std::vector<at::Tensor> reference = values_of_keeping_all(solution.decisions.algorithms);
    restart();
    Executor executor(step_, planned, plan, {.folder = a_.folder});
    const bool same = equal(values_after_steps(executor), reference);
    std::vector<double> measured, eager;
    for (int round = 0; round < a_.rounds; ++round) {
      measured.push_back(executor.run().seconds);
      const double eager_start_s = now_seconds();
      training_();
      eager.push_back(now_seconds() - eager_start_s);
    }
    const double measured_s = median(measured), eager_s = median(eager);
    const PlanOutcome outcome = outcome_of(planned.graph, plan, solution.schedule.timeline);
    const double predicted_s = solution.schedule.expected_s;
    const int64_t predicted_bytes = placed.layout.bytes, measured_bytes = executor.resident_bytes();
    fmt::print(
        "{:>6.2f} {:>9.1f} {:>9.1f} {:>7.4f} {:>8.1f}ms {:>8.1f}ms {:>7.3f} {:>8.3f} {:>9.1f} "
        "{:>9.1f} {:>8.1f} {:>5}\n",
        ratio, mib(budget), mib(measured_bytes), ratio_of(measured_bytes, predicted_bytes),
        predicted_s * 1e3, measured_s * 1e3, measured_s / predicted_s, measured_s / eager_s,
        mib(outcome.to_host_bytes), mib(outcome.again_bytes), solved_s, same ? "same" : "DIFFER");
    return {{"ratio", ratio},
            {"budget_bytes", budget},
            {"simulated_peak_bytes", solution.schedule.timeline.peak_bytes},
            {"predicted_peak_bytes", predicted_bytes},
            {"measured_peak_bytes", measured_bytes},
            {"simulated_s", solution.schedule.timeline.makespan_s},
            {"predicted_s", predicted_s},
            {"measured_s", measured_s},
            {"eager_s", eager_s},
            {"bound_s", solution.bound_s},
            {"offloaded_bytes", outcome.to_host_bytes},
            {"again_bytes", outcome.again_bytes},
            {"solve_s", solved_s},
            {"to_host_bytes_per_s", planned.graph.bandwidth.to_host},
            {"to_device_bytes_per_s", planned.graph.bandwidth.to_device},
            {"complete", solution.complete},
            {"same_bits", same},
            {"algorithms", chosen(planned.graph, solution.decisions.algorithms)}};
  }

  nlohmann::ordered_json summary() const {
    return {{"cpu", machine().cpu_name},
            {"threads", at::get_num_threads()},
            {"model", a_.model},
            {"batch", a_.batch},
            {"size", a_.size},
            {"tier", tier()},
            {"to_host_bytes_per_s", graph_.graph.bandwidth.to_host},
            {"to_device_bytes_per_s", graph_.graph.bandwidth.to_device},
            {"keep_all_bytes", peak_},
            {"floor_bytes", floor_}};
  }

 private:
  static constexpr int kSteps = 3, kMeasured = 3;

  static at::Generator generator() { return at::globalContext().defaultGenerator(at::kCPU); }
  SolveOptions options() const {
    return {.compress = false, .least_bytes = kPagedBytes, .time_limit_s = a_.time_limit_s};
  }
  const char* tier() const { return a_.folder.empty() ? "memory" : "disk"; }

  /// Into `planned` what the operations and the copies of some steps by `plan` took, with nothing
  /// beside a copy.
  void measure_by(const Plan& plan, StepGraph& planned) {
    Executor executor(step_, planned, plan, {.folder = a_.folder, .copies_alone = true});
    executor.run();
    std::vector<Executor::Run> runs;
    for (int i = 0; i < kMeasured; ++i) runs.push_back(executor.run());
    set_times(planned.graph, plan, runs);
    limit_bandwidth(planned.graph, plan, runs);
  }

  void restart() {
    training_.set(start_);
    generator().set_state(random_);
  }

  /// The losses of some steps and all values after them.
  std::vector<at::Tensor> values_after_steps(Executor& executor) {
    std::vector<at::Tensor> out;
    for (int i = 0; i < kSteps; ++i) {
      executor.run();
      out.push_back(executor.results()[0].clone());
    }
    for (at::Tensor& value : training_.values()) out.push_back(std::move(value));
    return out;
  }

  std::vector<at::Tensor> values_of_keeping_all(const std::vector<int>& algorithms) {
    restart();
    Plan plan = keep_all(graph_.graph);
    for (Action& action : plan.actions)
      if (action.op == Op::kCompute) action.algorithm = algorithms[action.node];
    Executor executor(step_, graph_, plan, {});
    return values_after_steps(executor);
  }

  static bool equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const at::Tensor& x, const at::Tensor& y) { return x.equal(y); });
  }

  const Arguments a_;
  Training training_;
  CapturedStep step_;
  StepGraph graph_;
  int64_t peak_ = 0, floor_ = 0;
  std::vector<at::Tensor> start_;
  at::Tensor random_;
};

/// Least squares over some batches: seconds of a step with none, and of each image.
struct Line {
  double none_s = 0, image_s = 0,
         farthest = 0;  ///< farthest: of any point from the line, as a part of the point
  double at(double batch) const { return none_s + image_s * batch; }
};
Line line_through(const std::vector<nlohmann::ordered_json>& rows, const char* seconds) {
  const auto count = static_cast<double>(rows.size());
  double x = 0, y = 0, xx = 0, xy = 0;
  for (const auto& row : rows) {
    const double batch = row["batch"], s = row[seconds];
    x += batch / count, y += s / count, xx += batch * batch / count, xy += batch * s / count;
  }
  Line out;
  out.image_s = (xy - x * y) / (xx - x * x);
  out.none_s = y - out.image_s * x;
  for (const auto& row : rows)
    out.farthest =
        std::max(out.farthest, std::abs(out.at(row["batch"]) / row[seconds].get<double>() - 1));
  return out;
}

/// Returns a fitted line for each ratio with plans at three batches or more. Each includes its
/// prediction for one more batch.
nlohmann::ordered_json lines(const Arguments& a, const std::vector<nlohmann::ordered_json>& rows) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const double ratio : a.ratios) {
    std::vector<nlohmann::ordered_json> some;
    std::copy_if(rows.begin(), rows.end(), std::back_inserter(some),
                 [&](const auto& row) { return row["ratio"] == ratio; });
    if (some.size() < 3) continue;
    const Line predicted = line_through(some, "predicted_s"),
               measured = line_through(some, "measured_s");
    const auto batch = static_cast<double>(a.extended_batch);
    fmt::print(
        "{:>6.2f} over {} batches: predicted {:.1f} + {:.2f} ms an image ({:.1f} % off), measured "
        "{:.1f} + {:.2f} ms ({:.1f} % off); at {}: {:.2f} s, {:.2f} s, {:.3f} of it\n",
        ratio, some.size(), 1e3 * predicted.none_s, 1e3 * predicted.image_s,
        100 * predicted.farthest, 1e3 * measured.none_s, 1e3 * measured.image_s,
        100 * measured.farthest, a.extended_batch, predicted.at(batch), measured.at(batch),
        measured.at(batch) / predicted.at(batch));
    const auto json = [&](const Line& line) -> nlohmann::ordered_json {
      return {{"none_s", line.none_s},
              {"image_s", line.image_s},
              {"farthest", line.farthest},
              {"extended_s", line.at(batch)}};
    };
    out.push_back({{"ratio", ratio},
                   {"extended_batch", a.extended_batch},
                   {"predicted", json(predicted)},
                   {"measured", json(measured)}});
  }
  return out;
}

int run(Arguments a) {
  nlohmann::ordered_json out = {{"benchmark", "plan"}, {"trials", nlohmann::ordered_json::array()}};
  std::vector<nlohmann::ordered_json> rows;
  for (const int64_t batch : a.batches) {
    a.batch = batch;
    Trial trial(a);
    fmt::print("{:>6} {:>9} {:>9} {:>7} {:>10} {:>10} {:>7} {:>8} {:>9} {:>9} {:>8} {:>5}\n",
               "ratio", "budget", "peak", "x pred.", "predicted", "measured", "x pred.", "x eager",
               "offloaded", "again", "solve s", "bits");
    out["trials"].push_back(trial.summary());
    for (const double ratio : a.ratios) {
      nlohmann::ordered_json row = trial.run(ratio);
      std::fflush(stdout);
      if (row.is_null()) continue;
      row["batch"] = batch;
      out["trials"].back()["plans"].push_back(row);
      rows.push_back(std::move(row));
    }
  }
  out["lines"] = lines(a, rows);
  if (!a.out.empty()) std::ofstream(a.out) << out.dump(1) << '\n';
  return 0;
}

}  // namespace
}  // namespace dovetail::plan

int main(int argc, char** argv) {
  dovetail::plan::Arguments a;
  CLI::App app("Memory plans of a training step, predicted and measured");
  app.add_option("--model", a.model, "vgg16, vgg19, resnet50 or unet");
  app.add_option("--batch", a.batches,
                 "images of a step; of three or more a line in the batch is fitted")
      ->delimiter(',');
  app.add_option("--extended-batch", a.extended_batch, "the batch that such lines are extended to");
  app.add_option("--size", a.size, "height and width of an image");
  app.add_option("--ratios", a.ratios, "budgets, of the peak with everything kept")->delimiter(',');
  app.add_option("--folder", a.folder, "disk tier: a folder (absent: memory)");
  app.add_option("--rounds", a.rounds, "timed steps; the median counts");
  app.add_option("--cache", a.cache, "folder of measured times; \"\": measure anew");
  app.add_option("--time-limit", a.time_limit_s,
                 "seconds of solving, for each of the two plans of a budget");
  app.add_option("--out", a.out, "write the result as JSON");
  return dovetail::run_program(app, argc, argv, [&] { return dovetail::plan::run(a); });
}
