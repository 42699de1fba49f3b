#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <future>
#include <memory>
#include <vector>

#include "dovetail/comm/group.h"

namespace dovetail::comm {

/// Numbers of rows that this rank sends to and receives from each rank r of a group: send[r] and
/// receive[r].
struct Splits {
  std::vector<int64_t> send, receive;
};

/// Returns the numbers of rows that this rank sends (`send`) and receives. All ranks call it
/// together. It is an all-to-all of one int64 per pair of ranks: each rank sends 8 (n - 1) bytes.
/// The host waits for these counts before the exchange of the rows can start. If every rank sends
/// equally many rows to every rank, use `even_splits` instead.
Splits exchange_sizes(Group& group, const std::vector<int64_t>& send);

/// Returns splits that send and receive `rows` rows in equal parts. Throws UserError if `ranks`
/// does not divide `rows`.
Splits even_splits(int64_t rows, int ranks);

class Stages;

/// Groups for the two stages of a hierarchical all-to-all. `inside` has the ranks of this rank's
/// node. `between` has one rank of each node: the rank with the same index within its node as this
/// rank. `stages` is the thread that runs the stages of started exchanges; only it uses the groups.
struct NodeGroups {
  std::shared_ptr<Group> inside, between;
  std::shared_ptr<Stages> stages;

  /// Returns the traffic of both groups. `waited_s` is the time in which the starting thread
  /// waited.
  Group::Traffic traffic() const;
};

/// Makes the two groups of this rank. Each `ranks_per_node` consecutive ranks of `group` count as a
/// node. All ranks call it together. Throws UserError if `ranks_per_node` does not divide the
/// ranks.
NodeGroups split_by_node(Group& group, int ranks_per_node);

/// Plan of an all-to-all of rows: row counts per rank and the algorithm. It holds no rows, so one
/// Exchange serves all tensors whose rows go to the same ranks.
///
/// Cost for n ranks in N nodes of m ranks. Each rank has S bytes of rows, spread evenly over all
/// ranks:
///
///   algorithm     steps  messages a rank sends  bytes a rank sends between nodes  inside a node
///   linear        1      n - 1                  (n - m)/n S                       (m - 1)/n S
///   hierarchical  2      (m - 1) + (N - 1)      (N - 1)/N S                       (m - 1)/m S
///
/// Hierarchical is Tutel's 2DH (arXiv 2206.03382, section 4.3). Stage 1 orders rows by their
/// destination's index within its node and exchanges them inside the node. Stage 2 orders them by
/// destination node and exchanges them between nodes. There are m times fewer messages between
/// nodes than with the linear algorithm, each m times larger. Both algorithms give the same bits.
class Exchange {
 public:
  /// Makes a linear exchange. `splits` has n entries in rank order (InternalError otherwise).
  Exchange(std::shared_ptr<Group> group, Splits splits);

  /// Makes hierarchical exchanges when only the sent counts are known. `sends` has a list of n
  /// counts, in rank order, for each exchange. The ranks exchange all counts at once, in the same
  /// two stages, so all ranks call it together.
  static std::vector<Exchange> hierarchical(const NodeGroups& nodes,
                                            const std::vector<std::vector<int64_t>>& sends);
  /// Makes a hierarchical exchange of `rows` rows in equal parts, without exchanging counts.
  static Exchange hierarchical_even(NodeGroups nodes, int64_t rows);

  /// Returns the plan for the opposite direction: each rank sends back what it received.
  Exchange reversed() const;

  int ranks() const { return static_cast<int>(splits_.send.size()); }
  /// Returns the numbers of rows sent to and received from each rank, in rank order. They are the
  /// same for both algorithms.
  const Splits& splits() const { return splits_; }
  int64_t rows_sent() const;
  int64_t rows_received() const;

  /// Rows that `start` has started to send. `wait` returns the received rows, ordered by sending
  /// rank.
  class Pending {
   public:
    Pending() = default;
    Pending(std::unique_ptr<Group::Work> work, at::Tensor rows, std::vector<int64_t> sizes,
            std::vector<size_t> order);
    Pending(std::shared_ptr<Stages> stages, std::future<at::Tensor> staged);
    at::Tensor wait();

   private:
    std::shared_ptr<Stages> stages_;  // null for a linear exchange, which uses `work_`
    std::future<at::Tensor> staged_;
    std::unique_ptr<Group::Work> work_;
    at::Tensor rows_;
    std::vector<int64_t> sizes_;  // number of rows in each piece of `rows_`
    // Element i is the index in `rows_` of the i-th piece of the result. Empty: pieces stay in the
    // order of arrival.
    std::vector<size_t> order_;
  };

  /// Starts to send the rows of x (rows_sent(), ...), contiguous, any dtype, ordered by destination
  /// rank. Autograd does not see it (`start_all_to_all` is differentiable). On the CPU it returns
  /// before other ranks have called it. The rows must not change before `wait`.
  Pending start(const at::Tensor& x) const;

 private:
  Exchange(NodeGroups nodes, Splits splits, std::vector<int64_t> middle);
  at::Tensor run_forward(const at::Tensor& x) const;
  at::Tensor run_backward(const at::Tensor& x) const;

  std::shared_ptr<Group> group_;  // null for a hierarchical exchange
  NodeGroups nodes_;
  Splits splits_;
  // Hierarchical: numbers of rows between the two stages. Element i N + b counts the rows that come
  // from rank i of this node and go to node b. The counts also hold for the opposite direction,
  // which runs the stages in reverse order.
  std::vector<int64_t> middle_;
  bool reversed_ = false;
};

}  // namespace dovetail::comm
