#pragma once

#include <ATen/record_function.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

namespace dovetail::test {

/// Makes each micro-batch of a GPT longer while it lives. It takes `owner_ms` longer on the thread
/// that made this object, and `others_ms` longer on every other thread. One object at a time.
class SlowMicroBatches {
 public:
  SlowMicroBatches(double owner_ms, double others_ms) {
    now_ = {std::this_thread::get_id(), owner_ms, others_ms};
    callback_ = at::addGlobalCallback(
        at::RecordFunctionCallback(sleep).scopes({at::RecordScope::FUNCTION}));
  }
  ~SlowMicroBatches() { at::removeCallback(callback_); }
  SlowMicroBatches(const SlowMicroBatches&) = delete;
  SlowMicroBatches& operator=(const SlowMicroBatches&) = delete;

 private:
  struct Waits {
    std::thread::id owner;
    double owner_ms, others_ms;
  };
  static inline Waits now_ = {};

  /// Waits in an operation that the loss of a micro-batch calls once.
  static std::unique_ptr<at::ObserverContext> sleep(const at::RecordFunction& function) {
    if (std::strcmp(function.name(), "aten::masked_fill") != 0) return nullptr;
    const bool owner = std::this_thread::get_id() == now_.owner;
    std::this_thread::sleep_for(
        std::chrono::duration<double, std::milli>(owner ? now_.owner_ms : now_.others_ms));
    return nullptr;
  }

  at::CallbackHandle callback_ = 0;
};

}  // namespace dovetail::test
