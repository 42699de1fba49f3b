#include "dovetail/plan/run/guide.h"

#include <fmt/format.h>

#include <string>

#include "dovetail/base/error.h"
#include "dovetail/plan/device/fingerprint.h"
#include "dovetail/plan/device/step_device.h"
#include "dovetail/plan/model/index_list.h"
#include "dovetail/plan/record/argument_values.h"

namespace dovetail::plan {
namespace {

constexpr const char* kSameOperations =
    "a planned step calls the same operators on the same shapes each time. Choose by numbers "
    "(torch::where, a factor of 0) in place of branches, or train without a plan";

std::string described(const CapturedOperation& operation) {
  return operation.layer.empty() ? operation.name : operation.name + " in " + operation.layer;
}

/// Replaces the arguments on the stack by results. `made` has the tensors of
/// CapturedOperation::makes; all other results are undefined tensors.
void put_results(const CapturedOperation& operation, const std::vector<at::Tensor>& made,
                 torch::jit::Stack& stack) {
  torch::jit::drop(stack, operation.handle.schema().arguments().size());
  std::vector<at::Tensor> results(operation.handle.schema().returns().size());
  for (size_t i = 0; i < made.size(); ++i) results[operation.makes_result[i]] = made[i];
  for (at::Tensor& result : results) stack.emplace_back(std::move(result));
}

[[noreturn]] void differs(const CapturedOperation& operation, const std::string& what) {
  throw UserError(fmt::format("plan: the step differs from the recorded one at {}: {}",
                              described(operation), what),
                  kSameOperations);
}

}  // namespace

void Guide::run(const std::function<void()>& work, const CallChecks& checks) {
  release_held();
  checks_ = checks;
  storages_ = {};
  next_ = 0;
  for (size_t s = 0; s < step_.storages.size(); ++s)
    if (step_.storages[s].external.defined())
      storages_.add(step_.storages[s].external, static_cast<int>(s));
  try {
    Interception::run(*this, work);
    if (next_ < step_.calls.size())
      throw UserError(fmt::format("plan: the step ends where the recorded one calls {}",
                                  step_.calls[next_].handle.schema().name()),
                      kSameOperations);
  } catch (...) {
    hold_all();
    throw;
  }
}

void Guide::hold_all() {
  drop_gradients(step_, storages_);
  for (const auto& [index, storage] : storages_.held())
    if (!step_.storages[index].external.defined() && !step_.storages[index].elsewhere &&
        storage.use_count() > 0)
      held_.push_back(storage);
}

void Guide::handle(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                   torch::jit::Stack* stack) {
  const std::string name = operation_name(op, *stack);
  if (next_ == step_.calls.size())
    throw UserError(fmt::format("plan: the step calls {} where the recorded one ends", name),
                    kSameOperations);
  const CapturedCall& call = step_.calls[next_];
  if (call.handle != op || (call.operation >= 0 && step_.operations[call.operation].name != name))
    throw UserError(
        fmt::format("plan: the step calls {} where the recorded one calls {} (call {})", name,
                    call.operation < 0 ? call.handle.schema().name()
                                       : described(step_.operations[call.operation]),
                    next_),
        kSameOperations);
  ++next_;
  if (call.given >= 0) {
    const at::Tensor& made = stack->back().toTensor();
    if (storages_.find(made) < 0) storages_.add(made, call.given);
    step_.storages[call.given].external = made.detach();
  }
  if (call.operation < 0) return op.redispatchBoxed(keys, stack);
  CapturedOperation& operation = step_.operations[call.operation];
  const Storages found = take_arguments(operation, *stack);
  memory_.reach(call.operation);
  for (const auto& [index, storage] : found)
    if (std::byte* address = memory_.address_of(index);
        address != nullptr && address != storage.data())
      storage.set_data_ptr_noswap(c10::DataPtr(address, step_.device));
  run_operation(operation, found, [&] {
    if (const auto made = memory_.run_instead(call.operation)) {
      put_results(operation, *made, *stack);
      return;
    }
    const std::vector<PlannedPlace> places = memory_.places_of(call.operation);
    const PlannedAllocations planned(operation.name, places, step_.device.type());
    op.redispatchBoxed(keys, stack);
  });
  take_results(operation, *stack);
  memory_.leave(call.operation);
}

Guide::Storages Guide::take_arguments(CapturedOperation& operation,
                                      const torch::jit::Stack& stack) {
  Storages found;
  const auto& arguments = operation.handle.schema().arguments();
  const size_t first = stack.size() - arguments.size();
  for (size_t i = 0; i < arguments.size(); ++i) {
    CapturedArgument& recorded = operation.arguments[i];
    CapturedArgument given = captured_argument(stack[first + i], [&](const at::Tensor& tensor) {
      if (!tensor.defined() || is_number_as_tensor(tensor)) return TensorUse{};
      const int index = storages_.find(tensor);
      if (index < 0)
        differs(operation, fmt::format("\"{}\" is a tensor that the recorded step did not have",
                                       arguments[i].name()));
      found.emplace_back(index, tensor.storage());
      return use_of(tensor, index);
    });
    if (given.kind != recorded.kind || given.uses != recorded.uses)
      differs(operation,
              fmt::format("argument \"{}\" has another shape or storage", arguments[i].name()));
    if (same_value(given.value, recorded.value)) {
      if (!checks_.same_numbers)
        recorded.value = std::move(given.value);  // also the body of an operation
      continue;
    }
    const std::string change =
        fmt::format("argument \"{}\" is {}, and was {} when it was recorded", arguments[i].name(),
                    text_of(given.value), text_of(recorded.value));
    if (!is_number(given.value) || !is_number(recorded.value)) differs(operation, change);
    if (checks_.same_numbers)
      throw UserError(fmt::format("plan: {}: {}; steps since then ran with the recorded number",
                                  described(operation), change),
                      "let each step call its function (PlannedStep::Options::replay), or give the "
                      "number as a tensor");
    recorded.value = std::move(given.value);
  }
  return found;
}

void Guide::run_operation(CapturedOperation& operation, const Storages& found,
                          const std::function<void()>& call) const {
  if (!checks_.writes) return call();
  Fingerprints bytes;
  for (const auto& [index, storage] : found)
    bytes.unchanged(index, *storage.unsafeGetStorageImpl());
  call();
  for (const auto& [index, storage] : found)
    if (!bytes.unchanged(index, *storage.unsafeGetStorageImpl()) &&
        !contains(operation.writes, index))
      throw UserError(fmt::format("plan: {} has changed {}, which it did not when it was recorded; "
                                  "the plan may have run it twice",
                                  described(operation), step_.storages[index].name),
                      "record steps in which it changes it: plan once that has begun");
}

void Guide::take_results(const CapturedOperation& operation, const torch::jit::Stack& stack) {
  size_t made = 0;
  const size_t results = operation.handle.schema().returns().size();
  for (size_t i = 0; i < results; ++i)
    captured_argument(stack[stack.size() - results + i], [&](const at::Tensor& tensor) {
      if (!tensor.defined() || storages_.find(tensor) >= 0) return TensorUse{};
      if (made == operation.makes.size() || static_cast<int64_t>(tensor.storage().nbytes()) !=
                                                step_.storages[operation.makes[made]].bytes)
        differs(operation, "it gives other tensors");
      const int storage = operation.makes[made++];
      storages_.add(tensor, storage);
      if (step_.storages[storage].elsewhere) memory_.keep_elsewhere(storage, tensor.storage());
      return TensorUse{};
    });
  if (made < operation.makes.size()) differs(operation, "it gives fewer tensors");
}

void Guide::find_held() {
  hold_all();
  if (checks_.same_numbers)
    return;  // other steps do not call the function: tensors that it holds are never read
  for (const auto& [index, weak] : storages_.held()) {
    const CapturedStorage& recorded = step_.storages[index];
    const auto storage = recorded.external.defined() || recorded.elsewhere ? nullptr : weak.lock();
    if (!storage) continue;
    if (step_.storages[index].kind != TensorKind::kOutput)
      throw UserError(
          fmt::format("plan: after the step the caller still holds the tensor that {} made. It did "
                      "not when the step was recorded: its memory is no longer there",
                      step_.storages[index].name),
          "copy it within the step into a tensor that was made before, or hold it in every step");
    if (storage->nbytes() > 0)
      storage->set_data_ptr_noswap(c10::DataPtr(memory_.address_of(index), step_.device));
  }
  release_held();
}

void Guide::release_held() {
  const StepDevice& device = step_device(step_.device);
  for (const auto& weak : held_)
    if (const auto storage = weak.lock(); storage && storage->nbytes() > 0) {
      c10::DataPtr own = device.own_memory(storage->nbytes(), /*folder=*/{});
      device.copy(own.get(), storage->data(), storage->nbytes());
      storage->set_data_ptr_noswap(std::move(own));
    }
  held_.clear();
}

}  // namespace dovetail::plan
