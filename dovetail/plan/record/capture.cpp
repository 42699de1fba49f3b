#include "dovetail/plan/record/capture.h"

#include <ATen/SequenceNumber.h>
#include <c10/util/Flags.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/profiler/orchestration/observer.h>

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
#include "dovetail/plan/device/fingerprint.h"
#include "dovetail/plan/device/planned_allocator.h"
#include "dovetail/plan/device/step_device.h"
#include "dovetail/plan/model/index_list.h"
#include "dovetail/plan/record/argument_values.h"
#include "dovetail/plan/record/intercept.h"
#include "dovetail/plan/record/tracked_storages.h"

C10_DECLARE_int(caffe2_log_level);

namespace dovetail::plan {
namespace {

// Operators that return numbers read from the values of a tensor.
constexpr std::array<std::string_view, 3> kGivesNumbers = {"aten::_local_scalar_dense",
                                                           "aten::is_nonzero", "aten::equal"};
// Operators whose results have sizes that depend on values.
constexpr std::array<std::string_view, 6> kSizesByValues = {
    "aten::nonzero",    "aten::masked_select",      "aten::_unique2",
    "aten::unique_dim", "aten::unique_consecutive", "aten::bincount"};
// Operators that return memory without writing it.
constexpr std::array<std::string_view, 7> kGivesMemory = {"aten::empty",
                                                          "aten::empty_like",
                                                          "aten::empty_strided",
                                                          "aten::empty_permuted",
                                                          "aten::new_empty",
                                                          "aten::new_empty_strided",
                                                          "aten::_empty_affine_quantized"};
constexpr std::array<std::string_view, 4> kChangesSizes = {"aten::resize_", "aten::resize_as_",
                                                           "aten::set_", "aten::_resize_output_"};

template <size_t N>
bool is_one_of(std::string_view name, const std::array<std::string_view, N>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Allocations of one operation in the memory of the step's device. Torch's CPU allocators report
/// to a state of torch's profiler. GPU allocators report to an observer.
class AllocationLog : public torch::profiler::impl::ProfilerStateBase, public AllocationObserver {
 public:
  explicit AllocationLog(c10::Device device)
      : ProfilerStateBase(
            torch::profiler::impl::ProfilerConfig(torch::profiler::impl::ProfilerState::Disabled)),
        device_(device) {}
  torch::profiler::impl::ActiveProfilerType profilerType() override {
    return torch::profiler::impl::ActiveProfilerType::NONE;
  }
  void reportMemoryUsage(void* pointer, int64_t bytes, size_t, size_t, c10::Device on) override {
    if (!device_.is_cpu() || !on.is_cpu() || !allocations_are_recorded()) return;
    if (bytes >= 0)
      allocated(pointer, bytes);
    else
      freed(pointer);
  }
  void allocated(void* address, int64_t bytes) override {
    if (!open_) return;
    live_[address] = {count_, bytes};
    events_.push_back({count_++, bytes, false});
  }
  void freed(void* address) override {
    const auto found = open_ ? live_.find(address) : live_.end();
    if (found == live_.end()) return;
    events_.push_back({found->second.number, found->second.bytes, true});
    live_.erase(found);
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
  /// Returns the live allocation at `pointer`, or -1.
  int allocation_at(const void* pointer) const {
    const auto found = live_.find(const_cast<void*>(pointer));
    return found == live_.end() ? -1 : found->second.number;
  }

 private:
  struct Allocation {
    int number = 0;
    int64_t bytes = 0;
  };

  c10::Device device_;
  bool open_ = false;
  int count_ = 0;
  std::unordered_map<void*, Allocation> live_;
  std::vector<MemoryEvent> events_;
};

bool is_tensor_type(const c10::Type& type) {
  return type.isSubtypeOf(*c10::TensorType::get()) ||
         type.isSubtypeOf(*c10::ListType::ofTensors()) ||
         type.isSubtypeOf(*c10::OptionalType::ofTensor());
}

/// Returns true for operators that return numbers read from tensor values. As far as is known,
/// ATen's operators outside kGivesNumbers return only properties of a tensor.
bool gives_numbers(const c10::OperatorHandle& op, std::string_view name) {
  if (is_one_of(name, kGivesNumbers)) return true;
  const auto& returns = op.schema().returns();
  return !name.starts_with("aten::") &&
         std::any_of(returns.begin(), returns.end(),
                     [](const c10::Argument& result) { return !is_tensor_type(*result.type()); });
}

/// Returns true for operators that return only views of their operands, and so do not read them.
bool gives_views(const c10::OperatorHandle& op) {
  const auto& returns = op.schema().returns();
  return !returns.empty() &&
         std::all_of(returns.begin(), returns.end(), [](const c10::Argument& result) {
           return result.alias_info() != nullptr && !result.alias_info()->isWrite();
         });
}

class Recorder : public OperationHandler {
 public:
  Recorder(const StepTensors& tensors, LaterSteps later, std::optional<RecordingLimit> limit)
      : later_(later),
        device_(step_device(device_of(tensors))),
        log_(std::make_shared<AllocationLog>(device_.device())) {
    step_.device = device_.device();
    if (limit) within_.emplace(step_, std::move(*limit));
    declare(tensors.inputs, TensorKind::kInput);
    declare(tensors.parameters, TensorKind::kParam);
    declare(tensors.state, TensorKind::kState);
    for (const auto& [name, tensor] : tensors.parameters) step_.parameters.push_back(tensor);
  }

  const std::shared_ptr<AllocationLog>& log() const { return log_; }

  void handle(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
              torch::jit::Stack* stack) override {
    const auto& schema = op.schema();
    const std::string name = operation_name(op, *stack), layer = layer_now();
    const bool ours = is_own_operation(op), numbers = gives_numbers(op, name);
    check_can_rerun(name, layer, numbers);
    const bool gives = name == "aten::lift_fresh" && !known(stack->back().toTensor());
    const size_t count = schema.arguments().size(), first = stack->size() - count;
    CapturedOperation made{.handle = op, .name = name, .layer = layer};
    made.backward = torch::autograd::get_current_node() != nullptr;
    made.random = op.hasTag(at::Tag::nondeterministic_seeded);
    made.grad_mode = at::GradMode::is_enabled();
    made.once = numbers || (ours && (*stack)[stack->size() - 2].toBool());
    std::map<int, c10::Storage> found;
    for (size_t i = 0; i < count; ++i) {
      const c10::IValue& value = (*stack)[first + i];
      user_check(!made.random || !value.isGenerator(),
                 "plan: {}{} draws from a generator of its own", name, in(layer));
      const auto* alias = schema.arguments()[i].alias_info();
      const bool writes = alias != nullptr && alias->isWrite();
      made.arguments.push_back(captured_argument(value, [&](const at::Tensor& tensor) {
        TensorUse use = used(tensor, name, layer);
        if (use.storage < 0) return use;
        add_once(writes ? made.writes : made.reads, use.storage);
        found.emplace(use.storage, tensor.storage());
        user_check(writes || !unwritten_.contains(use.storage),
                   "plan: {}{} reads memory that no recorded operator has written", name,
                   in(layer));
        return use;
      }));
    }
    const int given = gives ? made.reads.front() : -1;
    if (gives) step_.storages[given].given = true;
    check_sizes(made);
    const bool view = gives_views(op);  // operand bytes do not matter to a view
    if (!view) {
      if (within_) within_->before(made);
      check_untouched(found, name + in(layer));
    }
    log_->begin();
    const double start_s = now_seconds();
    op.redispatchBoxed(keys, stack);
    device_.wait();
    made.seconds = now_seconds() - start_s;
    const auto results = schema.returns().size();
    std::vector<at::Tensor> outputs;
    for (size_t i = 0; i < results; ++i)
      captured_argument((*stack)[stack->size() - results + i], [&](const at::Tensor& tensor) {
        if (!tensor.defined() || known(tensor)) return TensorUse{};
        check_kind_of_tensor(tensor, name, layer);
        const std::string number = made.makes.empty() ? "" : fmt::format(".{}", made.makes.size());
        made.makes.push_back(add_storage(
            tensor, fmt::format("{}:{}{}", name, step_.operations.size(), number), /*made=*/true));
        made.makes_result.push_back(static_cast<int>(i));
        made.makes_allocation.push_back(log_->allocation_at(tensor.storage().data()));
        outputs.push_back(tensor);
        return TensorUse{};
      });
    made.memory = log_->end();
    if (view)
      DOVETAIL_CHECK(made.makes.empty(),
                     "{}{} gives a tensor of its own, other than its schema says", name, in(layer));
    else
      find_writes(found, made);
    for (size_t i = 0; i < outputs.size(); ++i)
      bytes_.unchanged(made.makes[i], *outputs[i].storage().unsafeGetStorageImpl());
    for (const int storage : made.writes) {
      unwritten_.erase(storage);
      if (ours && step_.storages[storage].is_fixed())
        in_flight_.insert(storage);
      else
        in_flight_.erase(storage);
    }
    if (is_one_of(name, kGivesMemory))
      for (const int storage : made.makes)
        if (step_.storages[storage].bytes > 0) unwritten_.insert(storage);
    for (size_t i = 0; i < made.makes.size(); ++i)
      DOVETAIL_CHECK(made.makes_allocation[i] >= 0 || step_.storages[made.makes[i]].bytes == 0 ||
                         step_.storages[made.makes[i]].elsewhere,
                     "{}{} gives a tensor in memory that no allocator reported", name, in(layer));
    const bool only_views = made.writes.empty() && made.makes.empty() && !made.random && !ours &&
                            !numbers && results > 0;
    step_.calls.push_back({op, only_views ? -1 : static_cast<int>(step_.operations.size()), given});
    if (only_views) return;
    step_.operations.push_back(std::move(made));
    if (within_) within_->after(is_one_of(name, kGivesMemory));
  }

  CapturedStep finish(const std::vector<at::Tensor>& results) {
    if (later_ != LaterSteps::kNone) drop_gradients(step_, storages_);
    if (within_) within_->restore();
    for (const at::Tensor& tensor : results)
      step_.results.push_back(used(tensor, "the result of the step", ""));
    for (const TensorUse& use : step_.results)
      if (!step_.storages[use.storage].external.defined())
        step_.storages[use.storage].kind = TensorKind::kOutput;
    step_.held_bytes = take_peak_held_bytes();
    check_untouched(declared_, "the end of the step");
    mark_gradients();
    fix_changes_elsewhere();
    if (later_ == LaterSteps::kCalled) keep_what_is_held();
    return std::move(step_);
  }

 private:
  static std::string in(const std::string& layer) { return layer.empty() ? "" : " in " + layer; }

  void check_can_rerun(const std::string& name, const std::string& layer, bool numbers) const {
    if (later_ == LaterSteps::kNone) return;
    if (numbers && later_ == LaterSteps::kReplayed)
      throw UserError(fmt::format("plan: {}{} reads a tensor's values to decide how the step goes "
                                  "on, which a replayed step cannot",
                                  name, in(layer)),
                      "read it after the step, or let each step call its function "
                      "(PlannedStep::Options::replay)");
    if (is_one_of(name, kSizesByValues)) refuse_size(name, layer);
    if (is_one_of(name, kChangesSizes))
      throw UserError(fmt::format("plan: {}{} changes the storage of a tensor", name, in(layer)),
                      "make a new tensor instead");
  }

  [[noreturn]] static void refuse_size(const std::string& name, const std::string& layer) {
    throw UserError(
        fmt::format("plan: {}{} makes a tensor whose size depends on values, and a plan has one "
                    "place for it",
                    name, in(layer)),
        "use an operator of a fixed size: a mask and torch.where in place of masked_select, "
        "nonzero and indexing by a mask");
  }

  /// Throws UserError if the operation indexes by a mask, whose number of true values changes.
  void check_sizes(const CapturedOperation& operation) const {
    if (later_ == LaterSteps::kNone) return;
    for (const CapturedArgument& argument : operation.arguments) {
      if (argument.kind != CapturedArgument::Kind::kOptionalTensorList) continue;
      for (const TensorUse& use : argument.uses)
        if (use.storage >= 0 && (use.dtype == at::kBool || use.dtype == at::kByte))
          refuse_size(operation.name, operation.layer);
    }
  }

  /// Throws UserError if anything but a recorded operation has changed a tensor of the step. Work
  /// that an own operation has started may continue after it: a collective.
  void check_untouched(const std::map<int, c10::Storage>& found, const std::string& where) {
    for (const auto& [index, storage] : found)
      if (!bytes_.unchanged(index, *storage.unsafeGetStorageImpl()) && !in_flight_.contains(index))
        throw UserError(
            fmt::format(
                "plan: {} has changed before {}, by something that is no recorded operation",
                step_.storages[index].name, where),
            "change it by an operator of ATen, or by dovetail::operation (base/operation.h)");
  }

  /// Adds writes that the operation's schema does not declare.
  void find_writes(const std::map<int, c10::Storage>& found, CapturedOperation& made) {
    for (const auto& [index, storage] : found) {
      if (bytes_.unchanged(index, *storage.unsafeGetStorageImpl()) || contains(made.writes, index))
        continue;
      std::erase(made.reads, index);
      made.writes.push_back(index);
    }
  }

  /// Marks tensors that the caller holds at the end of the step as outputs. The caller may read
  /// them.
  void keep_what_is_held() {
    for (const auto& [index, storage] : storages_.held())
      if (!step_.storages[index].external.defined() && storage.use_count() > 0)
        step_.storages[index].kind = TensorKind::kOutput;
  }

  void declare(const std::vector<std::pair<std::string, at::Tensor>>& tensors, TensorKind kind) {
    for (const auto& [name, tensor] : tensors) {
      user_check(tensor.defined() && tensor.has_storage() && tensor.layout() == at::kStrided,
                 "plan: {} is not a dense tensor", name);
      check_device(tensor, name);
      if (known(tensor)) continue;  // tied parameters
      const int index = add_storage(tensor, name, /*made=*/false);
      step_.storages[index].kind = kind;
      step_.storages[index].external = tensor.detach();
      step_.storages[index].declared = !step_.storages[index].elsewhere;
      declared_.emplace(index, tensor.storage());
      bytes_.unchanged(index, *tensor.storage().unsafeGetStorageImpl());
    }
  }

  void check_kind_of_tensor(const at::Tensor& tensor, const std::string& name,
                            const std::string& layer) const {
    user_check(tensor.has_storage() && tensor.layout() == at::kStrided,
               "plan: {}{} works on a tensor that is not a dense one", name, in(layer));
    check_device(tensor, name + in(layer));
  }

  /// Throws UserError if a tensor is neither on the step's device nor on the CPU.
  void check_device(const at::Tensor& tensor, const std::string& what) const {
    user_check(tensor.is_cpu() || tensor.device() == step_.device,
               "plan: {} has a tensor on {}, but the step's parameters are on {}", what,
               tensor.device().str(), step_.device.str());
  }

  static c10::Device device_of(const StepTensors& tensors) {
    for (const auto& [name, tensor] : tensors.parameters)
      if (tensor.defined() && !tensor.is_cpu()) return tensor.device();
    return c10::kCPU;
  }

  /// Finds storages on another device that the step makes and then changes. A plan does not see
  /// such changes, so operations on these storages run once.
  void fix_changes_elsewhere() {
    for (const CapturedOperation& changing : step_.operations)
      for (const int storage : changing.writes) {
        if (!step_.storages[storage].elsewhere || step_.storages[storage].external.defined())
          continue;
        for (CapturedOperation& operation : step_.operations)
          operation.once = operation.once || contains(operation.makes, storage) ||
                           contains(operation.writes, storage) ||
                           contains(operation.reads, storage);
      }
  }

  bool known(const at::Tensor& tensor) const { return storages_.find(tensor) >= 0; }

  int add_storage(const at::Tensor& tensor, std::string name, bool made) {
    const int index = static_cast<int>(step_.storages.size());
    storages_.add(tensor, index);
    step_.storages.push_back(
        {.name = std::move(name), .bytes = static_cast<int64_t>(tensor.storage().nbytes())});
    step_.storages.back().elsewhere = tensor.device() != step_.device;
    if (within_) within_->add(tensor, made);
    return index;
  }

  TensorUse used(const at::Tensor& tensor, const std::string& name, const std::string& layer) {
    if (!tensor.defined() || is_number_as_tensor(tensor)) return {};
    check_kind_of_tensor(tensor, name, layer);
    user_check(!tensor.is_conj() && !tensor.is_neg(),
               "plan: {}{} works on a lazily conjugated or negated tensor", name, in(layer));
    int index = storages_.find(tensor);
    if (index < 0) {
      index =
          add_storage(tensor, fmt::format("constant:{}", step_.storages.size()), /*made=*/false);
      step_.storages[index].kind = TensorKind::kInput;
      step_.storages[index].external = tensor.detach();
    }
    return use_of(tensor, index);
  }

  /// Returns the layer of the operation that runs. Autograd creates the node of a forward
  /// operation, with a sequence number, just before the operation arrives here. A backward
  /// operation runs for such a node, and the node's number gives the layer.
  std::string layer_now() {
    if (const auto node = torch::autograd::get_current_node()) {
      const auto found = layer_of_sequence_.upper_bound(node->sequence_nr());
      return found == layer_of_sequence_.begin() ? "" : std::prev(found)->second;
    }
    // The first operation that sees a new number is the forward operation of that node.
    if (const uint64_t next = at::sequence_number::peek(); next > 0)
      layer_of_sequence_.emplace(next - 1, current_layer());
    return current_layer();
  }

  /// Marks gradients: storages that backward makes and forward does not read.
  void mark_gradients() {
    for (const CapturedOperation& operation : step_.operations)
      for (const int storage : operation.makes)
        if (operation.backward && step_.storages[storage].kind == TensorKind::kActivation)
          step_.storages[storage].kind = TensorKind::kGrad;
  }

  LaterSteps later_;
  const StepDevice& device_;
  std::shared_ptr<AllocationLog> log_;
  CapturedStep step_;
  TrackedStorages storages_;
  Fingerprints bytes_;
  std::optional<OnlineRecompute> within_;
  std::map<int, c10::Storage> declared_;
  std::map<uint64_t, std::string> layer_of_sequence_;
  std::unordered_set<int> unwritten_;  // storages
  std::unordered_set<int> in_flight_;  // fixed storages last written by an own operation
};

/// Limits c10's log to errors. It would report each free of memory from before the capture, which
/// is harmless.
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

CapturedStep record_step(const std::function<std::vector<at::Tensor>()>& step,
                         const StepTensors& tensors, LaterSteps later,
                         std::optional<RecordingLimit> limit) {
  check_no_planned_step_runs();
  user_check(
      c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE) == nullptr,
      "plan: a step cannot be recorded inside torch.profiler; profile steps by the final plan");
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  const ErrorsAlone log;
  const Interception interception;
  Recorder recorder(tensors, later, std::move(limit));
  const c10::DebugInfoGuard report(c10::DebugInfoKind::PROFILER_STATE, recorder.log());
  const ObservedAllocations observed(*recorder.log());
  std::vector<at::Tensor> results;
  take_peak_held_bytes();
  Interception::run(recorder, [&] { results = step(); });
  return recorder.finish(results);
}

void check_steady(const CapturedStep& a, CapturedStep& b, LaterSteps later) {
  const std::string help = "only a step that is the same every time can be planned";
  for (size_t i = 0; i < std::min(a.operations.size(), b.operations.size()); ++i) {
    const auto& x = a.operations[i];
    auto& y = b.operations[i];
    const auto differ = [&](const std::string& what, const std::string& remedy) {
      throw UserError(fmt::format("plan: two steps in a row differ at operation {}, {}{}: {}", i,
                                  x.name, x.layer.empty() ? "" : " in " + x.layer, what),
                      remedy);
    };
    if (x.name != y.name || x.arguments.size() != y.arguments.size())
      differ("the second calls " + y.name, help);
    for (size_t j = 0; j < x.arguments.size(); ++j) {
      const std::string& argument = x.handle.schema().arguments()[j].name();
      if (x.arguments[j].uses != y.arguments[j].uses)
        differ(fmt::format("argument \"{}\" has another shape or storage", argument), help);
      const c10::IValue &before = x.arguments[j].value, &now = y.arguments[j].value;
      if (same_value(before, now) ||
          (later == LaterSteps::kCalled && is_number(before) && is_number(now)))
        continue;
      differ(fmt::format("argument \"{}\" is another number: {}, then {}", argument,
                         text_of(before), text_of(now)),
             later == LaterSteps::kCalled
                 ? help
                 : "let each step call its function (PlannedStep::Options::replay), or give it as "
                   "a tensor");
    }
    for (const int storage : x.writes)
      if (contains(y.reads, storage)) {  // this write changed no byte in the second step
        std::erase(y.reads, storage);
        y.writes.push_back(storage);
      }
    if (x.makes != y.makes) differ("it gives other tensors", help);
    if (x.memory != y.memory) differ("it allocates other memory", help);
  }
  if (a.operations.size() != b.operations.size())
    throw UserError(fmt::format("plan: two steps in a row differ: {} operations, then {}",
                                a.operations.size(), b.operations.size()),
                    help);
  for (size_t s = 0; s < a.storages.size(); ++s) {
    const auto &x = a.storages[s].external, &y = b.storages[s].external;
    const bool given = a.storages[s].given && b.storages[s].given;
    if (x.defined() && !x.is_alias_of(y) && !(given && later == LaterSteps::kCalled))
      throw UserError(
          fmt::format("plan: {} of {} bytes is another tensor in each step, but no operator and no "
                      "argument of the step",
                      a.storages[s].name, a.storages[s].bytes),
          "give it as an input, make it before the first step, or compute it in the step");
    // A tensor that the caller holds at the end of either step is an output.
    b.storages[s].kind = std::max(a.storages[s].kind, b.storages[s].kind);
  }
}

CapturedStep capture(const std::function<std::vector<at::Tensor>()>& step,
                     const StepTensors& tensors, LaterSteps later) {
  const CapturedStep first = record_step(step, tensors, later);
  CapturedStep second = record_step(step, tensors, later);
  check_steady(first, second, later);
  return second;
}

}  // namespace dovetail::plan
