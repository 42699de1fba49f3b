#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <string>

namespace dovetail::plan {

/// Stands in for each operator that a function calls below autograd.
class OperationHandler {
 public:
  virtual ~OperationHandler() = default;
  /// Replaces the arguments on `stack` by the results. `keys` are the dispatch keys below this one.
  /// Operators that it calls itself do not come here.
  virtual void handle(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
                      torch::jit::Stack* stack) = 0;
};

/// Sends operators to a handler: a boxed fallback at DispatchKey::Fake. It is registered while one
/// of these lives, and acts only on the thread that is in `run`.
class Interception {
 public:
  Interception();
  ~Interception();
  Interception(const Interception&) = delete;
  Interception& operator=(const Interception&) = delete;

  /// Calls `work`, whose operators go to `handler`.
  static void run(OperationHandler& handler, const std::function<void()>& work);
};

/// "aten::mm"; for dovetail::operation (base/operation.h) the name that it was called with. `stack`
/// has its arguments.
std::string operation_name(const c10::OperatorHandle& operation, const torch::jit::Stack& stack);
bool is_own_operation(const c10::OperatorHandle& operation);

}  // namespace dovetail::plan
