#include "dovetail/plan/capture.h"

#include <ATen/SequenceNumber.h>
#include <ATen/ops/tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Flags.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/layer_scope.h"
#include "dovetail/base/operation.h"
#include "dovetail/base/trace.h"
#include "dovetail/plan/index_list.h"

C10_DECLARE_int(caffe2_log_level);

namespace dovetail::plan {
namespace {

constexpr auto kKey = c10::DispatchKey::Fake;

// What goes on by a tensor's values, and so cannot be run again as it was recorded.
constexpr std::array<std::string_view, 9> kReadsValues = {"aten::_local_scalar_dense",
                                                          "aten::is_nonzero",
                                                          "aten::equal",
                                                          "aten::nonzero",
                                                          "aten::masked_select",
                                                          "aten::_unique2",
                                                          "aten::unique_dim",
                                                          "aten::unique_consecutive",
                                                          "aten::bincount"};
// What gives memory without writing it.
constexpr std::array<std::string_view, 7> kGivesMemory = {
    "aten::empty",     "aten::empty_like",        "aten::empty_strided",          "aten::empty_permuted",
    "aten::new_empty", "aten::new_empty_strided", "aten::_empty_affine_quantized"};
constexpr std::array<std::string_view, 4> kChangesSizes = {"aten::resize_", "aten::resize_as_", "aten::set_",
                                                           "aten::_resize_output_"};

template <size_t N>
bool is_one_of(std::string_view name, const std::array<std::string_view, N>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// The allocations of one operation, as the allocators report them.
class AllocationLog : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* pointer, int64_t bytes, size_t, size_t, c10::Device) override {
    if (!open_ || !allocations_are_recorded()) return;
    if (bytes >= 0) {
      live_[pointer] = count_;
      events_.push_back({count_++, bytes, false});
    } else if (const auto found = live_.find(pointer); found != live_.end()) {
      events_.push_back({found->second, -bytes, true});
      live_.erase(found);
    }
  }
  bool memoryProfilingEnabled() const override { return true; }

  void begin() {
    events_.clear();
    live_.clear();
    count_ = 0;
    open_ = true;
  }
  std::vector<MemoryEvent> end() {
    open_ = false;
    return std::move(events_);
  }
  /// The allocation that lives at `pointer`, or -1.
  int allocation_at(const void* pointer) const {
    const auto found = live_.find(const_cast<void*>(pointer));
    return found == live_.end() ? -1 : found->second;
  }

 private:
  bool open_ = false;
  int count_ = 0;
  std::unordered_map<void*, int> live_;
  std::vector<MemoryEvent> events_;
};

/// Arguments and results as the dispatcher passes them: each tensor of one visited.
template <class Visit>
CapturedArgument convert(const c10::IValue& value, Visit&& visit) {
  CapturedArgument out;
  if (value.isTensor()) {
    out.kind = CapturedArgument::Kind::kTensor;
    out.uses.push_back(visit(value.toTensor()));
  } else if (value.isTensorList()) {
    out.kind = CapturedArgument::Kind::kTensorList;
    for (const at::Tensor& tensor : value.toTensorVector()) out.uses.push_back(visit(tensor));
  } else if (value.isList() && value.toListRef().size() > 0 &&
             std::any_of(value.toListRef().begin(), value.toListRef().end(),
                         [](const auto& v) { return v.isTensor(); })) {
    out.kind = CapturedArgument::Kind::kOptionalTensorList;
    for (const c10::IValue& element : value.toListRef())
      out.uses.push_back(visit(element.isTensor() ? element.toTensor() : at::Tensor()));
  } else {
    out.value = value;
  }
  return out;
}

class Recorder {
 public:
  explicit Recorder(const StepTensors& tensors) : log_(std::make_shared<AllocationLog>()) {
    declare(tensors.inputs, TensorKind::kInput);
    declare(tensors.parameters, TensorKind::kParam);
    declare(tensors.state, TensorKind::kState);
  }

