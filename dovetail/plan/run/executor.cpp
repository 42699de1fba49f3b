#include "dovetail/plan/run/executor.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/Storage.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/kept_memory.h"
#include "dovetail/base/trace.h"
#include "dovetail/plan/model/layout.h"
#include "dovetail/plan/model/packing.h"
#include "dovetail/plan/record/operation_call.h"
#include "dovetail/plan/run/host_tier.h"
#include "dovetail/plan/run/paged_memory.h"
#include "dovetail/plan/run/planned_allocator.h"

namespace dovetail::plan {
namespace {

// Maximum bytes that exist twice while tensors move to the arena.
constexpr int64_t kMovedAtOnce = int64_t{16} << 20;

c10::Storage storage_at(std::byte* address, int64_t bytes) {
  return c10::Storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(bytes),
                      c10::DataPtr(address, c10::Device(c10::DeviceType::CPU)),
                      /*allocator=*/nullptr,
                      /*resizable=*/false);
}

/// Throws InvalidPlan if a node runs again by another algorithm. It must give the bits of its first
/// run.
void check_algorithms(const Plan& plan, const Graph& graph) {
  std::vector<int> algorithm(graph.nodes.size(), -1);
  for (size_t a = 0; a < plan.actions.size(); ++a) {
    const Action& action = plan.actions[a];
    if (action.op != Op::kCompute) continue;
    int& first = algorithm[action.node];
    if (first < 0) first = action.algorithm;
    const GraphNode& node = graph.nodes[action.node];
    if (first != action.algorithm)
      throw InvalidPlan(static_cast<int>(a), fmt::format("{} runs by \"{}\" and again by \"{}\"",
                                                         node.name, node.algorithms[first].name,
                                                         node.algorithms[action.algorithm].name));
  }
}

}  // namespace

struct Executor::State : StepMemory {
  CapturedStep step;
  StepGraph graph;
  Plan plan;
  Timeline timeline;
  Layout layout;
  Options options;
  std::optional<Arena> arena;
  std::optional<HostTier> host;
  std::vector<int64_t> host_offset;       // per tensor; -1: never offloaded
  std::vector<std::byte*> address;        // current address of each tensor
  std::vector<std::byte*> between_steps;  // address of each existing tensor between steps
  std::vector<std::byte*> packed;         // packed form of each tensor
  std::vector<int> codec_of;              // codec of each tensor's packed form
  // Generator state before the first run of each random node that runs again in the step.
  std::vector<at::Tensor> random_state;
  std::vector<int> runs;  // runs of each node in this step
  std::vector<bool> reruns;
  // Number of each action's copy, and number of the fetch that each tensor's readers await.
  std::vector<int64_t> copy_number;
  std::vector<int64_t> fetch_of;
  bool failed = false;
  CopyStream to_host, to_device;
  // Progress of the current step.
  int next_action = 0;
  int64_t last_out = 0, last_in = 0;  // copy numbers
  // The node that runs, its workspace, and the generator state to set after it.
  std::optional<NodeRun> how;
  std::byte* workspace = nullptr;
  std::optional<at::Tensor> random_after;
  int computing = -1;  // the running node's action in a called step
  std::vector<int> node_of_operation;
  std::optional<Guide> guide;

  const GraphTensor& tensor(int t) const { return graph.graph.tensors[t]; }

  void adopt() {
    arena.emplace(layout.bytes);
    address.assign(graph.graph.tensors.size(), nullptr);
    between_steps.assign(graph.graph.tensors.size(), nullptr);
    for (const int t : plan.starts_on_host) between_steps[t] = host->data() + host_offset[t];
    int64_t moved_bytes = 0;  // since freed memory was given back
    give_back_freed_memory();
    for (size_t t = 0; t < address.size(); ++t) {
      if (layout.home[t] >= 0) between_steps[t] = address[t] = arena->data() + layout.home[t];
      if (between_steps[t] == nullptr) continue;
      const CapturedStorage& captured = step.storages[graph.storage_of_tensor[t]];
      const c10::Storage& storage = captured.external.storage();
      DOVETAIL_CHECK(static_cast<int64_t>(storage.nbytes()) == captured.bytes,
                     "{} has changed its size since the capture", captured.name);
      std::memcpy(between_steps[t], storage.data(), storage.nbytes());
      storage.set_data_ptr_noswap(
          c10::DataPtr(between_steps[t], c10::Device(c10::DeviceType::CPU)));
      moved_bytes += captured.bytes;
      if (moved_bytes < kMovedAtOnce) continue;
      give_back_freed_memory();
      moved_bytes = 0;
    }
    give_back_freed_memory();
  }

