#include "dovetail/plan/step/planned_step.h"

#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/kept_memory.h"
#include "dovetail/ops/simd_level.h"
#include "dovetail/plan/device/step_device.h"
#include "dovetail/plan/model/budget.h"
#include "dovetail/plan/model/packing.h"
#include "dovetail/plan/record/algorithms.h"
#include "dovetail/plan/record/packable.h"
#include "dovetail/plan/record/profile_cache.h"
#include "dovetail/plan/record/step_graph.h"
#include "dovetail/plan/run/executor.h"
#include "dovetail/plan/run/host_updates.h"
#include "dovetail/plan/run/profile.h"
#include "dovetail/plan/show/outcome.h"
#include "dovetail/plan/solve/memory_floor.h"
#include "dovetail/plan/solve/placed.h"
#include "dovetail/plan/step/input_sizes.h"

namespace dovetail::plan {
namespace {

constexpr const char* kOneSize =
    "leave out a last batch that is smaller, or fill it up with rows whose loss is not counted. "
    "PlannedStep::Options::other_sizes runs or plans other sizes";
constexpr double kAssumedBytesPerS = 1e9;
constexpr int kRecordedSteps = 3;
constexpr int kProfiledSteps = 4;  // the first one is a warm-up
constexpr int kOtherSteps = 8;     // steps of other sizes in a row that make a new plan
constexpr int64_t kMeasuredCopyBytes = int64_t{128} << 20;
constexpr int kMeasuredCopies = 3;
constexpr int64_t kMeasuredPackingBytes = int64_t{16} << 20;
constexpr int kMeasuredPackings = 3;
constexpr double kFirstPlan = 0.25;   // share of solve_s for the first plan
constexpr double kShareOfCurve = 30;  // each budget of the curve gets 1/30 of solve_s

/// Bytes by which memory has grown since `before`.
int64_t grown_bytes(int64_t now, uint64_t before) {
  return std::max<int64_t>(now - static_cast<int64_t>(before), 0);
}

/// Bytes of the tensors that are on a device.
int64_t bytes_on(c10::Device device, const StepTensors& tensors) {
  int64_t bytes = 0;
  for (const auto* list : {&tensors.inputs, &tensors.parameters, &tensors.state})
    for (const auto& [name, tensor] : *list)
      if (tensor.device() == device) bytes += static_cast<int64_t>(tensor.storage().nbytes());
  return bytes;
}

}  // namespace

struct PlannedStep::State {
  Work work;
  Tensors tensors;
  Options options;
  std::vector<at::Tensor> inputs;  // inputs of every step, at fixed addresses
  std::vector<std::pair<std::string, at::Tensor>> named_inputs;
  Constants constants;
  int steps = 0;
  const StepDevice* device = &cpu_step_device();
  int64_t beside_bytes = 0;  // held on a GPU beside the tensors of the step before the first step
  std::optional<CapturedStep> captured;
  StepGraph graph;
  Plan plan;
  std::vector<Executor::Run> profiled;
  std::optional<Executor> executor;
  double solved_s = 0;
  std::optional<MemoryPlanReport> report;
  std::vector<TradeOff> curve;
  std::vector<Executor::Run> runs;  // the first kMeasuredSteps runs by the final plan
  int64_t planned_steps = 0;        // number of steps by either plan

  InputSizes other;     // sizes of the last step, if the plan is for others
  int other_steps = 0;  // number of last steps with these sizes

  bool is_for(const InputSizes& given) const {
    return given == InputSizes(named_inputs, constants);
  }

  /// Returns true if kOtherSteps steps in a row have had these sizes, this one included.
  bool has_become(InputSizes given) {
    other_steps = given == other ? other_steps + 1 : 1;
    other = std::move(given);
    return other_steps == kOtherSteps;
  }

  LaterSteps later() const { return options.replay ? LaterSteps::kReplayed : LaterSteps::kCalled; }

  Executor::Run run_planned() {
    const bool checked = options.check_steps > 0 && planned_steps++ % options.check_steps == 0;
    const bool timed = !report || runs.size() < kMeasuredSteps;
    if (options.replay && !checked) return executor->run(timed);
    return executor->run([this] { work(inputs); },
                         {.same_numbers = options.replay, .writes = checked}, timed);
  }

