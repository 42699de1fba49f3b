#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dovetail/base/schema/schema.h"
#include "dovetail/fit/kmeans/kmeans.h"
#include "dovetail/jobs/simulate/cluster.h"

namespace dovetail::cli {

/// Cluster and job for `dovetail simulate hybrid`, as its TOML file describes them. Each struct is
/// a section of the file, and `describe` declares its keys with their meanings and limits. Most
/// keys are explained at the members of the same name of jobs/simulate/ and SchedulerOptions. A
/// shard is a range of rows. A lease is a set of consecutive shards that a device computes
/// (jobs/scheduler.h).
struct HybridCluster {
  struct Device {
    /// Seconds to start a lease, and seconds for one row. `noise` and `run_noise` are relative
    /// standard deviations: of the times of leases, and of all times from run to run.
    double start_s = 0, row_s = 0, noise = 0, run_noise = 0;
    void describe(Section& s);
  };
  struct Node {
    /// `count` is the number of nodes like this one; the others are numbers of CPU cores and GPUs.
    int64_t count = 1, cores = 16, gpus = 1;
    Device core, gpu;
    /// `driver_s`: seconds of an iteration before the first lease. `add_s`: seconds to add a
    /// shard's result to the node's sum.
    double driver_s = 0, add_s = 0;
    void describe(Section& s);
  };
  struct Job {
    /// `grain` is the number of rows of a shard. Each iteration computes all `rows`.
    int64_t rows = 819200, grain = fit::kKMeansGrain, iterations = 10;
    /// Bytes of the parameters that go to each node, and of a node's sum. `update_s` is the seconds
    /// from the sum to new parameters.
    double parameter_bytes = 25600, partial_bytes = 51712, update_s = 0;
    void describe(Section& s);
  };
  struct Network {
    /// Speed of messages between nodes. `add_s`: seconds to add a node's sum to another.
    /// `restart_s`: seconds from the loss of a node to the next begin of the iteration.
    double latency_s = 1e-4, bytes_per_s = 1.25e8, add_s = 0, restart_s = 10;
    std::string merge = "tree";  ///< route of parameters and sums: tree | ranks (one after another)
    void describe(Section& s);
  };
  struct Sharing {
    std::string policy = "stealing";  ///< stealing | affine | static (SharePolicy)
    double hysteresis = 0.02, lease_factor = 4, min_lease_s = 0.25, first_lease_s = 30;
    int64_t verify_every = 0;
    void describe(Section& s);
  };
  struct Fault {
    /// Index of the node, and of the device in the node: first the free cores, then the GPUs.
    int64_t node = 0, device = 0;
    std::string kind = "slow";
    /// Begin and duration in seconds. "slow": work takes `factor` times as long.
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
