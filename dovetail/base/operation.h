#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace dovetail {

/// The tensors of an operation: what it only reads, and what it changes in place. Either may hold undefined ones.
struct Operands {
  std::vector<at::Tensor> reads = {}, changes = {};
};

/// Does the operation; the tensors that it makes. What it is given may lie elsewhere from one time to the next, so it
/// keeps no tensor and refers to none but these.
using OperationBody = std::function<std::vector<at::Tensor>(const Operands& of)>;

/// Whether a step is being recorded on this thread (plan/capture.h) and this is not the inside of an operation.
inline bool operations_are_recorded() {
  const auto keys = c10::impl::tls_local_dispatch_key_set();
  return keys.included_.has(c10::DispatchKey::Fake) && !keys.excluded_.has(c10::DispatchKey::Fake);
}

/// While one lives, what this thread allocates is not part of the operation that is recorded or run: what a collective
/// allocates, say, and frees on a thread of its own at some time.
class UnrecordedAllocations {
 public:
  UnrecordedAllocations();
  ~UnrecordedAllocations();
  UnrecordedAllocations(const UnrecordedAllocations&) = delete;
  UnrecordedAllocations& operator=(const UnrecordedAllocations&) = delete;

 private:
  bool before_;
};
bool allocations_are_recorded();

/// `body` by way of the dispatcher: torch.ops.dovetail.operation, whose first argument is `name`.
std::vector<at::Tensor> dispatch_operation(const std::string& name, Operands of, OperationBody body);

/// Work on tensors that the dispatcher does not see, kernels on pointers above all, so that a recorded step has it as
/// one operator: `name`, "dovetail::attention". A plain call while nothing is recorded.
///
/// A recorded step may run it again, in later steps and within one. Numbers that `body` captures have to be those of
/// every step; what differs from step to step it reads through a pointer, and then it changes something, since only
/// operations that change something run exactly once and in their order.
template <class Body>
std::vector<at::Tensor> operation(const char* name, Operands of, Body&& body) {
  if (!operations_are_recorded()) return body(of);
  return dispatch_operation(name, std::move(of), OperationBody(std::forward<Body>(body)));
}

}  // namespace dovetail