  void take(const Inputs& given, const Constants& numbers) {
    if (steps == 0) {
      constants = numbers;
      for (const auto& [name, tensor] : given) {
        inputs.push_back(at::empty_like(tensor));
        named_inputs.emplace_back(name, inputs.back());
      }
    }
    for (size_t i = 0; i < numbers.size(); ++i)
      if (numbers[i] != constants.at(i))
        throw UserError(
            fmt::format("{}budget: a step has {} {}, but its plan is for {}", options.prefix,
                        numbers[i].first, numbers[i].second, constants[i].second),
            kOneSize);
    DOVETAIL_CHECK(given.size() == inputs.size(), "{} inputs became {}", inputs.size(),
                   given.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      const auto& [name, tensor] = given[i];
      DOVETAIL_CHECK(name == named_inputs[i].first, "input {} became {}", named_inputs[i].first,
                     name);
      if (tensor.sizes() != inputs[i].sizes() || tensor.scalar_type() != inputs[i].scalar_type())
        throw UserError(
            fmt::format("{}budget: a step has {} {}, but its plan is for {}", options.prefix, name,
                        ops::describe(tensor), ops::describe(inputs[i])),
            kOneSize);
      inputs[i].copy_(tensor);
    }
  }

  RecordingLimit limit() const {
    // The CPU's allocator keeps a part of what is freed (base/kept_memory.h).
    const auto within = [cpu = device->device().is_cpu()](int64_t bytes) {
      return cpu ? within_kept(bytes) : bytes;
    };
    if (!captured)
      return {.bytes = [this, within](int64_t keep_all_bytes) {
        return within(parse_budget(options.budget, keep_all_bytes));
      }};
    const int64_t bytes = within(parse_budget(options.budget, kept().peak_bytes));
    return {.bytes = [bytes](int64_t) { return bytes; }, .previous = &*captured};
  }

  CapturedStep run_recorded(const Inputs& given, LaterSteps how) const {
    StepTensors used = tensors();
    used.inputs = given;
    std::vector<at::Tensor> values;
    for (const auto& [name, tensor] : given) values.push_back(tensor);
    return record_step(
        [&] {
          work(values);
          return std::vector<at::Tensor>();
        },
        used, how, limit());
  }

  /// Runs a step of other sizes within the budget. The plan's tensors leave its memory meanwhile,
  /// so that the budget holds.
  void run_without_plan(const Inputs& given) {
    const bool planned = executor.has_value();
    executor.reset();
    run_recorded(given, LaterSteps::kNone);
    if (planned) execute(/*copies_alone=*/!report);
  }

  /// Makes the executor of `plan`.
  void execute(bool copies_alone) {
    executor.emplace(*captured, graph, plan,
                     Executor::Options{.folder = options.folder, .copies_alone = copies_alone});
  }

  /// Records a step. The first recording only finds the memory limit, because gradients and moments
  /// are made in it.
  void record() {
    const LaterSteps how = steps == 1 ? LaterSteps::kNone : later();
    CapturedStep step = run_recorded(named_inputs, how);
    if (steps == kRecordedSteps) check_steady(*captured, step, how);
    if (!device->device().is_cpu()) step.held_bytes += workspaces_bytes();
    captured = std::move(step);
    graph = graph_allowing(options);
    // Without algorithms, or with workspaces that a GPU's libraries then keep, the first step's
    // graph may need more than later ones.
    if (steps == 1 && options.refuse_at_once && !options.algorithms && device->device().is_cpu())
      check_floor();
  }

  /// Sets the budget in bytes, and throws UserError if no plan can meet it.
  void check_floor() {
    graph.graph.budget_bytes = parse_budget(options.budget, kept().peak_bytes);
    const SolveOptions how = solve_options(options, device->device());
    const int64_t budget = graph.graph.budget_bytes;
    const Floor floor = floor_for_budget(graph.graph, how, budget);
    if (budget < floor.bytes)
      throw below_floor(graph.graph, floor, options.prefix + "budget",
                        fmt::format("raise the budget or lower the batch{}{}",
                                    what_would_lower(floor), options.floor_help));
  }