  /// Moves tensors out of the arena one by one, so that they are never all held twice.
  void give_back() noexcept {
    if (!arena) return;
    arena->drop_all_but(homes());
    for (size_t t = 0; t < between_steps.size(); ++t) {
      if (between_steps[t] == nullptr) continue;
      const c10::Storage& storage = found_storage(t);
      if (storage.data() != between_steps[t]) continue;  // another plan has it
      c10::DataPtr own = own_memory(storage.nbytes());
      std::memcpy(own.get(), between_steps[t], storage.nbytes());
      storage.set_data_ptr_noswap(std::move(own));
      if (layout.home[t] >= 0) arena->drop(layout.home[t], tensor(static_cast<int>(t)).bytes);
    }
  }

  /// Offset and bytes of each tensor that is in the arena between steps.
  std::vector<std::pair<int64_t, int64_t>> homes() const {
    std::vector<std::pair<int64_t, int64_t>> out;
    for (size_t t = 0; t < between_steps.size(); ++t)
      if (between_steps[t] != nullptr && layout.home[t] >= 0)
        out.emplace_back(layout.home[t], tensor(static_cast<int>(t)).bytes);
    std::ranges::sort(out);
    return out;
  }

  c10::DataPtr own_memory(size_t bytes) const {
    try {
      std::optional<PagedAllocations> in_a_file;
      if (!options.folder.empty()) in_a_file.emplace(options.folder);
      return c10::GetCPUAllocator()->allocate(bytes);
    } catch (const UserError&) {  // the disk is full: keep the values in plain memory
      return c10::GetDefaultCPUAllocator()->allocate(bytes);
    }
  }

  void find_host_slots() {
    host_offset.assign(graph.graph.tensors.size(), -1);
    const auto find_slot = [&](int t) {
      if (host_offset[t] >= 0) return;
      user_check(tensor(t).bytes >= kPagedBytes,
                 "plan: {} of {} bytes is too small to be offloaded; from {} on", tensor(t).id,
                 tensor(t).bytes, kPagedBytes);
      host_offset[t] = host_bytes;
      host_bytes += tensor(t).bytes;
    };
    for (const int t : plan.starts_on_host) find_slot(t);
    for (const Action& action : plan.actions)
      if (action.op == Op::kOffload) find_slot(action.tensor);
  }
  int64_t host_bytes = 0;

  void check_codecs() const {
    for (const Action& action : plan.actions)
      user_check(
          action.op != Op::kCompress || (static_cast<size_t>(action.codec) < graph.forms.size() &&
                                         tensor(action.tensor).codecs.has_value()),
          "plan: {} is packed by {}, but it is not known how", tensor(action.tensor).id,
          graph.graph.codecs[action.codec].name);
  }

  int64_t elements(int t, const PackedForm& form) const {
    return step.storages[graph.storage_of_tensor[t]].bytes /
           static_cast<int64_t>(c10::elementSize(form.dtype));
  }

  void compress(int a) {
    const Action& action = plan.actions[a];
    await_data(action.tensor);
    begins(a);
    codec_of[action.tensor] = action.codec;
    packed[action.tensor] = arena->data() + layout.result[a];
    const PackedForm& form = graph.forms[action.codec];
    pack(form, address[action.tensor], elements(action.tensor, form), packed[action.tensor]);
  }

  void decompress(int a) {
    begins(a);
    const int t = plan.actions[a].tensor;
    address[t] = arena->data() + layout.result[a];
    const PackedForm& form = graph.forms[codec_of[t]];
    unpack(form, packed[t], elements(t, form), address[t]);
  }

  void wait_for(int action) {
    if (copy_number[action] == 0) return;
    (plan.actions[action].op == Op::kOffload ? to_host : to_device).wait(copy_number[action]);
  }

