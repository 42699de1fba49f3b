#include "dovetail/plan/record/intercept.h"

#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <exception>
#include <mutex>
#include <optional>
#include <utility>

#include "dovetail/base/error.h"

namespace dovetail::plan {
namespace {

constexpr auto kHandled = c10::DispatchKey::Fake;

thread_local OperationHandler* handler_now = nullptr;
thread_local std::exception_ptr refusal;  // the UserError that ended a handler's work

/// Returns true for ranges that torch's profiler marks. They touch no tensor.
bool only_marks(const c10::OperatorHandle& op) {
  return op.schema().name().starts_with("profiler::");
}

void pass_to_handler(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                     torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(kHandled);
  const c10::DispatchKeySet rest =
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kHandled);
  if (handler_now == nullptr || only_marks(op)) return op.redispatchBoxed(rest, stack);
  try {
    handler_now->handle(op, rest, stack);
  } catch (const UserError&) {
    refusal = std::current_exception();
    throw;
  }
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
  check_no_planned_step_runs();
  const auto stop = [](OperationHandler** before) { handler_now = *before; };
  OperationHandler* before = std::exchange(handler_now, &handler);
  const std::unique_ptr<OperationHandler*, decltype(stop)> stopped(&before, stop);
  const c10::impl::IncludeDispatchKeyGuard here(kHandled);
  // Autograd would run a GPU's backward pass on a thread of its own, where no handler is set.
  const c10::AutogradState threads = c10::AutogradState::get_tls_state();
  const auto restore = [](const c10::AutogradState* state) {
    c10::AutogradState::set_tls_state(*state);
  };
  const std::unique_ptr<const c10::AutogradState, decltype(restore)> restored(&threads);
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  refusal = nullptr;
  try {
    work();
  } catch (...) {
    if (refusal) std::rethrow_exception(std::exchange(refusal, nullptr));
    throw;
  }
  if (refusal) std::rethrow_exception(std::exchange(refusal, nullptr));
}

void check_no_planned_step_runs() {
  user_check(handler_now == nullptr, "plan: a planned step runs within another planned step");
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
