#include "dovetail/base/operation.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace dovetail {
namespace {

struct HeldBody : torch::CustomClassHolder {
  explicit HeldBody(OperationBody held) : body(std::move(held)) {}
  OperationBody body;
};

thread_local bool unrecorded = false;

void run(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  const auto body = c10::static_intrusive_pointer_cast<HeldBody>(torch::jit::pop(*stack).toCapsule());
  Operands of;
  of.changes = torch::jit::pop(*stack).toTensorVector();
  of.reads = torch::jit::pop(*stack).toTensorVector();
  torch::jit::drop(*stack, 1);  // the name
  torch::jit::push(*stack, body->body(of));
}

}  // namespace

UnrecordedAllocations::UnrecordedAllocations() : before_(std::exchange(unrecorded, true)) {}
UnrecordedAllocations::~UnrecordedAllocations() { unrecorded = before_; }
bool allocations_are_recorded() { return !unrecorded; }

std::vector<at::Tensor> dispatch_operation(const std::string& name, Operands of, OperationBody body) {
  static const c10::OperatorHandle handle = c10::Dispatcher::singleton().findSchemaOrThrow("dovetail::operation", "");
  torch::jit::Stack stack;
  torch::jit::push(stack, name, std::move(of.reads), std::move(of.changes),
                   c10::IValue::make_capsule(c10::make_intrusive<HeldBody>(std::move(body))));
  handle.callBoxed(stack);
  return stack.at(0).toTensorVector();
}

}  // namespace dovetail

TORCH_LIBRARY_FRAGMENT(dovetail, m) {
  m.def("operation(str name, Tensor[] reads, Tensor(a!)[] changes, Capsule body) -> Tensor[]");
  // Explicit: below autograd, and so below a recording.
  m.impl("operation", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd,
                                      torch::CppFunction::makeFromBoxedFunction<&dovetail::run>()));
}
