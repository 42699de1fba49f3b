#include "dovetail/plan/run/executor.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <c10/core/Storage.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/log.h"
#include "dovetail/base/trace.h"
#include "dovetail/plan/device/planned_allocator.h"
#include "dovetail/plan/device/step_device.h"
#include "dovetail/plan/model/layout.h"
#include "dovetail/plan/model/packing.h"
#include "dovetail/plan/record/operation_call.h"

namespace dovetail::plan {
namespace {

// Maximum bytes that exist twice while tensors move to the arena.
constexpr int64_t kMovedAtOnce = int64_t{16} << 20;

c10::Storage storage_at(std::byte* address, int64_t bytes, c10::Device device) {
  return c10::Storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(bytes),
                      c10::DataPtr(address, device),
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
  const StepDevice* device = nullptr;
  std::unique_ptr<Region> arena;
  int64_t released_resident_bytes = 0;  // Region::resident_bytes before release_scratch, maximum
  std::unique_ptr<StepStreams> streams;
  std::vector<int64_t> host_offset;       // per tensor; -1: never offloaded
  std::vector<std::byte*> address;        // current address of each tensor
  std::vector<std::byte*> between_steps;  // address of each existing tensor between steps
  std::vector<std::byte*> packed;         // packed form of each tensor
  std::vector<int> codec_of;              // codec of each tensor's packed form
  // Generator state before the first run of each random node that runs again in the step.
  std::vector<at::Tensor> random_state;
  std::vector<int> runs;  // runs of each node in this step
  std::vector<bool> reruns;
  // Actions that offloaded and fetched each tensor last, -1 if there is none or its readers need
  // not wait for it.
  std::vector<int> offload_of, fetch_of;
  std::map<int, c10::Storage> elsewhere;  // CapturedStorage::elsewhere, made in this step
  bool failed = false;
  int next_action = 0;  // progress of the current step
  // The node that runs, its workspace, and the generator state to set after it.
  std::optional<NodeRun> how;
  std::byte* workspace = nullptr;
  std::optional<at::Tensor> random_after;
  int computing = -1;  // the running node's action in a called step
  std::vector<int> node_of_operation;
  std::optional<Guide> guide;

  const GraphTensor& tensor(int t) const { return graph.graph.tensors[t]; }

  c10::DataPtr at(std::byte* where) const { return {where, device->device()}; }

  void adopt() {
    address.assign(graph.graph.tensors.size(), nullptr);
    between_steps.assign(graph.graph.tensors.size(), nullptr);
    // A region that takes its memory at once must not exist beside the tensors that move into it.
    std::vector<at::Tensor> saved(address.size());
    for (size_t t = 0; t < address.size(); ++t) {
      const CapturedStorage& captured = step.storages[graph.storage_of_tensor[t]];
      DOVETAIL_CHECK(
          layout.home[t] < 0 || static_cast<int64_t>(found_storage(t).nbytes()) == captured.bytes,
          "{} has changed its size since the capture", captured.name);
      if (layout.home[t] >= 0 && !device->fills_regions_on_write())
        saved[t] = save(found_storage(t));
    }
    device->wait();
    for (size_t t = 0; t < address.size(); ++t)
      if (saved[t].defined()) found_storage(t).set_data_ptr_noswap(at(nullptr));
    try {
      arena = device->region(layout.bytes);
    } catch (...) {
      for (size_t t = 0; t < address.size(); ++t)
        if (saved[t].defined()) give_own_memory(t, saved[t].data_ptr());
      device->wait();
      throw;
    }
    for (const int t : plan.starts_on_host)
      between_steps[t] = streams->slow_tier() + host_offset[t];
    int64_t moved_bytes = 0;  // since freed memory was given back
    device->give_back_freed();
    for (size_t t = 0; t < address.size(); ++t) {
      if (layout.home[t] >= 0) between_steps[t] = address[t] = arena->data() + layout.home[t];
      if (between_steps[t] == nullptr) continue;
      const CapturedStorage& captured = step.storages[graph.storage_of_tensor[t]];
      const c10::Storage& storage = captured.external.storage();
      device->copy(between_steps[t], saved[t].defined() ? saved[t].data_ptr() : storage.data(),
                   storage.nbytes());
      storage.set_data_ptr_noswap(at(between_steps[t]));
      moved_bytes += captured.bytes;
      if (moved_bytes < kMovedAtOnce) continue;
      device->give_back_freed();
      moved_bytes = 0;
    }
    device->wait();
    device->give_back_freed();
  }

  /// Moves tensors out of the arena one by one, so that they are never all held twice. If the arena
  /// cannot be given back in parts, they wait in the CPU's memory.
  void give_back() {
    if (!arena) return;
    std::vector<at::Tensor> saved(between_steps.size());
    std::vector<size_t> moved;
    for (size_t t = 0; t < between_steps.size(); ++t)
      if (between_steps[t] != nullptr && found_storage(t).data() == between_steps[t])
        moved.push_back(t);  // otherwise another plan has it
    if (device->fills_regions_on_write()) {
      arena->drop_all_but(homes());
    } else {
      streams.reset();  // waits for copies of a step that has failed
      for (const size_t t : moved) saved[t] = save(found_storage(t));
      device->wait();
      arena.reset();
    }
    for (const size_t t : moved) {
      give_own_memory(t, saved[t].defined() ? saved[t].data_ptr() : between_steps[t]);
      if (arena && layout.home[t] >= 0)
        arena->drop(layout.home[t], tensor(static_cast<int>(t)).bytes);
    }
    device->wait();
  }

  /// Moves a tensor that the step found to memory of its own, with the values at `from`.
  void give_own_memory(size_t t, const void* from) {
    const c10::Storage& storage = found_storage(t);
    c10::DataPtr own = device->own_memory(storage.nbytes(), options.folder);
    device->copy(own.get(), from, storage.nbytes());
    storage.set_data_ptr_noswap(std::move(own));
  }

  /// Returns a copy of a storage in the CPU's memory, complete after StepDevice::wait.
  at::Tensor save(const c10::Storage& storage) const {
    at::Tensor bytes = at::empty({static_cast<int64_t>(storage.nbytes())}, at::kByte);
    device->copy(bytes.data_ptr(), storage.data(), storage.nbytes());
    return bytes;
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
    user_check(plan.starts_on_host.empty() || device->device().is_cpu(),
               "plan: {} starts the step in host memory, which a GPU cannot update",
               plan.starts_on_host.empty() ? "" : tensor(plan.starts_on_host[0]).id);
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
    streams->compute_begins(a);
    codec_of[action.tensor] = action.codec;
    packed[action.tensor] = arena->data() + layout.result[a];
    const PackedForm& form = graph.forms[action.codec];
    pack(form, address[action.tensor], elements(action.tensor, form), packed[action.tensor]);
    streams->compute_ends(a);
  }

  void decompress(int a) {
    streams->compute_begins(a);
    const int t = plan.actions[a].tensor;
    address[t] = arena->data() + layout.result[a];
    const PackedForm& form = graph.forms[codec_of[t]];
    unpack(form, packed[t], elements(t, form), address[t]);
    streams->compute_ends(a);
  }

  /// Makes computing wait for the data of a tensor that was fetched.
  void await_data(int t) {
    if (fetch_of[t] >= 0) streams->await(fetch_of[t]);
    fetch_of[t] = -1;
  }

  void begin_compute(int a) {
    const Action& action = plan.actions[a];
    const GraphNode& described = graph.graph.nodes[action.node];
    for (const auto* list : {&described.inputs, &described.mutates})
      for (const int t : *list) await_data(t);
    for (const int t : described.algorithms[action.algorithm].on_host) {
      if (offload_of[t] >= 0) streams->await(offload_of[t]);
      address[t] = streams->slow_tier() + host_offset[t];
    }
    streams->compute_begins(a);
    for (size_t i = 0; i < described.outputs.size(); ++i)
      address[described.outputs[i]] = arena->data() + layout.outputs[a][i];
    workspace = layout.result[a] < 0 ? nullptr : arena->data() + layout.result[a];
    at::Generator generator = random_generator();
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
      at::Generator generator = random_generator();
      generator.set_state(*random_after);
    }
    random_after.reset();
    ++runs[plan.actions[a].node];
    streams->compute_ends(a);
  }

