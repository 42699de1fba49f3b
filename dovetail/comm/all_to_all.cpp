#include "dovetail/comm/all_to_all.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/once_differentiable.h"
#include "dovetail/base/operation.h"

namespace dovetail::comm {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Transfer of encoded rows, with the data needed to decode them. `planned`: x and the received
/// rows are stored where and only as long as a memory plan says. The rows in transit then need
/// memory outside the plan.
class Transfer {
 public:
  Transfer(const at::Tensor& x, const Exchange& exchange, Payload payload, bool planned)
      : payload_(payload), width_(x.size(-1)), dtype_(x.scalar_type()), planned_(planned) {
    const UnrecordedAllocations of_the_group;
    at::Tensor message = encode(x, payload);
    if (planned && message.is_alias_of(x)) message = message.clone();
    const int64_t row_bytes = message.stride(0) * static_cast<int64_t>(message.element_size());
    held_.emplace(row_bytes * (exchange.rows_sent() + exchange.rows_received()));
    pending_ = exchange.start(message);
  }

  at::Tensor wait() {
    const at::Tensor message = arrived();
    const at::Tensor rows = decode(message, payload_, width_, dtype_);
    return planned_ && rows.is_alias_of(message) ? rows.clone() : rows;
  }

 private:
  at::Tensor arrived() {
    const UnrecordedAllocations of_the_group;
    return pending_.wait();
  }

  Payload payload_;
  int64_t width_;
  at::ScalarType dtype_;
  bool planned_;
  std::optional<HeldMemory> held_;
  Exchange::Pending pending_;
};

struct PendingRows::State : torch::CustomClassHolder {
  State(const Exchange& exchange, const Payloads& payloads)
      : exchange(exchange), payloads(payloads) {}
  Exchange exchange;
  Payloads payloads;
  std::unique_ptr<Transfer> forward, backward;
};

namespace {

using State = PendingRows::State;
using Way = std::unique_ptr<Transfer> State::*;  ///< forward or backward

void start(const c10::intrusive_ptr<State>& state, Way way, const at::Tensor& x,
           const Exchange& exchange, Payload payload) {
  operation_once(
      "dovetail::all_to_all_start", {.reads = {x}},
      [state, way, exchange, payload, planned = operations_are_recorded()](const Operands& inputs) {
        (*state).*way = std::make_unique<Transfer>(inputs.reads[0], exchange, payload, planned);
        return std::vector<at::Tensor>();
      });
}

at::Tensor wait_for(const c10::intrusive_ptr<State>& state, Way way) {
  return operation_once("dovetail::all_to_all_wait", {}, [state, way](const Operands&) {
    return std::vector{std::exchange((*state).*way, nullptr)->wait()};
  })[0];
}

c10::intrusive_ptr<State> state_of(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<State>(context->saved_data["state"].toCapsule());
}

/// Gradients come from other ranks. So they have a refused second derivative on every rank, even if
/// this rank's part of them is a constant.
variable_list exchange_once(const at::Tensor& gradient,
                            const std::function<variable_list()>& exchange) {
  variable_list depends_on = {gradient};
  if (at::GradMode::is_enabled())
    depends_on.push_back(at::empty({0}, gradient.options()).set_requires_grad(true));
  return differentiate_once({"all_to_all", "compute on one rank what needs one"}, depends_on,
                            exchange);
}

/// Start and end of a transfer as autograd functions, connected by a tensor without elements.
/// Backward first reaches the end, which starts to send the gradients. It reaches the start last,
/// which waits for them.
class TransferStart : public torch::autograd::Function<TransferStart> {
 public:
  /// `anchor` requires grad, so that the graph exists even if x does not require grad.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& anchor,
                            const c10::intrusive_ptr<State>& state) {
    context->saved_data["state"] = c10::IValue::make_capsule(state);
    start(state, &State::forward, x, state->exchange, state->payloads.forward);
    return at::empty({0}, x.options());
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    variable_list out = exchange_once(
        gradients[0], [&] { return variable_list{wait_for(state_of(context), &State::backward)}; });
    if (!context->needs_input_grad(0)) out[0] = at::Tensor();
    out.resize(3);
    return out;
  }
};

class TransferEnd : public torch::autograd::Function<TransferEnd> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& token,
                            const c10::intrusive_ptr<State>& state) {
    context->saved_data["state"] = c10::IValue::make_capsule(state);
    return wait_for(state, &State::forward);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    variable_list out = exchange_once(gradients[0], [&] {
      const auto state = state_of(context);
      start(state, &State::backward, gradients[0], state->exchange.reversed(),
            state->payloads.backward);
      return variable_list{at::empty({0}, gradients[0].options())};
    });
    out.resize(2);
    return out;
  }
};

void check_rows(const at::Tensor& x, const Exchange& exchange) {
  DOVETAIL_CHECK(x.dim() >= 1 && x.size(0) == exchange.rows_sent(),
                 "a tensor of {} rows for {} to send", x.dim() == 0 ? 0 : x.size(0),
                 exchange.rows_sent());
}

