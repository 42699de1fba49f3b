#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace dovetail {

/// The tensors of an operation: what it only reads, and what it changes in place. Either may hold
/// undefined ones.
struct Operands {
  std::vector<at::Tensor> reads = {}, changes = {};

  /// The first N of `reads`, for structured bindings: const auto [x, weight] = inputs.read<2>();
  template <size_t N>
  auto read() const {
    return [this]<size_t... I>(std::index_sequence<I...>) {
      return std::tie(reads[I]...);
    }(std::make_index_sequence<N>());
  }
};

/// Does the operation; the tensors that it makes. What it is given may lie elsewhere from one time
/// to the next, so it keeps no tensor and refers to none but these.
using OperationBody = std::function<std::vector<at::Tensor>(const Operands& inputs)>;

/// Whether a step is being recorded on this thread (plan/record/capture.h) and this is not the
/// inside of an operation.
inline bool operations_are_recorded() {
  const auto keys = c10::impl::tls_local_dispatch_key_set();
  return keys.included_.has(c10::DispatchKey::Fake) && !keys.excluded_.has(c10::DispatchKey::Fake);
}

/// While one lives, what this thread allocates is not part of the operation that is recorded or
/// run: what a collective allocates, say, and frees on a thread of its own at some time.
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

/// Memory that an operation takes where no plan has a place for it (see UnrecordedAllocations) and
/// that others still read after its end: rows on their way to other ranks. It counts towards a
/// budget by the most there is at a time.
class HeldMemory {
 public:
  explicit HeldMemory(int64_t bytes);
  ~HeldMemory();
  HeldMemory(const HeldMemory&) = delete;
  HeldMemory& operator=(const HeldMemory&) = delete;

 private:
  int64_t bytes_;
};
/// The most held at a time since the last call, in this process.
int64_t take_most_held_bytes();

/// `body` by way of the dispatcher: torch.ops.dovetail.operation, whose first argument is `name`.
std::vector<at::Tensor> dispatch_operation(const std::string& name, Operands of, OperationBody body,
                                           bool once);

/// Work on tensors that the dispatcher does not see, kernels on pointers above all, so that a
/// recorded step has it as one operator: `name`, "dovetail::attention". A plain call while nothing
/// is recorded.
///
/// A recorded step may run it again, in later steps and within one. Numbers that `body` captures
/// have to be those of every step. Through a pointer it reads what differs from step to step but
/// not within one (a step's seed), and writes what it would write again (the count of a call to
/// that call's place).
template <class Body>
std::vector<at::Tensor> operation(const char* name, Operands of, Body&& body) {
  if (!operations_are_recorded()) return body(of);
  return dispatch_operation(name, std::move(of), OperationBody(std::forward<Body>(body)),
                            /*once=*/false);
}

/// The same, but every step runs it exactly once, all of this kind in the order in which they were
/// recorded: what adds to something that the plan does not see, or that other ranks call too.
template <class Body>
std::vector<at::Tensor> operation_once(const char* name, Operands of, Body&& body) {
  if (!operations_are_recorded()) return body(of);
  return dispatch_operation(name, std::move(of), OperationBody(std::forward<Body>(body)),
                            /*once=*/true);
}

}  // namespace dovetail