  void await_data(int t) {
    if (fetch_of[t] > 0) to_device.wait(fetch_of[t]);
    fetch_of[t] = 0;
  }

  void begin_compute(int a) {
    const Action& action = plan.actions[a];
    const GraphNode& described = graph.graph.nodes[action.node];
    for (const auto* list : {&described.inputs, &described.mutates})
      for (const int t : *list) await_data(t);
    for (const int t : described.algorithms[action.algorithm].on_host) {
      to_host.wait(offload_number(t));
      address[t] = host->data() + host_offset[t];
    }
    begins(a);
    for (size_t i = 0; i < described.outputs.size(); ++i)
      address[described.outputs[i]] = arena->data() + layout.outputs[a][i];
    workspace = layout.result[a] < 0 ? nullptr : arena->data() + layout.result[a];
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    if (described.random && reruns[action.node]) {
      if (runs[action.node] == 0) {
        random_state[action.node] = generator.get_state();
      } else {
        random_after = generator.get_state();
        generator.set_state(random_state[action.node]);
      }
    }
    how.emplace(run_of(step, graph.nodes[action.node], action.algorithm));
  }

  void end_compute(int a) {
    if (random_after) {
      at::Generator generator = at::detail::getDefaultCPUGenerator();
      generator.set_state(*random_after);
    }
    random_after.reset();
    ++runs[plan.actions[a].node];
  }

  void compute(int a) {
    begin_compute(a);
    for (size_t o = 0; o < how->operations.size(); ++o) call_planned(o);
    end_compute(a);
  }

  /// Calls operation `o` of the node that runs, and returns its results.
  torch::jit::Stack call_planned(size_t o) {
    const std::vector<PlannedPlace> places = places_of(how->memory.places[o]);
    const PlannedAllocations planned(how->operations[o].name, places);
    return call(how->operations[o], [this](int s) {
      std::byte* address = address_of(s);
      const bool elsewhere = address == nullptr && step.storages[s].external.defined();
      // 0: the storage has no bytes
      return elsewhere ? step.storages[s].external.storage()
                       : storage_at(address, address == nullptr ? 0 : step.storages[s].bytes);
    });
  }

  std::vector<PlannedPlace> places_of(const std::vector<AllocationPlace>& planned) const {
    std::vector<PlannedPlace> places;
    places.reserve(planned.size());
    for (const AllocationPlace& place : planned)
      places.push_back({place.storage >= 0 ? address[graph.tensor_of_storage[place.storage]]
                                           : workspace + place.workspace_offset,
                        place.bytes});
    return places;
  }

  std::byte* address_of(int storage) override {
    if (graph.tensor_of_storage[storage] >= 0) return address[graph.tensor_of_storage[storage]];
    if (how)
      for (const auto& [local, offset] : how->memory.local)
        if (local == storage) return workspace + offset;
    return nullptr;
  }

  // Called step: the plan advances as far as the function has come.

  void reach(int operation) override {
    const int n = node_of_operation[operation];
    if (operation != graph.nodes[n].first) return;
    for (;;) {
      const int a = next_action++;
      DOVETAIL_CHECK(static_cast<size_t>(a) < plan.actions.size(), "{} is not in the plan",
                     graph.graph.nodes[n].name);
      const Action& action = plan.actions[a];
      if (action.op != Op::kCompute || runs[action.node] > 0) {
        advance(a);
        continue;
      }
      user_check(action.node == n,
                 "plan: {} runs before {}, other than in the recorded step, so that no function "
                 "can be called",
                 graph.graph.nodes[action.node].name, graph.graph.nodes[n].name);
      wait_before(a);
      begin_compute(a);
      computing = a;
      return;
    }
  }

  void leave(int operation) override {
    if (operation + 1 < graph.nodes[node_of_operation[operation]].last) return;
    end_compute(computing);
    spans[computing].end_s = now_seconds() - started_s;
  }

  /// Number of operations of the node's algorithm in addition to the captured ones. They are in
  /// place of the first.
  size_t added_operations(const StepNode& node) const {
    return how->operations.size() - static_cast<size_t>(node.last - node.first);
  }

