#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dovetail/base/schema/schema.h"
#include "dovetail/jobs/simulate/cluster.h"

namespace dovetail::cli {

/// Cluster and job for `dovetail simulate hybrid`, as its TOML file describes them. Each struct is
/// a section of the file, and `describe` declares its keys with their meanings and limits. Most
/// keys are explained at the members of the same name in jobs/simulate/ and in SchedulerOptions.
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

  std::string source;  ///< origin of the figures, shown with results
  std::vector<Node> node;
  Job job;
  Network network;
  Sharing sharing;
  std::vector<Fault> fault;
  void describe(Section& s);

  /// Variant of the cluster for a study. It has the first `nodes` nodes of the cluster. If the
  /// cluster has fewer nodes, its list of nodes is repeated. `gpus` replaces the number of GPUs per
  /// node, if it is set. If `cores_compute` is false, CPU cores only feed GPUs.
  struct Case {
    size_t nodes = 1;
    std::optional<int64_t> gpus = std::nullopt;
    bool cores_compute = true;
  };
  /// Returns the simulated nodes of a variant. Throws UserError if a device that computes has no
  /// row_s.
  std::vector<jobs::SimNode> nodes(const Case& which) const;
  /// Returns the number of nodes in the cluster.
  size_t size() const;
  /// Returns section `job` as input of jobs::simulate.
  jobs::SimJob sim_job() const;
  /// Returns sections `network` and `sharing` as options of jobs::simulate, without faults.
  jobs::SimOptions options(uint64_t seed) const;
  /// Returns the faults of the file. Throws UserError if a fault names a node or device that does
  /// not exist, or has a `factor` but is not of kind "slow".
  std::vector<jobs::SimFault> faults() const;
};

/// Reads a cluster from a TOML file, then applies `overrides`, each a key=value. Throws UserError
/// for wrong values.
HybridCluster read_hybrid_cluster(const std::string& file,
                                  const std::vector<std::string>& overrides);

}  // namespace dovetail::cli
