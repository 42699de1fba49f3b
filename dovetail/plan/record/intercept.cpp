#include "dovetail/plan/record/intercept.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <mutex>
#include <optional>
#include <utility>

namespace dovetail::plan {
namespace {

constexpr auto kHandled = c10::DispatchKey::Fake;

thread_local OperationHandler* handler_now = nullptr;

void pass_to_handler(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                     torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(kHandled);
  const c10::DispatchKeySet rest =
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kHandled);
  if (handler_now == nullptr) return op.redispatchBoxed(rest, stack);
  handler_now->handle(op, rest, stack);
}

struct Registration {
  std::mutex mutex;
  int users = 0;
  std::optional<torch::Library> library;
};
Registration& registration() {
  static Registration of_process;
  return of_process;
}

}  // namespace

Interception::Interception() {
  Registration& shared = registration();
  const std::lock_guard lock(shared.mutex);
  if (shared.users++ > 0) return;
  shared.library.emplace(torch::Library::IMPL, "_", kHandled, __FILE__, __LINE__);
  shared.library->fallback(torch::CppFunction::makeFromBoxedFunction<&pass_to_handler>());
}

Interception::~Interception() {
  Registration& shared = registration();
  const std::lock_guard lock(shared.mutex);
  if (--shared.users == 0) shared.library.reset();
}

void Interception::run(OperationHandler& handler, const std::function<void()>& work) {
  const auto stop = [](OperationHandler** before) { handler_now = *before; };
  OperationHandler* before = std::exchange(handler_now, &handler);
  const std::unique_ptr<OperationHandler*, decltype(stop)> stopped(&before, stop);
  const c10::impl::IncludeDispatchKeyGuard here(kHandled);
  work();
}

bool is_own_operation(const c10::OperatorHandle& operation) {
  return operation.schema().name() == "dovetail::operation";
}

std::string operation_name(const c10::OperatorHandle& operation, const torch::jit::Stack& stack) {
  const auto& schema = operation.schema();
  return is_own_operation(operation) ? stack[stack.size() - schema.arguments().size()].toStringRef()
                                     : schema.name();
}

}  // namespace dovetail::plan
