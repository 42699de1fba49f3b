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

/// Several nodes, each a process, that share every job. A node computes a range of its shards on
/// its own executors. It sends the sums, a few blocks of a TreeSum, to all other nodes. The total
/// has the same bits as the result of run_task. This holds for any number of nodes and any
/// boundaries between their ranges.
///
/// All nodes have all rows and make the same calls in the same order. Each node derives the next
/// parameters from the same sums by itself, so nothing else is published. A digest of the
/// parameters is compared in each job. The first job on a data set also compares a digest of its
/// first tensor. Nodes with different rows, options or arithmetic end with CommError.
///
/// Ranges follow the times that the nodes recently took for their shards, which travel with the
/// sums. Ranges are equal in the first job on a table. They move when all nodes would then finish
/// earlier by more than kHysteresis. All tasks on a table share the same ranges, which are the
/// fastest ones for the recent mix of tasks. The reason is that rows written by a task are stored
/// on the node that wrote them. They are sent to another node when ranges have moved, or when
/// `rows` asks for all.
class Nodes : public Workers {
 public:
  static constexpr double kHysteresis = 0.02;

  /// Uses the threads of this process if `executors` is null.
  Nodes(std::shared_ptr<comm::Group> group, std::shared_ptr<Runtime> executors);

  /// Throws the same error on all nodes if the task throws on one. It is UserError or CommError and
  /// names node and task. Throws CommError that names the nodes if nodes run different jobs or one
  /// of them dies. After an error, the rows that the task writes are undefined.
  Partial run(const std::string& task, const Parameters& parameters,
              const std::vector<Shard>& shards) override;
  at::Tensor rows(const ResidentData& data, size_t index) override;

  struct Report {
    int64_t rows = 0;    ///< rows that the node has computed so far
    double seconds = 0;  ///< time spent on these rows, without waiting for others
    int64_t moved = 0;   ///< rows received from other nodes, summed over all tensors
  };
  /// Returns one report per node, by rank.
  const std::vector<Report>& report() const { return reports_; }
  comm::Group& group() { return *group_; }
  Runtime* executors() { return executors_.get(); }

 private:
  /// Boundaries between nodes, in shards or rows: node r has [bounds[r], bounds[r + 1]).
  using Bounds = std::vector<int64_t>;

  /// Measured times of one task on one table.
  struct Times {
    /// Weight of the task: 1 per job of it, reduced by a tenth with each later job on the table.
    double recent = 0;
    std::vector<SpeedHistory> nodes;  ///< by node: seconds per shard
    int64_t longest = 0;              ///< bytes of the longest message in the previous job
  };
  struct Table {
    std::vector<int64_t> shares;         ///< number of shards of each node
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

  std::shared_ptr<comm::Group> group_;
  std::shared_ptr<Runtime> executors_;
  std::vector<Report> reports_;
  std::map<std::pair<int64_t, int64_t>, Table> tables_;  ///< by numbers of rows and of shards
  /// By data id and tensor index: ranges of rows whose current values only their node has.
  std::map<std::pair<int64_t, size_t>, Bounds> written_;
  std::set<int64_t> known_;  ///< ids of the data that has been compared
};

}  // namespace dovetail::jobs
