// Compares the simulator of shared jobs with measurements: k-means on two executors of unequal
// speed.
//
//   ./dev bench simulate_hybrid [--rounds N] [--factor N] [--out FILE]
//
// Rows have 100 float32. Executor A is one thread, B another that computes every shard `factor`
// times (3). Each alone computes iterations of 102,400 and of 409,600 rows. The line through both
// times is its speed; the line's value at no rows is the driver's time. From these figures alone
// the simulator predicts the time of both together with 204,800, 409,600 and 819,200 rows. Most of
// these sizes were not measured. It predicts both phases: while speeds are learned (the first
// iteration of a machine) and afterwards. It also predicts two nodes, of A and of B, from these
// figures and the times of messages of two sizes. Sides take turns within a round, and the best
// round of each counts.
//
// Claims: simulated time is within 10 % of measured time in every case after the first iteration.
// This holds in one process and as two nodes. Exit code 1 when one does not hold.
//
// layer: fit
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "bench/drivers.h"
#include "bench/program.h"
#include "bench/unequal_executors.h"
#include "dovetail/base/file.h"
#include "dovetail/base/kept_memory.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/trace.h"
#include "dovetail/comm/cost_model.h"
#include "dovetail/comm/group.h"
#include "dovetail/fit/kmeans/kmeans.h"
#include "dovetail/jobs/nodes.h"
#include "dovetail/jobs/runtime.h"
#include "dovetail/jobs/simulate/cluster.h"

namespace dovetail::fit {
namespace {

using Json = nlohmann::ordered_json;
constexpr int64_t kColumns = 100;
constexpr std::array<int64_t, 2> kAloneRows = {102400, 409600};
constexpr std::array<int64_t, 3> kTogetherRows = {204800, 409600, 819200};
constexpr std::array<int64_t, 3> kClusters = {5, 64, 256};
constexpr double kWithin = 0.1, kComputedSeconds = 0.01;

struct Options {
  int rounds = 9;
  int64_t factor = 3;
  std::string out;
};

double iterate(KMeansData& data, const at::Tensor& centres) {
  const double begin = now_seconds();
  data.assign(centres);
  return now_seconds() - begin;
}

/// The best seconds of each size.
struct Best {
  std::map<int64_t, double> seconds;
  void add(int64_t rows, double s) {
    const auto [place, first] = seconds.emplace(rows, s);
    if (!first) place->second = std::min(place->second, s);
  }
};

/// The same rows on executors that are kept, so that their speeds are known from the second
/// iteration on.
class Side {
 public:
  Side(const at::Tensor& x, const std::vector<bool>& slow, const std::atomic<int64_t>& factor,
       std::vector<int64_t> sizes)
      : runtime_(unequal_executors(slow, factor)), sizes_(std::move(sizes)) {
    for (const int64_t rows : sizes_)
      data_.emplace_back(std::make_unique<KMeansData>(x.narrow(0, 0, rows), runtime_));
  }
  void iterate_all(const at::Tensor& centres, Best* best) {
    for (size_t i = 0; i < sizes_.size(); ++i) {
      const double seconds = iterate(*data_[i], centres);
      if (best != nullptr) best->add(sizes_[i], seconds);
    }
  }

