#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

/// Operations: work that the dispatcher cannot see, such as a kernel on raw pointers, and that a
/// recorded step shall contain. A recorded step is the list of operators that one training step
/// calls (plan/record/capture.h). The memory plan, computed from this list, decides for each of
/// their tensors: keep, recompute, offload or compress. Later steps execute the recorded operators
/// as planned.
namespace dovetail {

/// Tensors that an operation accesses: `reads` are only read, `changes` are modified in place. Both
/// lists may contain undefined tensors.
struct Operands {
  std::vector<at::Tensor> reads = {}, changes = {};

  /// Returns the first N tensors of `reads`. Example: const auto [x, weight] = inputs.read<2>();
  template <size_t N>
  auto read() const {
    return [this]<size_t... I>(std::index_sequence<I...>) {
      return std::tie(reads[I]...);
    }(std::make_index_sequence<N>());
  }
};

/// Function that executes an operation on `inputs` and returns the tensors that it creates. Inputs
/// may have other addresses at each execution. Therefore the body must not keep tensors, and must
/// access only the tensors in `inputs`.
using OperationBody = std::function<std::vector<at::Tensor>(const Operands& inputs)>;

/// Returns true if this thread is recording a step (plan/record/capture.h) and is not inside an
/// operation.
inline bool operations_are_recorded() {
  const auto keys = c10::impl::tls_local_dispatch_key_set();
  return keys.included_.has(c10::DispatchKey::Fake) && !keys.excluded_.has(c10::DispatchKey::Fake);
}

/// Scope in which allocations of this thread are outside the plan. Such allocations do not count as
/// memory of the operation that is being recorded or executed. Example: a collective allocates
/// memory and frees it at some later time on its own thread.
class UnrecordedAllocations {
 public:
  UnrecordedAllocations();
  ~UnrecordedAllocations();
  UnrecordedAllocations(const UnrecordedAllocations&) = delete;
  UnrecordedAllocations& operator=(const UnrecordedAllocations&) = delete;

 private:
  bool before_;
};
/// Returns false inside an UnrecordedAllocations scope of this thread.
bool allocations_are_recorded();

/// Declares `bytes` of memory that an operation allocated outside the plan (see
/// UnrecordedAllocations). Use it for memory that is still read after the operation ends. Example:
/// rows on their way to other ranks. The memory counts until this object is destroyed. The maximum
/// that all HeldMemory objects declare at the same time counts towards the memory budget.
class HeldMemory {
 public:
  explicit HeldMemory(int64_t bytes);
  ~HeldMemory();
  HeldMemory(const HeldMemory&) = delete;
  HeldMemory& operator=(const HeldMemory&) = delete;

 private:
  int64_t bytes_;
};
/// Returns the peak of the total bytes that all HeldMemory objects of this process declare
/// together. The peak covers the time since the last call, and the next peak starts with the bytes
/// now declared.
int64_t take_peak_held_bytes();

/// Runs `body` through the dispatcher as torch.ops.dovetail.operation. The operator's first
/// argument is `name`. Callers use `operation` (once = false) or `operation_once` (true) instead.
std::vector<at::Tensor> dispatch_operation(const std::string& name, Operands of, OperationBody body,
                                           bool once);

/// Runs `body` on the tensors `of` and returns the tensors that it creates. A recorded step
/// contains the whole operation as one operator called `name`, for example "dovetail::attention".
/// If no step is being recorded, `body` is called directly.
///
/// A recorded step may run `body` several times: in later steps, and within one step (recompute).
/// Numbers captured by `body` must be valid for every step. Values that differ between steps, such
/// as the step's seed, must be read through a pointer. Such values must be constant within a step.
/// Writes through a pointer must have the same effect when repeated. For example, each call writes
/// its count to a slot of its own.
template <class Body>
std::vector<at::Tensor> operation(const char* name, Operands of, Body&& body) {
  if (!operations_are_recorded()) return body(of);
  return dispatch_operation(name, std::move(of), OperationBody(std::forward<Body>(body)),
                            /*once=*/false);
}

/// Runs `body` as `operation` does, but exactly once per step. All `operation_once` bodies of a
/// step run in the order in which they were recorded. Use it for bodies that add to state outside
/// the plan, and for collectives, which other ranks call too.
template <class Body>
std::vector<at::Tensor> operation_once(const char* name, Operands of, Body&& body) {
  if (!operations_are_recorded()) return body(of);
  return dispatch_operation(name, std::move(of), OperationBody(std::forward<Body>(body)),
                            /*once=*/true);
}

}  // namespace dovetail
