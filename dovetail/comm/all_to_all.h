#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "dovetail/comm/exchange.h"
#include "dovetail/comm/group.h"
#include "dovetail/comm/payload.h"

/// Differentiable collectives that move rows between ranks. All ranks of the group call each of
/// them together, in the same order.
///
/// There are two algorithms, linear and hierarchical; the comment of `Exchange` lists their steps
/// and bytes. An Exchange has its own algorithm. A function that takes a Group instead uses the
/// linear one, a function that takes NodeGroups the hierarchical one.
///
/// The backward of each collective is the same collective in the opposite direction. In grad mode,
/// a result with floating point rows requires grad on every rank, even if x does not. This lets
/// every rank take part in backward. For the same reason each rank's loss must depend on the
/// result, even if the rank received no rows. Backward runs the collectives in the reverse order of
/// forward. A second derivative throws (base/once_differentiable.h).
namespace dovetail::comm {

/// Number formats in which ranks send data: `forward` for the rows, `backward` for their gradients.
/// If `forward` rounds the rows, backward differentiates as if it did not.
struct Payloads {
  Payload forward = Payload::kUnchanged, backward = Payload::kUnchanged;
};

/// Rows that `start_all_to_all` has started to send. Computation between that call and `wait`
/// overlaps with the transfer. In backward, the gradient of this computation overlaps with the
/// transfer of the rows' gradients.
class PendingRows {
 public:
  struct State;
  PendingRows(c10::intrusive_ptr<State> state, at::Tensor token);
  ~PendingRows();
  PendingRows(PendingRows&&) noexcept;
  PendingRows& operator=(PendingRows&&) noexcept;

  /// Returns the received rows (rows received, ...) in the dtype of x, ordered by sending rank.
  /// Call it once.
  at::Tensor wait();

 private:
  c10::intrusive_ptr<State> state_;
  at::Tensor token_;
};

/// Starts to send the rows of x to the ranks of `exchange`. x has shape (exchange.rows_sent(),
/// ...), any dtype and strides; its rows are ordered by destination rank. Throws InternalError for
/// another number of rows.
PendingRows start_all_to_all(const at::Tensor& x, const Exchange& exchange,
                             const Payloads& payloads = {});
/// Sends the rows of x as `start_all_to_all` does, waits and returns the received rows.
at::Tensor all_to_all_v(const at::Tensor& x, const Exchange& exchange,
                        const Payloads& payloads = {});

/// All-to-all of equal parts over n ranks. x has shape (n c, ...): n parts of c rows. Rank r gets
/// part r. Returns (n c, ...), in which part r comes from rank r. Throws UserError if n does not
/// divide the rows.
at::Tensor all_to_all(const at::Tensor& x, const std::shared_ptr<Group>& group,
                      const Payloads& payloads = {});
at::Tensor all_to_all(const at::Tensor& x, const NodeGroups& nodes, const Payloads& payloads = {});

/// All-to-all with Tutel's flexible layout (arXiv 2206.03382, section 3.1). Splits dimension
/// `split_dim` over the n ranks and concatenates the received parts along `concat_dim`.
///
/// Example: x (E, C, M) holds C rows of M elements for each of E experts. `split_dim` 0 and
/// `concat_dim` 1 return (E/n, n C, M): the rows of all ranks for each of this rank's E/n experts.
/// `split_dim` 1 and `concat_dim` 0 are the inverse. Throws UserError if n does not divide
/// dimension `split_dim`, or if x has no such dimensions.
at::Tensor all_to_all_flexible(const at::Tensor& x, const std::shared_ptr<Group>& group,
                               int64_t split_dim, int64_t concat_dim,
                               const Payloads& payloads = {});
at::Tensor all_to_all_flexible(const at::Tensor& x, const NodeGroups& nodes, int64_t split_dim,
                               int64_t concat_dim, const Payloads& payloads = {});

/// Scatter from rank `root`: rank r gets the next rows[r] rows of the root's x, in rank order.
/// `rows` has an entry for each of the n ranks and is the same on every rank. The root's x is (sum
/// of rows, ...); on the others it is (0, ...) with the same row shape. Takes 1 communication step.
/// The root sends the rows of the others in n - 1 messages; all other messages are empty. The
/// backward is `gather_rows`.
at::Tensor scatter_rows(const at::Tensor& x, const std::shared_ptr<Group>& group,
                        const std::vector<int64_t>& rows, int root);

/// Gather at rank `root`: the root gets x of every rank, which has shape (rows[r], ...) on rank r.
/// `rows` is the same on every rank. Returns (sum of rows, ...) in rank order on the root and (0,
/// ...) on the others. Takes 1 communication step. Each rank sends its rows in one message; all
/// other messages are empty. The backward is `scatter_rows`.
at::Tensor gather_rows(const at::Tensor& x, const std::shared_ptr<Group>& group,
                       const std::vector<int64_t>& rows, int root);

}  // namespace dovetail::comm
