#include "dovetail/base/operation.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>

namespace dovetail {
namespace {

struct HeldBody : torch::CustomClassHolder {
  explicit HeldBody(OperationBody held) : body(std::move(held)) {}
  OperationBody body;
};

thread_local bool unrecorded = false;

struct Held {
  std::mutex mutex;
  int64_t bytes = 0, most = 0;
};
Held& held() {
  static Held of_process;
  return of_process;
}

void run(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  const auto body =
      c10::static_intrusive_pointer_cast<HeldBody>(torch::jit::pop(*stack).toCapsule());
  torch::jit::drop(*stack, 1);  // argument `once`: only the recording reads it
  Operands of;
  of.changes = torch::jit::pop(*stack).toTensorVector();
  of.reads = torch::jit::pop(*stack).toTensorVector();
  torch::jit::drop(*stack, 1);  // argument `name`
  torch::jit::push(*stack, body->body(of));
}

}  // namespace

UnrecordedAllocations::UnrecordedAllocations() : before_(std::exchange(unrecorded, true)) {}
UnrecordedAllocations::~UnrecordedAllocations() { unrecorded = before_; }
bool allocations_are_recorded() { return !unrecorded; }

HeldMemory::HeldMemory(int64_t bytes) : bytes_(bytes) {
  const std::lock_guard lock(held().mutex);
  held().most = std::max(held().most, held().bytes += bytes_);
}
HeldMemory::~HeldMemory() {
  const std::lock_guard lock(held().mutex);
  held().bytes -= bytes_;
}
int64_t take_peak_held_bytes() {
  const std::lock_guard lock(held().mutex);
  return std::exchange(held().most, held().bytes);
}

std::vector<at::Tensor> dispatch_operation(const std::string& name, Operands of, OperationBody body,
                                           bool once) {
  static const c10::OperatorHandle handle =
      c10::Dispatcher::singleton().findSchemaOrThrow("dovetail::operation", "");
  torch::jit::Stack stack;
  torch::jit::push(stack, name, std::move(of.reads), std::move(of.changes), once,
                   c10::IValue::make_capsule(c10::make_intrusive<HeldBody>(std::move(body))));
  handle.callBoxed(stack);
  return stack.at(0).toTensorVector();
}

}  // namespace dovetail

TORCH_LIBRARY_FRAGMENT(dovetail, m) {
  m.def(
      "operation(str name, Tensor[] reads, Tensor(a!)[] changes, bool once, Capsule body) -> "
      "Tensor[]");
  // CompositeExplicitAutograd runs below autograd, and therefore below a recording.
  m.impl("operation", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd,
                                      torch::CppFunction::makeFromBoxedFunction<&dovetail::run>()));
}
