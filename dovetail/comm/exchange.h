#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "dovetail/comm/group.h"

namespace dovetail {

/// Rows that this rank sends to and receives from each rank of a group.
struct Splits {
  std::vector<int64_t> send, receive;
};

/// What each rank will get, when every rank knows what it sends: an all-to-all of one int64 for
/// each pair of ranks, 8 (n - 1) bytes a rank, and the one point of a two-phase exchange where the
/// host waits. Where all sizes follow from the shapes (a capacity) there is no need for it:
/// `even_splits`.
Splits exchange_sizes(Group& group, const std::vector<int64_t>& send);

/// `rows` in equal parts. Throws UserError when they do not divide.
Splits even_splits(int64_t rows, int ranks);

/// The two stages of a hierarchical all-to-all: the ranks of this one's node, and those with its
/// place in every node.
struct NodeGroups {
  std::shared_ptr<Group> inside, between;
};

/// Consecutive ranks of `group` as nodes of `ranks_per_node`. All ranks together. Throws UserError
/// when they do not divide.
NodeGroups split_by_node(Group& group, int ranks_per_node);

/// A planned all-to-all of rows: who sends how many to whom, and by which algorithm. It holds no
/// rows; the same one serves all tensors that go the same way, and its `reversed` those that go
/// back.
///
/// n ranks, N nodes of m, S bytes of rows on each rank, spread evenly:
///
/// algorithm     steps  messages a rank sends  bytes a rank sends between nodes  inside a node
/// linear        1      n - 1                  (n - m)/n S                       (m - 1)/n S
/// hierarchical  2      (m - 1) + (N - 1)      (N - 1)/N S                       (m - 1)/m S
///
/// Hierarchical (Tutel's 2DH, arXiv 2206.03382, section 4.3): rows are ordered by their place in
/// the node they go to and exchanged inside the node, then ordered by node and exchanged between
/// nodes. Messages between nodes are m times as large as the linear algorithm's and m times as few.
/// Both give the same bits.
class Exchange {
 public:
  Exchange(std::shared_ptr<Group> group, Splits splits);

  /// Where `send` is known but not what comes: sizes first, by the same two stages. `send` (n) in
  /// rank order.
  static Exchange hierarchical(NodeGroups nodes, const std::vector<int64_t>& send);
  /// The same without a look at sizes: `rows` in equal parts.
  static Exchange hierarchical_even(NodeGroups nodes, int64_t rows);

  Exchange reversed() const;

  int ranks() const { return static_cast<int>(splits_.send.size()); }
  const Splits& splits() const { return splits_; }  ///< in rank order, whatever the algorithm
  int64_t rows_sent() const;
  int64_t rows_received() const;

  /// Rows under way. `wait` returns them, in the order of the ranks that sent them.
  class Pending {
   public:
    Pending() = default;
    Pending(std::unique_ptr<Group::Work> work, at::Tensor rows, std::vector<int64_t> sizes,
            std::vector<size_t> order);
    at::Tensor wait();

   private:
    std::unique_ptr<Group::Work> work_;
    at::Tensor rows_;
    std::vector<int64_t> sizes_;  // of the pieces of `rows_`
    std::vector<size_t> order_;   // of the pieces in the result; empty: as they come
  };

  /// x (rows_sent, ...), contiguous, any dtype; no gradients. Hierarchical: returns when the first
  /// stage is done.
  Pending start(const at::Tensor& x) const;

 private:
  Exchange(NodeGroups nodes, Splits splits, std::vector<int64_t> middle);
  Pending start_forward(const at::Tensor& x) const;
  Pending start_backward(const at::Tensor& x) const;

  std::shared_ptr<Group> group_;  // null: hierarchical
  NodeGroups nodes_;
  Splits splits_;
  // Hierarchical: rows between the two stages, of the node's rank i for node b at i N + b. They are
  // the same on the way back, which takes the stages in the other order.
  std::vector<int64_t> middle_;
  bool reversed_ = false;
};

}  // namespace dovetail