  const std::shared_ptr<AllocationLog>& log() const { return log_; }

  void record(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const auto& schema = op.schema();
    // An operation of ours says its own name first.
    const bool ours = schema.name() == "dovetail::operation";
    const std::string name = ours ? (*stack)[stack->size() - schema.arguments().size()].toStringRef() : schema.name();
    const std::string layer = layer_now();
    user_check(!is_one_of(name, kReadsValues),
               "plan: {}{} reads a tensor's values to decide how the step goes on, which a recorded step cannot", name,
               in(layer));
    user_check(!is_one_of(name, kChangesSizes), "plan: {}{} changes the storage of a tensor", name, in(layer));
    const size_t count = schema.arguments().size(), first = stack->size() - count;
    CapturedOperation made{.handle = op, .name = name, .layer = layer};
    made.backward = torch::autograd::get_current_node() != nullptr;
    made.random = op.hasTag(at::Tag::nondeterministic_seeded);
    made.once = ours && (*stack)[stack->size() - 2].toBool();
    for (size_t i = 0; i < count; ++i) {
      const c10::IValue& value = (*stack)[first + i];
      user_check(!made.random || !value.isGenerator(), "plan: {}{} draws from a generator of its own", name, in(layer));
      const auto* alias = schema.arguments()[i].alias_info();
      const bool writes = alias != nullptr && alias->isWrite();
      made.arguments.push_back(convert(value, [&](const at::Tensor& tensor) {
        TensorUse use = use_of(tensor, name, layer);
        if (use.storage >= 0) add_once(writes ? made.writes : made.reads, use.storage);
        user_check(writes || !unwritten_.contains(use.storage),
                   "plan: {}{} reads memory that no recorded operator has written", name, in(layer));
        return use;
      }));
      // Numbers that ATen wraps as tensors stay values.
      if (value.isTensor() && value.toTensor().defined() && value.toTensor().unsafeGetTensorImpl()->is_wrapped_number())
        made.arguments.back() = {.value = value};
    }
    log_->begin();
    const double start_s = now_seconds();
    op.redispatchBoxed(keys, stack);
    made.seconds = now_seconds() - start_s;
    const auto results = schema.returns().size();
    bool only_views = made.writes.empty() && !made.random && !ours;
    for (size_t i = 0; i < results; ++i)
      convert((*stack)[stack->size() - results + i], [&](const at::Tensor& tensor) {
        if (!tensor.defined() || known(tensor)) return TensorUse{};
        only_views = false;
        check_kind_of_tensor(tensor, name, layer);
        const std::string number = made.makes.empty() ? "" : fmt::format(".{}", made.makes.size());
        made.makes.push_back(add_storage(tensor, fmt::format("{}:{}{}", name, step_.operations.size(), number)));
        made.makes_allocation.push_back(log_->allocation_at(tensor.storage().data()));
        return TensorUse{};
      });
    made.memory = log_->end();
    for (const int storage : made.writes) unwritten_.erase(storage);
    if (is_one_of(name, kGivesMemory))
      for (const int storage : made.makes)
        if (step_.storages[storage].bytes > 0) unwritten_.insert(storage);
    for (size_t i = 0; i < made.makes.size(); ++i)
      DOVETAIL_CHECK(made.makes_allocation[i] >= 0 || step_.storages[made.makes[i]].bytes == 0,
                     "{}{} gives a tensor in memory that no allocator reported", name, in(layer));
    if (!only_views || results == 0) step_.operations.push_back(std::move(made));
  }

  CapturedStep finish(const std::vector<at::Tensor>& results) {
    for (const at::Tensor& tensor : results) step_.results.push_back(use_of(tensor, "the result of the step", ""));
    for (const TensorUse& use : step_.results)
      if (!step_.storages[use.storage].external.defined()) step_.storages[use.storage].kind = TensorKind::kOutput;
    step_.held_bytes = take_most_held_bytes();
    mark_gradients();
    return std::move(step_);
  }

