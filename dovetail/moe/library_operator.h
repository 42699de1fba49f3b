#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>

namespace dovetail::moe {

/// Returns the operator called `name`, which has the arguments of a function.
template <class Function>
auto find_operator(const char* name, Function*) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Function>();
}

/// Scope in which autograd records operations, also inside an operator.
class Recording {
 public:
  Recording() : keys_(without_exclusion()), mode_(true) {}

 private:
  static c10::impl::LocalDispatchKeySet without_exclusion() {
    auto keys = c10::impl::tls_local_dispatch_key_set();
    keys.excluded_ = keys.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView;
    return keys;
  }
  c10::impl::ForceDispatchKeyGuard keys_;
  at::AutoGradMode mode_;
};

}  // namespace dovetail::moe