  at::Generator random_generator() const {
    return at::globalContext().defaultGenerator(device->device());
  }

  void compute(int a) {
    begin_compute(a);
    for (size_t o = 0; o < how->operations.size(); ++o) call_planned(o);
    end_compute(a);
  }

  /// Calls operation `o` of the node that runs, and returns its results.
  torch::jit::Stack call_planned(size_t o) {
    const std::vector<PlannedPlace> places = places_of(how->memory.places[o]);
    const PlannedAllocations planned(how->operations[o].name, places, device->device().type());
    torch::jit::Stack results = call(how->operations[o], [this](int s) {
      if (const auto found = elsewhere.find(s); found != elsewhere.end()) return found->second;
      std::byte* address = address_of(s);
      if (address == nullptr && step.storages[s].external.defined())
        return step.storages[s].external.storage();
      // 0: the storage has no bytes
      return storage_at(address, address == nullptr ? 0 : step.storages[s].bytes, device->device());
    });
    keep_what_is_elsewhere(how->operations[o], results);
    return results;
  }

  /// Keeps the storages that an operation made on another device.
  void keep_what_is_elsewhere(const CapturedOperation& operation,
                              const torch::jit::Stack& results) {
    for (size_t i = 0; i < operation.makes.size(); ++i) {
      if (!step.storages[operation.makes[i]].elsewhere) continue;
      const c10::IValue& result = results[operation.makes_result[i]];
      const auto before = std::count(operation.makes_result.begin(),
                                     operation.makes_result.begin() + static_cast<int64_t>(i),
                                     operation.makes_result[i]);
      keep_elsewhere(operation.makes[i], result.isTensorList()
                                             ? result.toTensorVector().at(before).storage()
                                             : result.toTensor().storage());
    }
  }