 private:
  static std::string in(const std::string& layer) { return layer.empty() ? "" : " in " + layer; }

  void declare(const std::vector<std::pair<std::string, at::Tensor>>& tensors, TensorKind kind) {
    for (const auto& [name, tensor] : tensors) {
      user_check(tensor.defined() && tensor.is_cpu() && tensor.has_storage(), "plan: {} is not a dense CPU tensor",
                 name);
      if (known(tensor)) continue;  // tied parameters
      const int index = add_storage(tensor, name);
      step_.storages[index].kind = kind;
      step_.storages[index].external = tensor.detach();
    }
  }

  static void check_kind_of_tensor(const at::Tensor& tensor, const std::string& name, const std::string& layer) {
    user_check(tensor.has_storage() && tensor.layout() == at::kStrided && tensor.is_cpu(),
               "plan: {}{} works on a tensor that is not a dense one on the CPU", name, in(layer));
  }

  static c10::StorageImpl* storage_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }
  bool known(const at::Tensor& tensor) const { return tensor.has_storage() && storages_.contains(storage_of(tensor)); }

  int add_storage(const at::Tensor& tensor, std::string name) {
    const int index = static_cast<int>(step_.storages.size());
    storages_[storage_of(tensor)] = index;
    held_.push_back(tensor.storage().getWeakStorageImpl());  // so that no later storage has this address
    step_.storages.push_back({.name = std::move(name), .bytes = static_cast<int64_t>(tensor.storage().nbytes())});
    return index;
  }

  TensorUse use_of(const at::Tensor& tensor, const std::string& name, const std::string& layer) {
    if (!tensor.defined() || tensor.unsafeGetTensorImpl()->is_wrapped_number()) return {};
    check_kind_of_tensor(tensor, name, layer);
    user_check(!tensor.is_conj() && !tensor.is_neg(), "plan: {}{} works on a lazily conjugated or negated tensor", name,
               in(layer));
    int index = 0;
    if (const auto found = storages_.find(storage_of(tensor)); found != storages_.end()) {
      index = found->second;
    } else {
      index = add_storage(tensor, fmt::format("constant:{}", step_.storages.size()));
      step_.storages[index].kind = TensorKind::kInput;
      step_.storages[index].external = tensor.detach();
    }
    return {index, tensor.sizes().vec(), tensor.strides().vec(), tensor.storage_offset(), tensor.scalar_type()};
  }

  /// A forward operation made its node of autograd, and with it a sequence number, just before it came here; a backward
  /// operation runs for a node, whose number tells the layer.
  std::string layer_now() {
    if (const auto node = torch::autograd::get_current_node()) {
      const auto found = layer_of_sequence_.upper_bound(node->sequence_nr());
      return found == layer_of_sequence_.begin() ? "" : std::prev(found)->second;
    }
    // The first that comes with a number is the one whose node it is.
    if (const uint64_t next = at::sequence_number::peek(); next > 0)
      layer_of_sequence_.emplace(next - 1, current_layer());
    return current_layer();
  }

  /// What backward makes and forward does not read: gradients.
  void mark_gradients() {
    for (const CapturedOperation& operation : step_.operations)
      for (const int storage : operation.makes)
        if (operation.backward && step_.storages[storage].kind == TensorKind::kActivation)
          step_.storages[storage].kind = TensorKind::kGrad;
  }

  std::shared_ptr<AllocationLog> log_;
  CapturedStep step_;
  std::unordered_map<c10::StorageImpl*, int> storages_;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> held_;
  std::map<uint64_t, std::string> layer_of_sequence_;
  std::unordered_set<int> unwritten_;  // storages
};

Recorder* recording = nullptr;  // of the one capture that runs

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(kKey);
  recording->record(op, keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
}

