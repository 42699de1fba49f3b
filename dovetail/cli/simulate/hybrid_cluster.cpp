#include "dovetail/cli/simulate/hybrid_cluster.h"

#include "dovetail/base/error.h"

namespace dovetail::cli {
namespace {

jobs::SimDevice sim_device(const HybridCluster::Device& device, const char* name) {
  return {.name = name,
          .speed = {device.start_s, device.row_s},
          .noise = device.noise,
          .run_noise = device.run_noise,
          .ratio = device.row_s > 0 ? 1 / device.row_s : 1};
}

}  // namespace

void HybridCluster::Device::describe(Section& s) {
  s.value("start_s", start_s, "To start a lease").unit("s").range(0, 1e6);
  s.value("row_s", row_s, "For a row").unit("s").above(0);
  s.value("noise", noise, "Standard deviation of a lease's time over its mean").range(0, 10);
  s.value("run_noise", run_noise,
          "Relative standard deviation of all its times, from one run to another")
      .range(0, 10);
}

void HybridCluster::Node::describe(Section& s) {
  s.value("count", count, "Nodes like this one").range(1, 1e6);
  s.value("cores", cores, "CPU cores; every GPU binds one of them").range(0, 1e5);
  s.value("gpus", gpus, "GPUs").range(0, 1e4);
  s.value("driver_s", driver_s, "Time of an iteration before the first lease")
      .unit("s")
      .range(0, 1e6);
  s.value("add_s", add_s, "To add a shard's partial to the sum of the node")
      .unit("s")
      .range(0, 1e6);
  s.section("core", core, "A core's speed");
  s.section("gpu", gpu, "A GPU's speed");
}

void HybridCluster::Job::describe(Section& s) {
  s.value("rows", rows, "Rows; every iteration computes all of them").unit("rows").range(1, 1e12);
  s.value("grain", grain, "Of a shard").unit("rows").range(1, 1e12);
  s.value("iterations", iterations, "Iterations").range(1, 1e6);
  s.value("parameter_bytes", parameter_bytes, "Bytes that an iteration publishes to each node")
      .unit("bytes")
      .range(0, 1e15);
  s.value("partial_bytes", partial_bytes, "A node's sum").unit("bytes").range(0, 1e15);
  s.value("update_s", update_s,
          "Time of an iteration that no device shares: from the sum to new parameters")
      .unit("s")
      .range(0, 1e6);
}

void HybridCluster::Network::describe(Section& s) {
  s.value("latency_s", latency_s, "Of a message between nodes").unit("s").range(0, 1e3);
  s.value("bytes_per_s", bytes_per_s, "Of a message between nodes").unit("bytes/s").above(0);
  s.value("merge", merge,
          "How parameters and sums travel: a binomial tree, or one node after another")
      .choices({"tree", "ranks"});
  s.value("add_s", add_s, "To add a node's sum to another").unit("s").range(0, 1e6);
  s.value("restart_s", restart_s, "From the loss of a node to the iteration's next begin")
      .unit("s")
      .range(0, 1e6);
}

void HybridCluster::Sharing::describe(Section& s) {
  s.value("policy", policy, "Among the devices of a node")
      .choices({"stealing", "affine", "static"});
  s.value("hysteresis", hysteresis, "Shares stay while moving them would gain less").range(0, 10);
  s.value("lease_factor", lease_factor, "A lease is over after so many times what it should take")
      .range(1, 1e6);
  s.value("min_lease_s", min_lease_s, "And not before").unit("s").range(0, 1e6);
  s.value("first_lease_s", first_lease_s, "While the speed is unknown").unit("s").range(0, 1e6);
  s.value("verify_every", verify_every, "One shard in so many is computed on two devices; 0: none")
      .range(0, 1e9);
}

void HybridCluster::Fault::describe(Section& s) {
  s.value("node", node, "From 0").range(0, 1e7);
  s.value("device", device,
          "Device of the node, from 0: its free cores, if it has any, then its GPUs")
      .range(0, 1e4);
  s.value("kind", kind, "Every shard throws, nothing goes on, or everything takes longer")
      .choices({"throw", "hang", "slow"});
  s.value("at_s", at_s, "When it begins").unit("s").range(0, 1e12);
  s.value("for_s", for_s, "How long it lasts").unit("s").above(0);
  s.value("factor", factor, "slow: times as long").range(1, 1e9);
}

void HybridCluster::describe(Section& s) {
  s.value("source", source, "Where these figures come from: shown beside every result").required();
  s.list("node", node, "Nodes");
  s.section("job", job, "What is computed");
  s.section("network", network, "Between nodes");
  s.section("sharing", sharing, "How work is shared");
  s.list("fault", fault, "Faults of devices; only the study of faults uses them");
}

std::vector<jobs::SimNode> HybridCluster::nodes(const Case& which) const {
  std::vector<jobs::SimNode> kinds, list;
  std::vector<size_t> kind_of;
  for (const Node& one : node) {
    kind_of.insert(kind_of.end(), static_cast<size_t>(one.count), kinds.size());
    kinds.push_back(jobs::make_sim_node({.cores = one.cores,
                                         .gpus = which.gpus.value_or(one.gpus),
                                         .cores_compute = which.cores_compute,
                                         .core = sim_device(one.core, "cores"),
                                         .gpu = sim_device(one.gpu, "GPU")}));
    for (const jobs::SimDevice& device : kinds.back().devices)
      user_check(device.speed.row_s > 0, "a node has {}, but row_s of [node.{}] is not given",
                 device.name, device.name == "cores" ? "core" : "gpu");
    kinds.back().driver_s = one.driver_s;
    kinds.back().add_s = one.add_s;
  }
  for (size_t i = 0; i < which.nodes; ++i) list.push_back(kinds[kind_of[i % kind_of.size()]]);
  return list;
}

size_t HybridCluster::size() const {
  size_t count = 0;
  for (const Node& one : node) count += static_cast<size_t>(one.count);
  return count;
}

jobs::SimJob HybridCluster::sim_job() const {
  return {.rows = job.rows,
          .grain = job.grain,
          .iterations = job.iterations,
          .parameter_bytes = job.parameter_bytes,
          .partial_bytes = job.partial_bytes,
          .update_s = job.update_s};
}

jobs::SimOptions HybridCluster::options(uint64_t seed) const {
  return {.scheduling = {.policy = jobs::parse_share_policy(sharing.policy),
                         .lease_factor = sharing.lease_factor,
                         .min_lease_s = sharing.min_lease_s,
                         .first_lease_s = sharing.first_lease_s,
                         .verify_every = sharing.verify_every,
                         .hysteresis = sharing.hysteresis},
          .merge = jobs::parse_merge_order(network.merge),
          .network = {network.latency_s, network.bytes_per_s},
          .merge_add_s = network.add_s,
          .restart_s = network.restart_s,
          .seed = seed};
}

std::vector<jobs::SimFault> HybridCluster::faults() const {
  std::vector<jobs::SimFault> list;
  const auto all = nodes({.nodes = size()});
  for (const Fault& one : fault) {
    const auto at = static_cast<size_t>(one.node), device = static_cast<size_t>(one.device);
    user_check(one.kind == "slow" || one.factor == Fault().factor,
               "fault.factor = {} does nothing with fault.kind = \"{}\"; leave it out", one.factor,
               one.kind);
    user_check(at < all.size(), "fault.node: there are nodes 0 to {}, not {}", all.size() - 1, at);
    user_check(device < all[at].devices.size(), "fault.device: node {} has devices 0 to {}, not {}",
               at, all[at].devices.size() - 1, device);
    list.push_back({.node = at,
                    .device = device,
                    .kind = jobs::parse_fault_kind(one.kind),
                    .at_s = one.at_s,
                    .for_s = one.for_s,
                    .factor = one.factor});
  }
  return list;
}

HybridCluster read_hybrid_cluster(const std::string& file,
                                  const std::vector<std::string>& overrides) {
  HybridCluster cluster;
  load_config([&](Section& s) { cluster.describe(s); }, file, overrides);
  user_check(!cluster.node.empty(), "{}: no [[node]]", file);
  cluster.faults();
  return cluster;
}

}  // namespace dovetail::cli