  /// Finds the device of the step and refuses options that do not work there.
  void find_device() {
    const StepTensors used = tensors();
    for (const auto& [name, tensor] : used.parameters)
      if (tensor.defined()) device = &step_device(tensor.device());
    if (device->device().is_cpu()) return;
    if (!options.folder.empty())
      throw UserError(fmt::format("{}folder does not work on a GPU, which offloads to the CPU's "
                                  "memory",
                                  options.prefix),
                      "leave it out");
    options.compress = options.compress_mxfp8 = false;
    user_check(!options.host_bytes || options.offload,
               "{}host_bytes limits offloaded tensors, but {}allow has no \"offload\"",
               options.prefix, options.prefix);
    beside_bytes = held_beside_the_step();
  }

  /// Returns the bytes that the process holds on the device beside the tensors of the step.
  int64_t held_beside_the_step() const {
    StepTensors used = tensors();
    used.inputs = named_inputs;
    return device->held_bytes() - bytes_on(device->device(), used);
  }

  /// Returns the bytes that libraries have allocated on a GPU in the recorded steps, and keep.
  int64_t workspaces_bytes() const {
    return std::max<int64_t>(held_beside_the_step() - beside_bytes, 0);
  }

  /// Returns the recorded step's graph with the techniques that are allowed. `timed`: measure
  /// algorithms of convolutions; a floor needs no times.
  StepGraph graph_allowing(const Options& allowed, bool timed = true) const {
    StepGraph out = graph_of(*captured);
    if (allowed.algorithms && steps >= kRecordedSteps) add_algorithms(out, timed);
    if (allowed.compress) allow_same_codes(*captured, out);
    if (allowed.compress_mxfp8) allow_loss(*captured, out);
    if (allowed.offload && allowed.folder.empty() && device->device().is_cpu())
      add_host_updates(*captured, out);
    out.graph.host_bytes = allowed.host_bytes;
    // Rates are assumed until they are measured.
    out.graph.bandwidth = {.to_host = kAssumedBytesPerS, .to_device = kAssumedBytesPerS};
    for (Codec& codec : out.graph.codecs)
      codec.encode_bytes_per_s = codec.decode_bytes_per_s = kAssumedBytesPerS;
    return out;
  }

  /// Adds algorithms of convolutions whose runs on zeros, beside everything that is there between
  /// steps, stay within the budget.
  void add_algorithms(StepGraph& out, bool timed) const {
    const int64_t budget = parse_budget(options.budget, keep_all_bytes(out.graph));
    int64_t there = out.graph.base_bytes;
    for (const GraphTensor& tensor : out.graph.tensors)
      if (tensor.alias_of < 0 && resident_at_start(tensor.kind)) there += tensor.bytes;
    ProfileCache cache(options.plans.empty() ? "" : ProfileCache::default_folder());
    add_convolution_algorithms(*captured, out, cache, budget - there);
    if (timed) {
      time_on_zeros(*captured, out, cache);
      drop_dominated(out);
    }
    cache.save();
    device->give_back_freed();
  }

  Timeline kept() const {
    Graph unlimited = graph.graph;
    unlimited.budget_bytes = std::numeric_limits<int64_t>::max();
    return check(unlimited, keep_all(unlimited));
  }

  PlacedSolution solve(double time_limit_s) {
    SolveOptions how = solve_options(options, device->device());
    how.time_limit_s = time_limit_s;
    PlacedSolution made = solve_placed(graph.graph, how, PlanCache(options.plans));
    plan = made.solution.schedule.plan;
    solved_s += made.solution.seconds;
    return made;
  }

  std::string what_would_lower(const Floor& floor) const {
    std::string out;
    for (const auto& [name, allowed] : kTechniques) {
      const bool compresses = allowed == &Options::compress || allowed == &Options::compress_mxfp8;
      if (options.*allowed || (compresses && !device->device().is_cpu())) continue;
      Options more = options;
      more.*allowed = true;
      if (more.folder.empty() && device->device().is_cpu()) more.folder = "FOLDER";
      if (floor_of(graph_allowing(more, /*timed=*/false).graph,
                   solve_options(more, device->device()))
              .bytes >= floor.bytes)
        continue;
      out += out.empty() ? "; " : " or ";
      std::string names;  // a list replaces the default, so it has what is allowed now, too
      for (const auto& [other, its_allowed] : kTechniques)
        if (other == name || (options.*its_allowed && its_allowed != &Options::offload))
          names += fmt::format("{}\"{}\"", names.empty() ? "" : ", ", other);
      const bool by_folder = allowed == &Options::offload && device->device().is_cpu();
      out += options.prefix + (by_folder ? "folder" : fmt::format("allow = [{}]", names));
    }
    return out.empty() ? out : out + " would lower the floor";
  }