  std::vector<PlannedPlace> places_of(int operation) override {
    const StepNode& node = graph.nodes[node_of_operation[operation]];
    const auto index = static_cast<size_t>(operation - node.first);
    return places_of(how->memory.places[index + (index > 0 ? added_operations(node) : 0)]);
  }

  std::optional<std::vector<at::Tensor>> run_instead(int operation) override {
    const int n = node_of_operation[operation];
    const StepNode& node = graph.nodes[n];
    if (operation != node.first || has_captured_operations(n, plan.actions[computing].algorithm))
      return std::nullopt;
    std::map<int, at::Tensor> made;
    for (size_t o = 0; o <= added_operations(node); ++o) {
      size_t next = 0;
      for_each_tensor(call_planned(o), [&](const at::Tensor& tensor) {
        made.insert_or_assign(how->operations[o].makes.at(next++), tensor);
      });
    }
    std::vector<at::Tensor> out;
    for (const int storage : step.operations[operation].makes) out.push_back(made.at(storage));
    return out;
  }

  /// Returns true if an algorithm of a node runs the operators that were captured.
  bool has_captured_operations(int node, int algorithm) const {
    return algorithm == 0 ||
           std::ranges::equal(run_of(step, graph.nodes[node], 0).operations,
                              run_of(step, graph.nodes[node], algorithm).operations, {},
                              &CapturedOperation::name, &CapturedOperation::name);
  }

  void check_can_be_called() const {
    for (const Action& action : plan.actions)
      user_check(action.op != Op::kCompute || action.algorithm == 0 || !reruns[action.node] ||
                     !has_captured_operations(action.node, action.algorithm),
                 "plan: {} runs by \"{}\" and more than once, so that no function can be called",
                 graph.graph.nodes[action.node].name,
                 graph.graph.nodes[action.node].algorithms[action.algorithm].name);
  }

  const c10::Storage& found_storage(size_t t) const {
    return step.storages[graph.storage_of_tensor[t]].external.storage();
  }

  /// Throws UserError if a tensor of the step is no longer where the plan has put it.
  void check_places() const {
    for (size_t t = 0; t < between_steps.size(); ++t)
      if (between_steps[t] != nullptr && found_storage(t).data() != between_steps[t])
        throw UserError(fmt::format("plan: {} is no longer in the memory of this plan",
                                    step.storages[graph.storage_of_tensor[t]].name),
                        "a tensor can be in one planned step at a time: delete the other step, or "
                        "make one step of both");
  }

  /// Points tensors that the step found to their places between steps.
  void return_found() {
    for (size_t t = 0; t < between_steps.size(); ++t) {
      if (between_steps[t] == nullptr) continue;
      const c10::Storage& storage = found_storage(t);
      if (storage.data() != between_steps[t])
        storage.set_data_ptr_noswap(
            c10::DataPtr(between_steps[t], c10::Device(c10::DeviceType::CPU)));
    }
  }

  void wait_before(int a) {
    for (const int wait : plan.actions[a].waits) wait_for(wait);
    for (const int wait : layout.waits[a]) wait_for(wait);
  }

  void advance(int a) {
    const Op op = plan.actions[a].op;
    if (op == Op::kOffload || op == Op::kPrefetch) {  // copies time themselves
      issue(a);
      (op == Op::kOffload ? last_out : last_in) = copy_number[a];
    } else {
      timed(a, [&] { issue(a); });
    }
  }

  void issue(int a) {
    const Action& action = plan.actions[a];
    wait_before(a);
    const int t = action.tensor;
    switch (action.op) {
      case Op::kCompute:
        compute(a);
        break;
      case Op::kOffload:
        await_data(t);
        copy_number[a] = to_host.enqueue(
            [this, a, from = address[t], at = host_offset[t], bytes = tensor(t).bytes] {
              timed(a, [&] { host->write(at, from, bytes); });
            });
        offload_of[t] = a;
        break;
      case Op::kPrefetch:
        address[t] = arena->data() + layout.result[a];
        copy_number[a] = to_device.enqueue([this, a, written = offload_number(t), to = address[t],
                                            at = host_offset[t], bytes = tensor(t).bytes] {
          to_host.wait(written);
          timed(a, [&] { host->read(at, to, bytes); });
        });
        fetch_of[t] = copy_number[a];
        break;
      case Op::kCompress:
        compress(a);
        break;
      case Op::kDecompress:
        decompress(a);
        break;
      case Op::kFree:
      case Op::kFreeHost:
      case Op::kFreePacked:
        break;
    }
    if (options.copies_alone) wait_for(a);
  }
  std::vector<int> offload_of;
  int64_t offload_number(int t) const { return offload_of[t] < 0 ? 0 : copy_number[offload_of[t]]; }

