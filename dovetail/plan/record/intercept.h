#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <string>

namespace dovetail::plan {

/// Interface that is called in place of each operator that a function calls below autograd.
class OperationHandler {
 public:
  virtual ~OperationHandler() = default;
  /// Does the work of the operator: replaces the arguments on `stack` by its results. `keys` are
  /// the dispatch keys below the interception, for a redispatch. Operators that `handle` calls are
  /// not intercepted.
  virtual void handle(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
                      torch::jit::Stack* stack) = 0;
};

/// Sends operators to a handler, by a boxed fallback at DispatchKey::Fake. The fallback is
/// registered with the dispatcher while at least one Interception exists. It acts only on threads
/// inside `run`, which also runs backward passes of any device. Marks of torch's profiler are not
/// sent.
class Interception {
 public:
  Interception();
  ~Interception();
  Interception(const Interception&) = delete;
  Interception& operator=(const Interception&) = delete;

  /// Calls `work` and sends the operators that it calls to `handler`. Throws the UserError that the
  /// handler threw, also if `work` throws another exception in its place or goes on.
  static void run(OperationHandler& handler, const std::function<void()>& work);
};

/// Throws UserError if the calling thread is inside `Interception::run`.
void check_no_planned_step_runs();

/// Returns the name of an operator. Example: "aten::mm". For dovetail::operation
/// (base/operation.h), this is the name that its caller passed. `stack` has the operator's
/// arguments.
std::string operation_name(const c10::OperatorHandle& operation, const torch::jit::Stack& stack);
/// Returns true if the operator is dovetail::operation, which wraps work that the dispatcher cannot
/// see.
bool is_own_operation(const c10::OperatorHandle& operation);

}  // namespace dovetail::plan
