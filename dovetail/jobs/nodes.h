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

/// Several nodes that compute each job together. A node is a process, usually one per machine. A
/// job is one call of `run`: a task, its parameters and a list of shards (ranges of rows). Each
/// node computes a range of the shards on its own executors (jobs/runtime.h). It sends the sums, a
/// few blocks of a TreeSum, to all other nodes. The total has the same bits as the result of
/// run_task. It depends neither on the number of nodes nor on the boundaries between their ranges.
///
/// All nodes hold all rows and make the same calls in the same order. Each node computes the next
/// parameters from the same sums, so parameters are not sent. Instead, the nodes compare a digest
/// of the parameters in each job. In the first job on a ResidentData, they also compare a digest of
/// its first tensor. `run` throws CommError if the digests differ. In that case the nodes have
/// different rows, options or arithmetic.
///
/// In this header, a table means all ResidentData with the same numbers of rows and shards. In the
/// first job on a table, the ranges of all nodes have equal length. Later ranges follow the recent
/// times of the nodes, which are sent with the sums. Ranges change if that shortens the predicted
/// time of a job by more than kHysteresis. All tasks on a table use the same ranges: the predicted
/// fastest ones for the recent mix of tasks. Common ranges avoid transfers of rows. A row that a
/// task writes is updated only on the node that computed it. It is sent to another node only after
/// the ranges changed, or when `rows` is called.
class Nodes : public Workers {
 public:
  /// Minimum saving for a change of ranges, as a fraction of the predicted time with the new
  /// ranges.
  static constexpr double kHysteresis = 0.02;

  /// Each rank of `group` is a node. If `executors` is null, this node computes with run_task on
  /// the threads of its process.
  Nodes(std::shared_ptr<comm::Group> group, std::shared_ptr<Runtime> executors);

  /// Returns the sum of the task's partials over all shards, on every node. All nodes call it
  /// together. If the task throws on one node, all nodes throw an error that names node and task.
  /// The nodes throw UserError if the task threw UserError, otherwise CommError. If nodes run
  /// different jobs or a node dies, throws a CommError that names these nodes. After an error, the
  /// rows that the task writes are undefined.
  Partial run(const std::string& task, const Parameters& parameters, const Shards& shards) override;
  /// Returns tensor `index` of the data with all rows up to date. Nodes send each other the rows
  /// that they have written. All nodes call it together.
  at::Tensor rows(const ResidentData& data, size_t index) override;

  /// Work of one node so far.
  struct Report {
    int64_t rows = 0;    ///< rows that the node computed, summed over all jobs
    double seconds = 0;  ///< seconds spent on these rows, without waiting for other nodes
    int64_t moved = 0;   ///< rows received from other nodes, summed over all tensors
  };
  /// Returns one report per node, by rank.
  const std::vector<Report>& report() const { return reports_; }
  comm::Group& group() { return *group_; }
  /// Returns the executors of this node; null if it uses the threads of its process.
  Runtime* executors() { return executors_.get(); }

 private:
  /// Ranges of all nodes, in shards or in rows. The range of node r is [bounds[r], bounds[r + 1]).
  using Bounds = std::vector<int64_t>;

  /// Measured times of one task on one table.
  struct Times {
    /// Weight of the task for choosing ranges. Each job on the table multiplies the weights of all
    /// tasks by 0.9. It then adds 1 to the weight of its own task.
    double recent = 0;
    std::vector<SpeedHistory> nodes;  ///< measured seconds per shard, one history per node
    int64_t longest = 0;  ///< bytes of the longest message between nodes in the previous job
  };
  /// State of one table: all data with the same numbers of rows and shards.
  struct Table {
    std::vector<int64_t> shares;         ///< number of shards of each node
    std::map<std::string, Times> times;  ///< measured times; the key is job_key
  };

  class Comparison;
  Comparison compare(const std::string& task, const std::string& key, const Parameters& parameters,
                     const Shards& shards);
  Bounds bounds_for(Table& table, int64_t shards) const;
  std::string compute(const std::string& task, const Parameters& parameters, const Shards& shards,
                      const Bounds& bounds);
  Partial merge(const std::string& task, Times& times, const Bounds& bounds,
                const std::vector<std::string>& sent);
  void move_rows(const Shards& all, size_t index, const Bounds& from,
                 const std::vector<std::pair<int64_t, int64_t>>& to);
  void bring_rows(const Shards& all, const Bounds& bounds, Comparison& same);

  std::shared_ptr<comm::Group> group_;
  std::shared_ptr<Runtime> executors_;
  std::vector<Report> reports_;
  std::map<std::pair<int64_t, int64_t>, Table> tables_;  ///< key: numbers of rows and of shards
  /// Tensors that tasks have written. The key is ResidentData::id and the tensor's index. The value
  /// holds one range of rows per node: only node r has the current values of range r.
  std::map<std::pair<int64_t, size_t>, Bounds> written_;
  std::set<int64_t> known_;  ///< ResidentData::id of data whose digests were already compared
};

}  // namespace dovetail::jobs
