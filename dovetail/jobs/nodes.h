#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/comm/group.h"
#include "dovetail/jobs/runtime.h"
#include "dovetail/jobs/speed.h"
#include "dovetail/jobs/workers.h"

namespace dovetail::jobs {

/// Several nodes, each a process, that share every job: a node computes a range of its shards, on
/// executors of its own, and sends what they add up to, a few blocks of a TreeSum, to all others.
/// The sum is the same bits as run_task gives, for any number of nodes and wherever their ranges
/// meet.
///
/// All nodes have all rows and make the same calls in the same order; each makes the next
/// parameters of the same sums by itself, so nothing else is published. Parameters, and the first
/// tensor of data with the first job on it, are compared by a digest: nodes with other rows,
/// options or arithmetic end with an error.
///
/// Ranges follow the times that nodes took for their shards of late, exchanged with the sums: they
/// are equal in the first job on a table, and move when all would then be done sooner by more than
/// kHysteresis. All tasks on a table have one range, that by which what ran on it of late would
/// have been done the soonest, since rows that tasks write lie on the node that wrote them, and go
/// to another one when ranges have moved, or when `rows` asks for all.
class Nodes : public Workers {
 public:
  static constexpr double kHysteresis = 0.02;

  /// Without executors a node has this process' threads.
  Nodes(std::shared_ptr<Group> group, std::shared_ptr<Runtime> executors);

  /// Where a task throws on a node all throw the same, UserError or CommError, and name it;
  /// CommError that names them where nodes differ or one dies. Rows that the task writes are then
  /// spent.
  Partial run(const std::string& task, const Parameters& parameters,
              const std::vector<Shard>& shards) override;
  at::Tensor rows(const ResidentData& data, size_t index) override;

  struct Report {
    int64_t rows = 0;    ///< that the node computed so far
    double seconds = 0;  ///< that it took for them, without waiting for others
    int64_t moved = 0;   ///< rows that it got from others, of all tensors
  };
  /// Of each node.
  const std::vector<Report>& report() const { return reports_; }
  Group& group() { return *group_; }
  Runtime* executors() { return executors_.get(); }

 private:
  /// Node r has [bounds[r], bounds[r + 1]).
  using Bounds = std::vector<int64_t>;

  /// A task on a table.
  struct Times {
    double recent = 0;  ///< how often it ran, a job less by a tenth with each later one
    std::vector<SpeedHistory> nodes;  ///< of each: seconds of a shard
    int64_t longest = 0;              ///< bytes of what a node told the last time
  };
  struct Table {
    std::vector<int64_t> shares;         ///< of each node: shards
    std::map<std::string, Times> times;  ///< by job_key
  };

  class Comparison;
  Comparison compare(const std::string& task, const std::string& key, const Parameters& parameters,
                     const Shard& all, int64_t shards);
  Bounds bounds_for(Table& table, int64_t shards) const;
  std::string compute(const std::string& task, const Parameters& parameters,
                      const std::vector<Shard>& shards, const Bounds& bounds);
  Partial merge(const std::string& task, Times& times, const Bounds& bounds,
                const std::vector<std::string>& sent);
  void move_rows(const Shard& all, size_t index, const Bounds& from,
                 const std::vector<std::pair<int64_t, int64_t>>& to);
  void bring_rows(const Shard& all, const Bounds& bounds, Comparison& same);

  std::shared_ptr<Group> group_;
  std::shared_ptr<Runtime> executors_;
  std::vector<Report> reports_;
  std::map<std::pair<int64_t, int64_t>, Table> tables_;  ///< by rows and shards
  std::map<std::pair<int64_t, size_t>, Bounds>
      written_;              ///< by data and tensor: rows that only their node has
  std::set<int64_t> known_;  ///< data that was compared
};

}  // namespace dovetail::jobs