Exchange even(const std::shared_ptr<Group>& group, int64_t rows) {
  return {group, even_splits(rows, group->size())};
}
Exchange even(const NodeGroups& nodes, int64_t rows) {
  return Exchange::hierarchical_even(nodes, rows);
}
int ranks_of(const std::shared_ptr<Group>& group) { return group->size(); }
int ranks_of(const NodeGroups& nodes) { return nodes.inside->size() * nodes.between->size(); }

template <class Ranks>
at::Tensor flexible(const at::Tensor& x, const Ranks& ranks, int64_t split_dim, int64_t concat_dim,
                    const Payloads& payloads) {
  const int64_t n = ranks_of(ranks);
  user_check(x.dim() >= 2 && split_dim >= 0 && concat_dim >= 0 && split_dim < x.dim() &&
                 concat_dim < x.dim(),
             "all_to_all: no dimensions {} and {} in a tensor of {}", split_dim, concat_dim,
             x.dim());
  user_check(x.size(split_dim) % n == 0,
             "all_to_all: dimension {} of size {} does not divide over {} ranks", split_dim,
             x.size(split_dim), n);
  const auto parts = x.unflatten(split_dim, {n, x.size(split_dim) / n}).movedim(split_dim, 0);
  const int64_t width = parts.size(-1);
  const auto rows = parts.reshape({parts.numel() / std::max<int64_t>(width, 1), width});
  const auto received = all_to_all_v(rows, even(ranks, rows.size(0)), payloads).view(parts.sizes());
  return received.movedim(0, concat_dim).flatten(concat_dim, concat_dim + 1);
}

/// Row counts of a scatter: only the root sends rows.
Splits from_root(const Group& group, const std::vector<int64_t>& rows, int root) {
  const auto size = static_cast<size_t>(group.size());
  DOVETAIL_CHECK(rows.size() == size && root >= 0 && root < group.size(),
                 "{} sizes and root {} for {} ranks", rows.size(), root, size);
  Splits splits{std::vector<int64_t>(size, 0), std::vector<int64_t>(size, 0)};
  if (group.rank() == root) splits.send = rows;
  splits.receive[static_cast<size_t>(root)] = rows[static_cast<size_t>(group.rank())];
  return splits;
}

}  // namespace

PendingRows::PendingRows(c10::intrusive_ptr<State> state, at::Tensor token)
    : state_(std::move(state)), token_(std::move(token)) {}
PendingRows::~PendingRows() = default;
PendingRows::PendingRows(PendingRows&&) noexcept = default;
PendingRows& PendingRows::operator=(PendingRows&&) noexcept = default;

at::Tensor PendingRows::wait() {
  DOVETAIL_CHECK(state_ && state_->forward, "rows that are not under way");
  return token_.defined() ? TransferEnd::apply(token_, state_) : wait_for(state_, &State::forward);
}

PendingRows start_all_to_all(const at::Tensor& x, const Exchange& exchange,
                             const Payloads& payloads) {
  check_rows(x, exchange);
  auto state = c10::make_intrusive<State>(exchange, payloads);
  if (at::GradMode::is_enabled() && x.is_floating_point()) {
    const auto anchor = at::empty({0}, x.options()).set_requires_grad(true);
    auto token = TransferStart::apply(x, anchor, state);
    return {std::move(state), std::move(token)};
  }
  start(state, &State::forward, x, exchange, payloads.forward);
  return {std::move(state), at::Tensor()};
}

at::Tensor all_to_all_v(const at::Tensor& x, const Exchange& exchange, const Payloads& payloads) {
  return start_all_to_all(x, exchange, payloads).wait();
}

at::Tensor all_to_all(const at::Tensor& x, const std::shared_ptr<Group>& group,
                      const Payloads& payloads) {
  return all_to_all_v(x, even(group, x.size(0)), payloads);
}
at::Tensor all_to_all(const at::Tensor& x, const NodeGroups& nodes, const Payloads& payloads) {
  return all_to_all_v(x, even(nodes, x.size(0)), payloads);
}

at::Tensor all_to_all_flexible(const at::Tensor& x, const std::shared_ptr<Group>& group,
                               int64_t split_dim, int64_t concat_dim, const Payloads& payloads) {
  return flexible(x, group, split_dim, concat_dim, payloads);
}
at::Tensor all_to_all_flexible(const at::Tensor& x, const NodeGroups& nodes, int64_t split_dim,
                               int64_t concat_dim, const Payloads& payloads) {
  return flexible(x, nodes, split_dim, concat_dim, payloads);
}

at::Tensor scatter_rows(const at::Tensor& x, const std::shared_ptr<Group>& group,
                        const std::vector<int64_t>& rows, int root) {
  return all_to_all_v(x, Exchange(group, from_root(*group, rows, root)));
}

at::Tensor gather_rows(const at::Tensor& x, const std::shared_ptr<Group>& group,
                       const std::vector<int64_t>& rows, int root) {
  return all_to_all_v(x, Exchange(group, from_root(*group, rows, root)).reversed());
}

}  // namespace dovetail::comm