 private:
  std::shared_ptr<jobs::Runtime> runtime_;
  std::vector<int64_t> sizes_;
  std::vector<std::unique_ptr<KMeansData>> data_;
};

struct Alone {
  double driver_s, row_s;
};

Alone line_through(const Best& best) {
  const double few = best.seconds.at(kAloneRows[0]), many = best.seconds.at(kAloneRows[1]);
  const double row_s = (many - few) / static_cast<double>(kAloneRows[1] - kAloneRows[0]);
  return {.driver_s = std::max(0.0, few - row_s * static_cast<double>(kAloneRows[0])),
          .row_s = row_s};
}

struct Simulated {
  double first_s, later_s;
};

Simulated simulated(const Alone& a, const Alone& b, int64_t rows) {
  const jobs::SimNode node{
      .devices = {{.name = "A", .speed = {0, a.row_s}}, {.name = "B", .speed = {0, b.row_s}}},
      .driver_s = std::min(a.driver_s, b.driver_s)};
  const jobs::SimResult result =
      jobs::simulate({node}, {.rows = rows, .grain = kKMeansGrain, .iterations = 6});
  const auto seconds = [](const jobs::SimIteration& one) { return one.end_s - one.begin_s; };
  return {seconds(result.iterations.front()), seconds(result.iterations.back())};
}

struct Holds {
  bool in_one_process = true, as_nodes = true;
};

/// Blocks of a TreeSum that shards [first, end) are.
int64_t blocks_of(int64_t first, int64_t end) {
  int64_t count = 0;
  for (int64_t size = 1; first < end; size *= 2) {
    if (first % (2 * size) != 0 && first + size <= end) first += size, ++count;
    if (end % (2 * size) != 0 && first + size <= end) end -= size, ++count;
  }
  return count;
}

/// An iteration of nodes A and B once they know their speeds.
double simulated_nodes(const Alone& a, const Alone& b, int64_t rows, int64_t k,
                       const comm::Link& link) {
  const std::vector<jobs::SimNode> nodes = {
      {.devices = {{.name = "A", .speed = {0, a.row_s}}}, .driver_s = a.driver_s},
      {.devices = {{.name = "B", .speed = {0, b.row_s}}}, .driver_s = b.driver_s}};
  jobs::SimJob job{
      .rows = rows, .grain = kKMeansGrain, .iterations = 6, .parameter_bytes = sizeof(int64_t)};
  const jobs::SimOptions options{.scheduling = {.hysteresis = jobs::Nodes::kHysteresis},
                                 .network = link};
  const int64_t shards = (rows + kKMeansGrain - 1) / kKMeansGrain,
                of_a = jobs::simulate(nodes, job, options).iterations.back().rows[0] / kKMeansGrain;
  const int64_t blocks = std::max(blocks_of(0, of_a), blocks_of(of_a, shards));
  job.partial_bytes = static_cast<double>(blocks * k * kColumns) * sizeof(double);
  const jobs::SimIteration last = jobs::simulate(nodes, job, options).iterations.back();
  return last.end_s - last.begin_s;
}

/// Measures the link under the conditions of nodes: messages follow a phase of computation, after
/// which sleeping threads respond late.
comm::Link measured_link() {
  const auto groups = comm::local_groups(2);
  std::barrier<> computed(2);
  const auto samples_of = [&](comm::Group& group) {
    std::vector<comm::LinkSample> samples;
    for (const int64_t bytes : {int64_t{1} << 10, int64_t{1} << 20}) {
      const std::string message(static_cast<size_t>(bytes), 'x');
      double best = std::numeric_limits<double>::infinity();
      for (int i = 0; i < 20; ++i) {
        for (const double end = now_seconds() + kComputedSeconds; now_seconds() < end;) {
        }
        computed.arrive_and_wait();
        const double begin = now_seconds();
        comm::all_gather_bytes(group, message, bytes);
        best = std::min(best, now_seconds() - begin);
      }
      samples.push_back({.messages = 1, .bytes = static_cast<double>(bytes), .seconds = best});
    }
    return samples;
  };
  const std::jthread other([&] { samples_of(*groups[1]); });
  return comm::fit_link(samples_of(*groups[0]));
}

/// As two nodes: the measured seconds of each number of rows.
class NodeSides {
 public:
  NodeSides(const at::Tensor& x, const std::atomic<int64_t>& factor) {
    for (const int64_t rows : kTogetherRows) {
      const auto groups = comm::local_groups(2);
      sides_.emplace_back(std::make_unique<Drivers>(
          "nodes", x.narrow(0, 0, rows),
          std::vector<std::shared_ptr<jobs::Workers>>{
              std::make_shared<jobs::Nodes>(groups[0], unequal_executors({false}, factor)),
              std::make_shared<jobs::Nodes>(groups[1], unequal_executors({true}, factor, 1))}));
    }
  }
  void iterate_all(const at::Tensor& centres, Best* best) {
    for (size_t i = 0; i < sides_.size(); ++i) {
      const double seconds = sides_[i]->iterate(centres);
      if (best != nullptr) best->add(kTogetherRows[i], seconds);
    }
  }

