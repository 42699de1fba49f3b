#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dovetail/base/schema/schema.h"
#include "dovetail/jobs/simulate/cluster.h"

namespace dovetail::cli {

/// A cluster and a job for `dovetail simulate hybrid`, as a TOML file gives them.
struct HybridCluster {
  struct Device {
    double start_s = 0, row_s = 0, noise = 0, run_noise = 0;
    void describe(Section& s);
  };
  struct Node {
    int64_t count = 1, cores = 16, gpus = 1;
    Device core, gpu;
    double driver_s = 0, add_s = 0;
    void describe(Section& s);
  };
  struct Job {
    int64_t rows = 819200, grain = 1024, iterations = 10;
    double parameter_bytes = 25600, partial_bytes = 51712, update_s = 0;
    void describe(Section& s);
  };
  struct Network {
    double latency_s = 1e-4, bytes_per_s = 1.25e8, add_s = 0, restart_s = 10;
    std::string merge = "tree";
    void describe(Section& s);
  };
  struct Sharing {
    std::string policy = "stealing";
    double hysteresis = 0.02, lease_factor = 4, min_lease_s = 0.25, first_lease_s = 30;
    int64_t verify_every = 0;
    void describe(Section& s);
  };
  struct Fault {
    int64_t node = 0, device = 0;
    std::string kind = "slow";
    double at_s = 0, for_s = std::numeric_limits<double>::infinity(), factor = 2;
    void describe(Section& s);
  };

  std::string source;  ///< where its figures come from
  std::vector<Node> node;
  Job job;
  Network network;
  Sharing sharing;
  std::vector<Fault> fault;
  void describe(Section& s);

  /// A case of a study: the first `nodes` nodes, again from the first where there are fewer; other
  /// GPUs than they have, and cores that only feed them.
  struct Case {
    size_t nodes = 1;
    std::optional<int64_t> gpus = std::nullopt;
    bool cores_compute = true;
  };
  std::vector<jobs::SimNode> nodes(const Case& which) const;
  /// All nodes as they are.
  size_t size() const;
  jobs::SimJob sim_job() const;
  /// Without faults.
  jobs::SimOptions options(uint64_t seed) const;
  /// UserError for those of nodes and devices that are not there.
  std::vector<jobs::SimFault> faults() const;
};

/// From a file, then `overrides`.
HybridCluster read_hybrid_cluster(const std::string& file,
                                  const std::vector<std::string>& overrides);

}  // namespace dovetail::cli
