#include "dovetail/cli/simulate/hybrid_studies.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"

namespace dovetail::cli {
namespace {

using jobs::SimResult;

constexpr int64_t kPaperCores = 16;
/// Relative difference of times that count as equal.
constexpr double kSame = 0.05;

jobs::SimResult simulate(const HybridCluster& cluster, const HybridCluster::Case& which,
                         uint64_t seed) {
  return jobs::simulate(cluster.nodes(which), cluster.sim_job(), cluster.options(seed));
}

/// Returns the cluster without noise, to compare numbers of nodes.
HybridCluster without_noise(HybridCluster cluster) {
  for (auto& node : cluster.node)
    for (auto* device : {&node.core, &node.gpu}) device->noise = device->run_noise = 0;
  return cluster;
}

/// Returns the factor by which the paper's devices are slower than Rodinia's programs. It assumes
/// that the paper's hybrid run is the best division of its rows.
double paper_slowness() {
  const double part = static_cast<double>(kPaperCores - 1) / static_cast<double>(kPaperCores);
  return kPaperHybrid.seconds * (part / kRodiniaCpu.seconds + 1 / kRodiniaGpu.seconds);
}

HybridCluster paper_cluster(double slowness, const std::vector<std::string>& overrides) {
  HybridCluster cluster;
  cluster.source = "the paper's table of k-means programs, and assumptions";
  const auto describe = [&](Section& s) {
    s.section("job", cluster.job, "What is computed");
    s.section("network", cluster.network, "Between nodes");
    s.section("sharing", cluster.sharing, "How work is shared");
  };
  parse_config(describe, "", "--set", overrides);
  const double rows =
      static_cast<double>(cluster.job.rows) * static_cast<double>(cluster.job.iterations);
  const auto device = [&](const PaperRow& row, int64_t slots) {
    return HybridCluster::Device{
        .row_s = slowness * row.seconds * static_cast<double>(slots) / rows,
        .run_noise = std::sqrt(row.variance) / row.seconds};
  };
  cluster.node = {{.cores = kPaperCores,
                   .gpus = 1,
                   .core = device(kRodiniaCpu, kPaperCores),
                   .gpu = device(kRodiniaGpu, 1)}};
  return cluster;
}

std::string devices_of(int64_t cores, int64_t gpus) {
  std::string gpu = gpus == 0 ? "" : fmt::format("{} GPU{}", gpus, gpus == 1 ? "" : "s");
  if (cores == 0) return gpu;
  return fmt::format("{} CPU core{}{}{}", cores, cores == 1 ? "" : "s", gpus == 0 ? "" : " and ",
                     gpu);
}

NodeCase study_node(const HybridCluster& cluster, const StudyOptions& options, int64_t gpus,
                    bool cores_compute) {
  const HybridCluster::Case which{.gpus = gpus, .cores_compute = cores_compute};
  NodeCase result{.devices = devices_of(cores_compute ? cluster.node[0].cores - gpus : 0, gpus)};
  std::vector<double> seconds;
  for (int64_t run = 0; run < options.runs; ++run)
    seconds.push_back(simulate(cluster, which, static_cast<uint64_t>(options.seed + run)).seconds);
  const auto runs = static_cast<double>(options.runs);
  for (const double s : seconds) result.seconds += s / runs;
  for (const double s : seconds)
    result.variance += (s - result.seconds) * (s - result.seconds) / (runs - 1);
  result.best_s = jobs::minimum_seconds(cluster.nodes(which), cluster.sim_job()) +
                  cluster.job.update_s * static_cast<double>(cluster.job.iterations);
  return result;
}

/// Seconds that one core and one GPU compute in an iteration.
struct TaskTimes {
  double core_s = 0, gpu_s = 0;
};

TaskTimes task_times(const HybridCluster& cluster, const HybridCluster::Case& which,
                     const SimResult& result) {
  const auto nodes = cluster.nodes(which);
  double core_slots = 0, gpu_slots = 0;
  TaskTimes times;
  for (size_t n = 0; n < nodes.size(); ++n)
    for (size_t d = 0; d < nodes[n].devices.size(); ++d) {
      const bool core = nodes[n].devices[d].name == "cores";
      (core ? core_slots : gpu_slots) += static_cast<double>(nodes[n].devices[d].slots);
      (core ? times.core_s : times.gpu_s) += result.devices[n][d].busy_s;
    }
  const auto iterations = static_cast<double>(cluster.job.iterations);
  if (core_slots > 0) times.core_s /= core_slots * iterations;
  if (gpu_slots > 0) times.gpu_s /= gpu_slots * iterations;
  return times;
}

NodesCase study_nodes(const HybridCluster& cluster, int64_t nodes, int64_t gpus, uint64_t seed) {
  NodesCase result{.nodes = nodes, .gpus = gpus};
  const auto count = static_cast<size_t>(nodes);
  const HybridCluster::Case both{.nodes = count, .gpus = gpus},
      gpus_alone{.nodes = count, .gpus = gpus, .cores_compute = false};
  const auto iterations = static_cast<double>(cluster.job.iterations);
  result.serial_s =
      iterations * (static_cast<double>(cluster.job.rows) * cluster.node[0].core.row_s +
                    cluster.node[0].core.start_s + cluster.job.update_s);
  result.cpu_s = simulate(cluster, {.nodes = count, .gpus = 0}, seed).seconds;
  const SimResult alone = simulate(cluster, gpus_alone, seed),
                  hybrid = simulate(cluster, both, seed);
  result.gpu_s = alone.seconds;
  result.gpu_alone_task_s = task_times(cluster, gpus_alone, alone).gpu_s;
  result.hybrid_s = hybrid.seconds;
  result.least_s = jobs::minimum_seconds_in_shards(cluster.nodes(both), cluster.sim_job()) +
                   iterations * cluster.job.update_s;
  const TaskTimes times = task_times(cluster, both, hybrid);
  result.core_task_s = times.core_s;
  result.gpu_task_s = times.gpu_s;
  result.iteration_s = hybrid.seconds / iterations;
  return result;
}

/// Adds the claims about one node.
void claim_one_node(ReadingResult& result, const HybridCluster& cluster, bool paper, bool fitted) {
  const NodeCase &cpu = result.one_node[0], &gpu = result.one_node[1], &hybrid = result.one_node[2],
                 &two = result.one_node[3];
  const double faster = std::min(cpu.seconds, gpu.seconds);
  result.claims.push_back(
      {"on one node CPU cores and a GPU together are faster than either alone",
       fmt::format("{:.2f} s against {:.2f} and {:.2f}: {:.2f}x", hybrid.seconds, cpu.seconds,
                   gpu.seconds, faster / hybrid.seconds),
       hybrid.seconds < faster});
  if (paper && !fitted)
    result.claims.push_back({fmt::format("together they take {} s", kPaperHybrid.seconds),
                             fmt::format("{:.2f} s; devices as fast as Rodinia's allow {:.2f}",
                                         hybrid.seconds, hybrid.best_s),
                             std::abs(hybrid.seconds / kPaperHybrid.seconds - 1) <= kSame});
  if (paper)
    result.claims.push_back(
        {"runs of both together vary more than Rodinia's runs of either",
         fmt::format(
             "variance {:.3f} against {} and {}, from which the speeds vary here (paper {})",
             hybrid.variance, kRodiniaCpu.variance, kRodiniaGpu.variance, kPaperHybrid.variance),
         hybrid.variance > std::max(kRodiniaCpu.variance, kRodiniaGpu.variance)});
  const double cores = static_cast<double>(cluster.node[0].cores - 1);
  const double needed = cores * cluster.node[0].gpu.row_s / cluster.node[0].core.row_s;
  result.claims.push_back(
      {fmt::format("one GPU with {} cores is ahead of two GPUs", cores),
       fmt::format(
           "{:.2f} s against {:.2f}; at these speeds the cores equal {:.2f} GPUs. The second "
           "GPU would have to lose over {:.0f} % of its speed",
           hybrid.seconds, two.seconds, needed, 100 * std::max(0.0, 1 - needed)),
       hybrid.seconds < two.seconds});
}

/// Adds the claims about several nodes.
void claim_nodes(ReadingResult& result, const StudyOptions& options) {
  const NodesCase &one = result.nodes[0],
                  &most = result.nodes[static_cast<size_t>(options.nodes) - 1];
  if (options.nodes > 1) {
    result.claims.push_back({"the hybrid's speed-up over one core falls back with more nodes",
                             fmt::format("{:.1f}x on one node, {:.1f}x on {}", one.speed_up(),
                                         most.speed_up(), most.nodes),
                             most.speed_up() < one.speed_up()});
  }
  const double longer = std::max(one.core_task_s, one.gpu_task_s),
               apart = std::abs(one.core_task_s - one.gpu_task_s);
  result.claims.push_back(
      {"a core's and a GPU's task of an iteration take equally long",
       fmt::format("{:.4f} s and {:.4f} s, {:.1f} % apart; on {} nodes {:.4f} s and {:.4f} s",
                   one.core_task_s, one.gpu_task_s, 100 * apart / longer, most.nodes,
                   most.core_task_s, most.gpu_task_s),
       apart <= kSame * longer});
  result.claims.push_back(
      {"a GPU's task is shorter beside cores than with GPUs alone",
       fmt::format("{:.4f} s against {:.4f} on one node, {:.4f} against {:.4f} on {}",
                   one.gpu_task_s, one.gpu_alone_task_s, most.gpu_task_s, most.gpu_alone_task_s,
                   most.nodes),
       one.gpu_task_s < one.gpu_alone_task_s && most.gpu_task_s < most.gpu_alone_task_s});
}

report::LineChart::Line line_of(const std::string& name, const std::vector<NodesCase>& cases,
                                int64_t gpus, double (*value)(const NodesCase&)) {
  report::LineChart::Line line{.name = name, .points = {}};
  for (const NodesCase& one : cases)
    if (one.gpus == gpus) line.points.emplace_back(static_cast<double>(one.nodes), value(one));
  return line;
}

}  // namespace

std::vector<Reading> paper_readings(const std::vector<std::string>& overrides) {
  const double slowness = paper_slowness();
  return {{"devices are as fast as in Rodinia's programs", paper_cluster(1, overrides)},
          {fmt::format("devices are {:.2f} times slower than in Rodinia's programs", slowness),
           paper_cluster(slowness, overrides), true}};
}

std::vector<std::string> paper_assumptions(const HybridCluster& cluster) {
  const auto& job = cluster.job;
  const auto& network = cluster.network;
  return {
      fmt::format("shards of {} rows as in `dovetail kmeans`, {} iterations; every row costs the "
                  "same",
                  job.grain, job.iterations),
      fmt::format("{:g} bytes of parameters and {:g} of a node's sum travel in an iteration",
                  job.parameter_bytes, job.partial_bytes),
      fmt::format("a message between nodes takes {:g} s and {:g} bytes/s; sums merge {}",
                  network.latency_s, network.bytes_per_s,
                  network.merge == "tree" ? "along a tree" : "one node after another"),
      "every node has 16 cores; a second GPU is as fast; starting a shard takes no time",
      "speeds of all cores and of a GPU vary from run to run as Rodinia's in the paper's table",
      "\"speed-up\" is the time of one core over the time of all",
      "a \"gradient task\" is what one core or one GPU computes of an iteration"};
}

ReadingResult study(const Reading& reading, const StudyOptions& options) {
  DOVETAIL_CHECK(options.runs > 1 && options.nodes > 0, "{} runs, {} nodes", options.runs,
                 options.nodes);
  ReadingResult result{.name = reading.name};
  HybridCluster cluster = reading.cluster;
  cluster.node.resize(1);
  user_check(
      cluster.node[0].cores > 2 && cluster.node[0].core.row_s > 0 && cluster.node[0].gpu.row_s > 0,
      "the studies compare cores and GPUs: the first [[node]] needs more than two cores, and row_s "
      "of both");
  result.one_node = {study_node(cluster, options, 0, true), study_node(cluster, options, 1, false),
                     study_node(cluster, options, 1, true), study_node(cluster, options, 2, false),
                     study_node(cluster, options, 2, true)};
  if (options.paper) {
    result.one_node[0].paper = kRodiniaCpu;
    result.one_node[1].paper = kRodiniaGpu;
    result.one_node[2].paper = kPaperHybrid;
  }
  const HybridCluster quiet = without_noise(cluster);
  for (const int64_t gpus : {1, 2})
    for (int64_t n = 1; n <= options.nodes; ++n)
      result.nodes.push_back(study_nodes(quiet, n, gpus, static_cast<uint64_t>(options.seed)));
  claim_one_node(result, cluster, options.paper, reading.fitted);
  claim_nodes(result, options);
  return result;
}

std::vector<ScaleCase> study_scale(const HybridCluster& cluster, const StudyOptions& options) {
  HybridCluster growing = cluster;
  growing.job.iterations = std::min<int64_t>(2, cluster.job.iterations);
  std::vector<ScaleCase> cases;
  for (int64_t nodes = 1; nodes <= options.most_nodes; nodes *= 2) {
    ScaleCase one{.nodes = nodes};
    one.rows = growing.job.rows = std::max<int64_t>(1, cluster.job.rows / options.nodes) * nodes;
    const auto list = growing.nodes({.nodes = static_cast<size_t>(nodes)});
    for (const auto& node : list) one.devices += std::ssize(node.devices);
    const double begin = now_seconds();
    for (const bool tree : {true, false}) {
      growing.network.merge = tree ? "tree" : "ranks";
      const SimResult result = jobs::simulate(list, growing.sim_job(),
                                              growing.options(static_cast<uint64_t>(options.seed)));
      one.events += result.events;
      (tree ? one.tree_s : one.ranks_s) =
          result.iterations.back().end_s - result.iterations.back().begin_s;
    }
    one.wall_s = now_seconds() - begin;
    jobs::SimJob iteration = growing.sim_job();
    iteration.iterations = 1;
    one.minimum_s = jobs::minimum_seconds(list, iteration) + iteration.update_s;
    cases.push_back(one);
  }
  return cases;
}

FaultsCase study_faults(const HybridCluster& cluster, uint64_t seed) {
  const auto nodes = cluster.nodes({.nodes = cluster.size()});
  jobs::SimOptions options = cluster.options(seed);
  FaultsCase result{.without_s = jobs::simulate(nodes, cluster.sim_job(), options).seconds};
  options.faults = cluster.faults();
  const SimResult with = jobs::simulate(nodes, cluster.sim_job(), options);
  result.with_s = with.seconds;
  for (const auto& iteration : with.iterations) result.restarts += iteration.attempts - 1;
  for (size_t n = 0; n < nodes.size(); ++n) {
    if (!with.lost[n].empty()) result.left_out.push_back(with.lost[n]);
    for (size_t d = 0; d < nodes[n].devices.size(); ++d)
      if (!with.devices[n][d].left_out.empty())
        result.left_out.push_back(fmt::format("{} of node {}: {}", nodes[n].devices[d].name, n,
                                              with.devices[n][d].left_out));
  }
  return result;
}

report::LineChart chart_of_nodes(const ReadingResult& result) {
  report::LineChart chart{.title = "A job on CPU cores, GPUs and both (simulated)",
                          .subtitle = result.name,
                          .x_label = "nodes",
                          .y_label = "s",
                          .lines = {}};
  chart.lines.push_back(
      line_of("CPU cores", result.nodes, 1, [](const NodesCase& one) { return one.cpu_s; }));
  for (const int64_t gpus : {1, 2}) {
    const char* plural = gpus == 1 ? "GPU" : "GPUs";
    chart.lines.push_back(line_of(fmt::format("{} {}", gpus, plural), result.nodes, gpus,
                                  [](const NodesCase& one) { return one.gpu_s; }));
    chart.lines.push_back(line_of(fmt::format("{} {}, cores", gpus, plural), result.nodes, gpus,
                                  [](const NodesCase& one) { return one.hybrid_s; }));
  }
  return chart;
}

report::LineChart chart_of_speed_up(const ReadingResult& result) {
  return {.title = "Speed-up over one core (simulated)",
          .subtitle = "one GPU a node; " + result.name,
          .x_label = "nodes",
          .y_label = "x",
          .lines = {
              line_of("CPU cores", result.nodes, 1,
                      [](const NodesCase& one) { return one.serial_s / one.cpu_s; }),
              line_of("1 GPU", result.nodes, 1,
                      [](const NodesCase& one) { return one.serial_s / one.gpu_s; }),
              line_of("1 GPU, cores", result.nodes, 1,
                      [](const NodesCase& one) { return one.speed_up(); }),
          }};
}

report::LineChart chart_of_scale(const std::vector<ScaleCase>& cases) {
  report::LineChart chart{.title = "An iteration, rows in proportion to the nodes (simulated)",
                          .subtitle = "sums merged along a tree, or one node after another",
                          .x_label = "nodes",
                          .y_label = "s",
                          .lines = {{"tree", {}}, {"ranks", {}}, {"work alone", {}}}};
  for (const ScaleCase& one : cases) {
    const auto nodes = static_cast<double>(one.nodes);
    chart.lines[0].points.emplace_back(nodes, one.tree_s);
    chart.lines[1].points.emplace_back(nodes, one.ranks_s);
    chart.lines[2].points.emplace_back(nodes, one.minimum_s);
  }
  return chart;
}

}  // namespace dovetail::cli
