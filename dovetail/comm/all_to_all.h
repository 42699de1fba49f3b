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
/// them together, in the same order. The comment of `Exchange` lists steps and bytes of the
/// algorithms.
///
/// The backward of each collective is the same collective in the opposite direction. If gradients
/// are recorded, the result of floating point rows requires grad on every rank, even if x does not.
/// This lets every rank take part in backward. For the same reason each rank's loss must depend on
/// the result, even if the rank received no rows. Backward runs the collectives in the reverse
/// order of forward. Second derivatives throw UserError.
namespace dovetail::comm {

/// Number formats on the wire: of the rows in forward and of their gradients in backward. Gradients
/// treat a rounded forward payload as exact.
struct Payloads {
  Payload forward = Payload::kUnchanged, backward = Payload::kUnchanged;
};

/// Rows in transit. Work between `start_all_to_all` and `wait` overlaps with their transfer. The
/// backward of this work overlaps with the transfer of their gradients.
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

/// Sends the rows of x (exchange.rows_sent(), ...), any dtype and strides. The rows of x are
/// ordered by destination rank. `all_to_all_v` also waits for the result.
PendingRows start_all_to_all(const at::Tensor& x, const Exchange& exchange,
                             const Payloads& payloads = {});
at::Tensor all_to_all_v(const at::Tensor& x, const Exchange& exchange,
                        const Payloads& payloads = {});

/// All-to-all of equal parts. x (n c, ...) is sent as n parts of c rows. Throws UserError if the
/// number of ranks n does not divide the rows.
at::Tensor all_to_all(const at::Tensor& x, const std::shared_ptr<Group>& group,
                      const Payloads& payloads = {});
at::Tensor all_to_all(const at::Tensor& x, const NodeGroups& nodes, const Payloads& payloads = {});

/// All-to-all with Tutel's flexible layout (arXiv 2206.03382, section 3.1). Splits dimension
/// `split_dim` over the n ranks and concatenates the received parts along `concat_dim`.
///
/// `split_dim` 0 and `concat_dim` 1 turn (E, C, M) into (E/n, n C, M): the rows of all ranks, per
/// local expert. `split_dim` 1 and `concat_dim` 0 are the inverse. Throws UserError if n does not
/// divide dimension `split_dim`.
at::Tensor all_to_all_flexible(const at::Tensor& x, const std::shared_ptr<Group>& group,
                               int64_t split_dim, int64_t concat_dim,
                               const Payloads& payloads = {});
at::Tensor all_to_all_flexible(const at::Tensor& x, const NodeGroups& nodes, int64_t split_dim,
                               int64_t concat_dim, const Payloads& payloads = {});

/// One to all: rank r gets rows[r] rows of the root's x, in order. `rows` has n entries and is the
/// same on every rank. The root's x is (sum of rows, ...); on the others it is (0, ...) with the
/// same row shape. Takes 1 communication step. The root sends the rows of the others in n - 1
/// messages; all other messages are empty. The backward is `gather_rows`.
at::Tensor scatter_rows(const at::Tensor& x, const std::shared_ptr<Group>& group,
                        const std::vector<int64_t>& rows, int root);

/// All to one: the root gets x (rows[r], ...) of every rank r. Returns (sum of rows, ...) in rank
/// order on the root and (0, ...) on the others. Takes 1 communication step. Each rank sends its
/// rows in one message; all other messages are empty. The backward is `scatter_rows`.
at::Tensor gather_rows(const at::Tensor& x, const std::shared_ptr<Group>& group,
                       const std::vector<int64_t>& rows, int root);

}  // namespace dovetail::comm