  void run_profiled() {
    if (profiled.empty()) {
      check_floor();
      const int64_t budget = graph.graph.budget_bytes;
      if (options.offload)
        graph.graph.bandwidth = device->bandwidth(
            options.folder, std::min(kMeasuredCopyBytes, budget / 2), kMeasuredCopies);
      measure_codecs(graph, std::min(kMeasuredPackingBytes, budget / 2), kMeasuredPackings);
      solve(kFirstPlan * options.solve_s);
      execute(/*copies_alone=*/true);
    }
    profiled.push_back(run_planned());
  }

  void make_plan() {
    set_times(graph.graph, plan, std::span(profiled).subspan(1));
    limit_bandwidth(graph.graph, plan, std::span(profiled).subspan(1));
    share_times(graph.graph, plan);
    executor.reset();  // frees the arena, because solving takes memory, too
    const Timeline all = kept();
    const PlacedSolution placed = solve(options.solve_s);
    const Solution& solution = placed.solution;
    SolveOptions quick = solve_options(options, device->device());
    quick.time_limit_s /= kShareOfCurve;
    const int64_t floor_bytes =
        placed_floor_bytes(graph.graph, solve_options(options, device->device()), placed);
    if (options.curve_budgets > 0)
      curve =
          trade_off(graph.graph, quick, floor_bytes, all.peak_bytes, options.curve_budgets, placed);
    const PlanOutcome outcome = outcome_of(graph.graph, plan, solution.schedule.timeline);
    MemoryPlanReport made{.budget_bytes = graph.graph.budget_bytes,
                          .keep_all_bytes = all.peak_bytes,
                          .floor_bytes = floor_bytes,
                          .offloaded_bytes = outcome.to_host_bytes,
                          .again_bytes = outcome.again_bytes,
                          .on_host_bytes = outcome.on_host_bytes,
                          .nodes = static_cast<int>(graph.nodes.size()),
                          .predicted_s = solution.schedule.expected_s,
                          .keep_all_s = all.makespan_s,
                          .solve_s = solved_s,
                          .search = placed.report,
                          .bandwidth = graph.graph.bandwidth};
    for (const PackedOutcome& packed : outcome.packed) {
      made.compressed_bytes += packed.bytes;
      made.packed_bytes += packed.packed_bytes;
    }
    execute(/*copies_alone=*/false);
    options.paged.reset();
    made.step_bytes = executor->arena_bytes() + graph.graph.base_bytes;
    if (options.idle_bytes > 0) {
      const int64_t beside =
          grown_bytes(device->held_bytes(), options.idle_bytes) - executor->resident_bytes();
      made.process_bytes = executor->arena_bytes() + std::max<int64_t>(beside, 0);
    }
    DOVETAIL_CHECK(made.step_bytes <= made.budget_bytes, "a plan takes {} bytes of a budget of {}",
                   made.step_bytes, made.budget_bytes);
    report = made;
  }
};

nlohmann::ordered_json to_json(const MemoryPlanReport& report) {
  return {{"budget_bytes", report.budget_bytes},
          {"keep_all_bytes", report.keep_all_bytes},
          {"floor_bytes", report.floor_bytes},
          {"step_bytes", report.step_bytes},
          {"offloaded_bytes", report.offloaded_bytes},
          {"again_bytes", report.again_bytes},
          {"on_host_bytes", report.on_host_bytes},
          {"compressed_bytes", report.compressed_bytes},
          {"packed_bytes", report.packed_bytes},
          {"operations", report.nodes},
          {"predicted_s", report.predicted_s},
          {"keep_all_s", report.keep_all_s},
          {"solve_s", report.solve_s},
          {"bound_s", report.search.bound_s},
          {"programs", report.search.programs},
          {"program_columns", report.search.columns},
          {"process_bytes", report.process_bytes},
          {"to_slow_bytes_per_s", report.bandwidth.to_host},
          {"to_fast_bytes_per_s", report.bandwidth.to_device},
          {"slowdown", report.bandwidth.slowdown}};
}

PlannedStep::PlannedStep(Work work, Tensors tensors, Options options)
    : state_(std::make_unique<State>()) {
  parse_budget(options.budget, 1 << 30);  // reports a malformed budget early
  state_->work = std::move(work);
  state_->tensors = std::move(tensors);
  state_->options = std::move(options);
}

PlannedStep::~PlannedStep() = default;

void PlannedStep::run(const Inputs& inputs, const Constants& constants) {
  const OtherSizes other = state_->options.other_sizes;
  if (other != OtherSizes::kRefuse && state_->steps > 0) {
    InputSizes sizes(inputs, constants);
    if (state_->is_for(sizes))
      state_->other_steps = 0;
    else if (other == OtherSizes::kPlanAnew || state_->has_become(std::move(sizes)))
      restart_search();
    else
      return state_->run_without_plan(inputs);
  }
  State& s = *state_;
  s.take(inputs, constants);
  ++s.steps;
  if (s.steps == 1) s.find_device();
  if (s.steps <= kRecordedSteps) return s.record();
  if (s.steps < kRecordedSteps + kProfiledSteps) return s.run_profiled();
  if (s.report) {
    Executor::Run run = s.run_planned();
    if (s.runs.size() < kMeasuredSteps) s.runs.push_back(std::move(run));
    return;
  }
  s.run_profiled();
  s.make_plan();
}

void PlannedStep::restart_search() {
  auto next = std::make_unique<State>();
  next->work = std::move(state_->work);
  next->tensors = std::move(state_->tensors);
  next->options = std::move(state_->options);
  next->options.paged.reset();  // must end before the next one is made
  if (!next->options.folder.empty())
    next->options.paged = std::make_shared<PagedAllocations>(next->options.folder);
  state_ = std::move(next);  // destroys the executor, which moves tensors out of its arena
}

void PlannedStep::release_scratch() {
  if (state_->executor) state_->executor->release_scratch();
}

const std::optional<MemoryPlanReport>& PlannedStep::report() const { return state_->report; }

int64_t PlannedStep::measured_bytes() const {
  DOVETAIL_CHECK(state_->report.has_value(), "there is no plan yet");
  return state_->executor->resident_bytes() + state_->graph.graph.base_bytes;
}

const Graph& PlannedStep::graph() const { return state_->graph.graph; }

bool PlannedStep::records() const { return state_->steps < kRecordedSteps; }

bool PlannedStep::runs_by_plan() const { return !state_->runs.empty(); }

bool PlannedStep::is_measured() const { return state_->runs.size() == kMeasuredSteps; }

PlannedStepView PlannedStep::view() const {
  const State& s = *state_;
  DOVETAIL_CHECK(s.report, "there is no plan yet");
  return {.graph = s.graph.graph,
          .plan = s.plan,
          .timeline = s.executor->predicted(),
          .places_bytes = s.report->step_bytes,
          .used_bytes = measured_bytes(),
          .process_predicted_bytes = s.report->process_bytes,
          .process_bytes = s.options.idle_bytes > 0
                               ? grown_bytes(s.device->peak_held_bytes(), s.options.idle_bytes)
                               : int64_t{0},
          .runs = s.runs,
          .curve = s.curve};
}

SolveOptions PlannedStep::solve_options(const Options& options, c10::Device device) {
  return {.offload = options.offload,
          .recompute = options.recompute,
          .compress = options.compress || options.compress_mxfp8,
          // On a GPU, code outside the step may launch kernels on parameters and state.
          .across_steps = device.is_cpu(),
          .algorithms = true,  // the graph has only those that Options allow
          .least_bytes = step_device(device).least_copied_bytes(),
          .time_limit_s = options.solve_s};
}

std::string PlannedStep::what_would_lower_the_floor() const {
  return state_->what_would_lower(
      floor_of(graph(), solve_options(state_->options, state_->device->device())));
}

void PlannedStep::write(const std::filesystem::path& folder) const {
  if (!state_->report) return;
  write_file_atomically(folder / "graph.json", to_json(state_->graph.graph).dump(1) + "\n");
  write_file_atomically(folder / "plan.json",
                        to_json(state_->plan, state_->graph.graph).dump(1) + "\n");
  nlohmann::ordered_json record = to_json(*state_->report);
  record.update(memory_record(view()));
  write_file_atomically(folder / "memory_plan.json", record.dump() + "\n");
}

}  // namespace dovetail::plan
