#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "dovetail/comm/exchange.h"
#include "dovetail/comm/group.h"
#include "dovetail/comm/payload.h"

/// Differentiable collectives that move rows between ranks. All ranks of the group call each
/// together and in the same order; steps and bytes of the algorithms are at `Exchange`.
///
/// The backward of each is the same collective the other way round. Where gradients are recorded
/// the result of floating point rows requires grad on every rank, also where x does not, so that
/// every rank takes part in backward; for the same reason each rank's loss must depend on the
/// result, also where it has no rows. Backward runs them in the reverse order of forward. Second
/// derivatives are refused with UserError.
namespace dovetail {

/// How rows travel: forward, and their gradients backward (through a rounded forward payload as if
/// it were exact).
struct Payloads {
  Payload forward = Payload::kUnchanged, backward = Payload::kUnchanged;
};

/// Rows under way in both directions: what is computed between `start_all_to_all` and `wait`
/// overlaps with them, and so does its backward with their gradients.
class PendingRows {
 public:
  struct State;
  PendingRows(c10::intrusive_ptr<State> state, at::Tensor token);
  ~PendingRows();
  PendingRows(PendingRows&&) noexcept;
  PendingRows& operator=(PendingRows&&) noexcept;

  at::Tensor wait();  ///< (rows received, ...) as x, in the order of the ranks that sent them; once

 private:
  c10::intrusive_ptr<State> state_;
  at::Tensor token_;
};

/// x (exchange.rows_sent(), ...), any dtype and strides; its rows in the order of the ranks they go
/// to.
PendingRows start_all_to_all(const at::Tensor& x, const Exchange& exchange,
                             const Payloads& payloads = {});
at::Tensor all_to_all_v(const at::Tensor& x, const Exchange& exchange,
                        const Payloads& payloads = {});

/// The uniform one: x (n c, ...) in n equal parts. Throws UserError when its rows do not divide.
at::Tensor all_to_all(const at::Tensor& x, const std::shared_ptr<Group>& group,
                      const Payloads& payloads = {});
at::Tensor all_to_all(const at::Tensor& x, const NodeGroups& nodes, const Payloads& payloads = {});

/// The flexible one of Tutel (arXiv 2206.03382, section 3.1): splits dimension `split_dim` over the
/// ranks and puts what comes from them side by side along `concat_dim`. (E, C, M) with 0, 1 becomes
/// (E/n, n C, M): of each local expert the rows of all ranks together; with 1, 0 it is the way
/// back. Throws UserError when dimension `split_dim` does not divide.
at::Tensor all_to_all_flexible(const at::Tensor& x, const std::shared_ptr<Group>& group,
                               int64_t split_dim, int64_t concat_dim,
                               const Payloads& payloads = {});
at::Tensor all_to_all_flexible(const at::Tensor& x, const NodeGroups& nodes, int64_t split_dim,
                               int64_t concat_dim, const Payloads& payloads = {});

/// One to all: rank r gets rows[r] rows of the root's x, in order. `rows` (n) is the same on every
/// rank; x (sum of rows, ...) on the root, (0, ...) with the same row on the others. Steps 1; the
/// root sends the rows of the others in n - 1 messages, all other messages are empty. Backward:
/// `gather_rows`.
at::Tensor scatter_rows(const at::Tensor& x, const std::shared_ptr<Group>& group,
                        const std::vector<int64_t>& rows, int root);

/// All to one: the root gets x (rows[r], ...) of every rank r, in rank order: (sum of rows, ...),
/// the others (0, ...). Steps 1; each rank sends its rows in one message, all other messages are
/// empty. Backward: `scatter_rows`.
at::Tensor gather_rows(const at::Tensor& x, const std::shared_ptr<Group>& group,
                       const std::vector<int64_t>& rows, int root);

}  // namespace dovetail