  void keep_elsewhere(int storage, c10::Storage made) override {
    elsewhere.insert_or_assign(storage, std::move(made));
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
      if (storage.data() != between_steps[t]) storage.set_data_ptr_noswap(at(between_steps[t]));
    }
  }

  /// Makes computing wait for the copies that must end before an action.
  void wait_before(int a) {
    for (const int wait : copies_before(a)) streams->await(wait);
  }

  /// Returns actions with a copy that must end before the copy of `a`.
  std::vector<int> copies_before(int a) const {
    std::vector<int> out = plan.actions[a].waits;
    out.insert(out.end(), layout.waits[a].begin(), layout.waits[a].end());
    return out;
  }

  void advance(int a) {
    const Action& action = plan.actions[a];
    const int t = action.tensor;
    switch (action.op) {
      case Op::kCompute:
        wait_before(a);
        compute(a);
        break;
      case Op::kOffload: {
        std::vector<int> waits = copies_before(a);
        if (fetch_of[t] >= 0) waits.push_back(fetch_of[t]);
        streams->offload(a, {.address = address[t],
                             .offset = host_offset[t],
                             .bytes = tensor(t).bytes,
                             .waits = std::move(waits)});
        offload_of[t] = a;
        break;
      }
      case Op::kPrefetch: {
        address[t] = arena->data() + layout.result[a];
        std::vector<int> waits = copies_before(a);
        if (offload_of[t] >= 0) waits.push_back(offload_of[t]);
        streams->prefetch(a, {.address = address[t],
                              .offset = host_offset[t],
                              .bytes = tensor(t).bytes,
                              .waits = std::move(waits)});
        fetch_of[t] = a;
        break;
      }
      case Op::kCompress:
        wait_before(a);
        compress(a);
        break;
      case Op::kDecompress:
        wait_before(a);
        decompress(a);
        break;
      case Op::kFree:
      case Op::kFreeHost:
      case Op::kFreePacked:
        wait_before(a);
        break;
    }
    if (options.copies_alone) streams->await(a);
  }

  void begin(bool timed) {
    user_check(!failed, "plan: the step cannot go on after the error of the last one");
    check_places();
    failed = true;
    if (guide) guide->release_held();
    fetch_of.assign(address.size(), -1);
    offload_of.assign(address.size(), -1);
    runs.assign(graph.nodes.size(), 0);
    next_action = 0;
    started_s = now_seconds();
    streams->begin(plan.actions.size(), timed);
  }

  /// Runs the rest of the plan.
  Run finish() {
    while (static_cast<size_t>(next_action) < plan.actions.size()) advance(next_action++);
    std::vector<Timeline::Span> spans = streams->end();
    how.reset();
    elsewhere.clear();
    const double seconds = now_seconds() - started_s;
    failed = false;
    return {seconds, std::move(spans)};
  }

  double started_s = 0;
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
  s.device = &step_device(s.step.device);
  s.find_host_slots();
  s.streams = s.device->streams(options.folder, s.host_bytes);
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
  try {
    if (state_->guide) state_->guide->release_held();
    state_->guide.reset();
    state_->give_back();
  } catch (const std::exception& error) {  // a GPU that has failed; its error is on its way
    log_warning("plan: tensors of the step are lost: {}", error.what());
  }
}

Executor::Run Executor::run(bool timed) {
  state_->begin(timed);
  return state_->finish();
}

Executor::Run Executor::run(const std::function<void()>& work, const CallChecks& checks,
                            bool timed) {
  State& s = *state_;
  if (!s.guide) {
    s.check_can_be_called();
    s.guide.emplace(s.step, s);
  }
  s.begin(timed);
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
    DOVETAIL_CHECK(t >= 0, "{} is not in the plan's memory",
                   state_->step.storages[use.storage].name);
    out.push_back(
        tensor_of(use, storage_at(state_->address[t], state_->step.storages[use.storage].bytes,
                                  state_->step.device)));
  }
  return out;
}

int64_t Executor::arena_bytes() const { return state_->layout.bytes; }
int64_t Executor::resident_bytes() const {
  return std::max(state_->released_resident_bytes, state_->arena->resident_bytes());
}
void Executor::release_scratch() {
  State& s = *state_;
  if (!s.device->fills_regions_on_write()) return;
  if (s.guide) s.guide->release_held();  // tensors that a checked step of a replay still holds
  s.released_resident_bytes = resident_bytes();
  s.arena->drop_all_but(s.homes());
}
const Timeline& Executor::predicted() const { return state_->timeline; }

}  // namespace dovetail::plan