bool same_value(const c10::IValue& a, const c10::IValue& b) {
  if (a.isTensor() && b.isTensor()) {  // wrapped numbers
    const at::Tensor &x = a.toTensor(), &y = b.toTensor();
    return x.defined() == y.defined() && (!x.defined() || (x.scalar_type() == y.scalar_type() && x.equal(y)));
  }
  if (a.isGenerator() || b.isGenerator()) return a.isGenerator() && b.isGenerator();
  if (a.isCapsule() || b.isCapsule()) return a.isCapsule() && b.isCapsule();  // the body of an operation of ours
  return a == b;
}

/// c10 logs when memory from before a capture is freed in it, which nobody needs to know.
class ErrorsAlone {
 public:
  ErrorsAlone() : before_(std::exchange(FLAGS_caffe2_log_level, 2)) {}
  ~ErrorsAlone() { FLAGS_caffe2_log_level = before_; }
  ErrorsAlone(const ErrorsAlone&) = delete;
  ErrorsAlone& operator=(const ErrorsAlone&) = delete;

 private:
  int before_;
};

}  // namespace

CapturedStep record_step(const std::function<std::vector<at::Tensor>()>& step, const StepTensors& tensors) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  const ErrorsAlone log;
  torch::Library library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
  Recorder recorder(tensors);
  recording = &recorder;
  const auto stop = [](Recorder**) { recording = nullptr; };
  const std::unique_ptr<Recorder*, decltype(stop)> stopped(&recording, stop);
  const c10::DebugInfoGuard report(c10::DebugInfoKind::PROFILER_STATE, recorder.log());
  std::vector<at::Tensor> results;
  take_most_held_bytes();
  {
    const c10::impl::IncludeDispatchKeyGuard here(kKey);
    results = step();
  }
  return recorder.finish(results);
}

void check_steady(const CapturedStep& a, const CapturedStep& b) {
  const std::string help = "only a step that is the same every time can be planned";
  for (size_t i = 0; i < std::min(a.operations.size(), b.operations.size()); ++i) {
    const auto &x = a.operations[i], &y = b.operations[i];
    const auto differ = [&](const std::string& what) {
      throw UserError(fmt::format("plan: two steps in a row differ at operation {}, {}{}: {}", i, x.name,
                                  x.layer.empty() ? "" : " in " + x.layer, what),
                      help);
    };
    if (x.name != y.name || x.arguments.size() != y.arguments.size()) differ("the second calls " + y.name);
    for (size_t j = 0; j < x.arguments.size(); ++j) {
      if (x.arguments[j].uses != y.arguments[j].uses)
        differ(fmt::format("argument \"{}\" has another shape or storage", x.handle.schema().arguments()[j].name()));
      if (!same_value(x.arguments[j].value, y.arguments[j].value))
        differ(fmt::format("argument \"{}\" is another number", x.handle.schema().arguments()[j].name()));
    }
    if (x.makes != y.makes || x.writes != y.writes) differ("it gives other tensors");
    if (x.memory != y.memory) differ("it allocates other memory");
  }
  if (a.operations.size() != b.operations.size())
    throw UserError(fmt::format("plan: two steps in a row differ: {} operations, then {}", a.operations.size(),
                                b.operations.size()),
                    help);
  for (size_t s = 0; s < a.storages.size(); ++s) {
    const auto &x = a.storages[s].external, &y = b.storages[s].external;
    if (x.defined() && !x.is_alias_of(y))
      throw UserError(fmt::format("plan: {} of {} bytes is made anew in each step, but by no operator",
                                  a.storages[s].name, a.storages[s].bytes),
                      "make it before the first step, or by an operator of ATen");
  }
}

CapturedStep capture(const std::function<std::vector<at::Tensor>()>& step, const StepTensors& tensors) {
  const CapturedStep first = record_step(step, tensors);
  CapturedStep second = record_step(step, tensors);
  check_steady(first, second);
  return second;
}

}  // namespace dovetail::plan