 private:
  std::vector<std::unique_ptr<Drivers>> sides_;
};

Json compare(const at::Tensor& x, int64_t k, const comm::Link& link, const Options& options,
             Holds& holds) {
  const at::Tensor centres = x.slice(0, 0, k).to(at::kDouble);
  const std::vector<int64_t> alone(kAloneRows.begin(), kAloneRows.end()),
      together(kTogetherRows.begin(), kTogetherRows.end());
  const std::atomic<int64_t> factor = options.factor;
  Side a(x, {false}, factor, alone), b(x, {true}, factor, alone),
      both(x, {false, true}, factor, together);
  NodeSides nodes(x, factor);
  Best best_a, best_b, best_both, best_first, best_nodes;
  for (int round = -6; round < options.rounds; ++round) {
    a.iterate_all(centres, round < 0 ? nullptr : &best_a);
    b.iterate_all(centres, round < 0 ? nullptr : &best_b);
    both.iterate_all(centres, round < 0 ? nullptr : &best_both);
    nodes.iterate_all(centres, round < 0 ? nullptr : &best_nodes);
    Side(x, {false, true}, factor, together)
        .iterate_all(centres, round < 0 ? nullptr : &best_first);
  }
  const Alone line_a = line_through(best_a), line_b = line_through(best_b);
  fmt::print("\nk = {}: A {:.4g} us a row, B {:.4g}; the driver {:.3f} ms\n", k, 1e6 * line_a.row_s,
             1e6 * line_b.row_s, 1e3 * std::min(line_a.driver_s, line_b.driver_s));
  fmt::print("  {:>8}{:>15}{:>14}{:>14}{:>22}\n", "rows", "", "measured ms", "simulated ms",
             "simulated / measured");
  Json cases = Json::array();
  for (const int64_t rows : kTogetherRows) {
    const Simulated model = simulated(line_a, line_b, rows);
    const auto line = [&](const char* what, double measured_s, double simulated_s) {
      fmt::print("  {:>8}{:>15}{:>14.3f}{:>14.3f}{:>22.3f}\n", rows, what, 1e3 * measured_s,
                 1e3 * simulated_s, simulated_s / measured_s);
      cases.push_back({{"clusters", k},
                       {"rows", rows},
                       {"iteration", what},
                       {"measured_ms", 1e3 * measured_s},
                       {"simulated_ms", 1e3 * simulated_s},
                       {"ratio", simulated_s / measured_s}});
    };
    line("first", best_first.seconds.at(rows), model.first_s);
    line("later", best_both.seconds.at(rows), model.later_s);
    const double of_nodes_s = simulated_nodes(line_a, line_b, rows, k, link);
    line("nodes", best_nodes.seconds.at(rows), of_nodes_s);
    const auto is_near = [](double ratio) { return std::abs(ratio - 1) <= kWithin; };
    holds.in_one_process =
        holds.in_one_process && is_near(model.later_s / best_both.seconds.at(rows));
    holds.as_nodes = holds.as_nodes && is_near(of_nodes_s / best_nodes.seconds.at(rows));
  }
  return cases;
}

int bench(const Options& options) {
  user_check(options.rounds > 0 && options.factor >= 1, "at least a round and a factor of 1");
  fmt::print("{}, load {:.2f}; B computes every shard {} times; best of {} rounds\n",
             machine().cpu_name, machine().load_average, options.factor, options.rounds);
  const at::Tensor x =
      at::randn({kTogetherRows.back(), kColumns}, at::detail::createCPUGenerator(1));
  Json result = {{"benchmark", "simulate_hybrid"},
                 {"machine", machine_json()},
                 {"factor", options.factor},
                 {"rounds", options.rounds},
                 {"cases", Json::array()}};
  const comm::Link link = measured_link();
  fmt::print("between nodes: {:.0f} us and {:.2f} GB/s\n", 1e6 * link.latency_s,
             1e-9 * link.bytes_per_s);
  result["network"] = {{"latency_s", link.latency_s}, {"bytes_per_s", link.bytes_per_s}};
  Holds holds;
  for (const int64_t k : kClusters)
    for (const Json& one : compare(x, k, link, options, holds)) result["cases"].push_back(one);
  for (const auto& [where, held] :
       {std::pair{"in one process", holds.in_one_process}, {"as two nodes", holds.as_nodes}}) {
    const std::string text = fmt::format(
        "{}, after the first iteration the simulated time is within {:g} % of the measured one",
        where, 100 * kWithin);
    fmt::print("\nclaim: {}: {}", text, held ? "holds" : "DOES NOT HOLD");
    result["claims"].push_back({{"claim", text}, {"holds", held}});
  }
  fmt::print("\nload {:.2f}\n", machine().load_average);
  if (!options.out.empty()) write_file_atomically(options.out, result.dump(1) + "\n");
  return holds.in_one_process && holds.as_nodes ? 0 : 1;
}

}  // namespace
}  // namespace dovetail::fit

int main(int argc, char** argv) {
  CLI::App app("The simulator of shared jobs against measured ones");
  dovetail::fit::Options options;
  app.add_option("--rounds", options.rounds, "Rounds; the best one counts");
  app.add_option("--factor", options.factor, "How often B computes every shard");
  app.add_option("--out", options.out, "Also write the result as JSON");
  return dovetail::run_program(app, argc, argv, [&] {
    dovetail::keep_freed_memory();
    return dovetail::fit::bench(options);
  });
}