  void begin() {
    user_check(!failed, "plan: the step cannot go on after the error of the last one");
    check_places();
    failed = true;
    if (guide) guide->release_held();
    spans.assign(plan.actions.size(), {});
    copy_number.assign(plan.actions.size(), 0);
    fetch_of.assign(address.size(), 0);
    offload_of.assign(address.size(), -1);
    runs.assign(graph.nodes.size(), 0);
    next_action = 0;
    last_out = last_in = 0;
    started_s = now_seconds();
  }

  /// Runs the rest of the plan.
  Run finish() {
    while (static_cast<size_t>(next_action) < plan.actions.size()) advance(next_action++);
    to_host.wait(last_out);
    to_device.wait(last_in);
    how.reset();
    const double seconds = now_seconds() - started_s;
    failed = false;
    return {seconds, std::move(spans)};
  }

  double started_s = 0;
  std::vector<Timeline::Span> spans;
  /// Records the start of an action, after its waits.
  void begins(int a) { spans[a].start_s = now_seconds() - started_s; }
  template <class Work>
  void timed(int a, Work&& work) {
    begins(a);
    work();
    spans[a].end_s = now_seconds() - started_s;
  }
};

Executor::Executor(CapturedStep step, StepGraph graph, Plan plan, const Options& options)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.step = std::move(step);
  s.graph = std::move(graph);
  s.plan = std::move(plan);
  s.options = options;
  s.timeline = check(s.graph.graph, s.plan);
  if (!options.mixed_algorithms) check_algorithms(s.plan, s.graph.graph);
  s.check_codecs();
  s.layout = lay_out(s.graph.graph, s.plan, s.timeline);
  s.find_host_slots();
  s.host.emplace(options.folder, s.host_bytes);
  s.random_state.resize(s.graph.nodes.size());
  s.packed.resize(s.graph.graph.tensors.size());
  s.codec_of.resize(s.graph.graph.tensors.size(), -1);
  std::vector<int> computes(s.graph.nodes.size());
  for (const Action& action : s.plan.actions)
    if (action.op == Op::kCompute) ++computes[action.node];
  for (const int count : computes) s.reruns.push_back(count > 1);
  for (size_t n = 0; n < s.graph.nodes.size(); ++n)
    s.node_of_operation.resize(s.graph.nodes[n].last, static_cast<int>(n));
  s.adopt();
}

Executor::~Executor() {
  state_->guide.reset();
  state_->give_back();
}

Executor::Run Executor::run() {
  state_->begin();
  return state_->finish();
}

Executor::Run Executor::run(const std::function<void()>& work, const CallChecks& checks) {
  State& s = *state_;
  if (!s.guide) {
    s.check_can_be_called();
    s.guide.emplace(s.step, s);
  }
  s.begin();
  Run run;
  try {
    s.guide->run(work, checks);
    run = s.finish();
  } catch (...) {
    s.return_found();
    throw;
  }
  s.return_found();
  s.guide->find_held();
  return run;
}

std::vector<at::Tensor> Executor::results() const {
  std::vector<at::Tensor> out;
  for (const TensorUse& use : state_->step.results) {
    const int t = state_->graph.tensor_of_storage[use.storage];
    out.push_back(
        tensor_of(use, storage_at(state_->address[t], state_->step.storages[use.storage].bytes)));
  }
  return out;
}

int64_t Executor::arena_bytes() const { return state_->layout.bytes; }
int64_t Executor::resident_bytes() const { return state_->arena->resident_bytes(); }
const Timeline& Executor::predicted() const { return state_->timeline; }

}  // namespace dovetail::plan
