// ctest-labels: cuda
// Planned steps on a GPU, against the same steps without a plan.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/gpu.h"
#include "dovetail/plan/device/planned_allocator.h"
#include "dovetail/plan/device/step_device.h"
#include "dovetail/plan/record/algorithms.h"
#include "dovetail/plan/record/capture.h"
#include "dovetail/plan/run/executor.h"
#include "dovetail/plan/run/profile.h"
#include "dovetail/plan/solve/memory_floor.h"
#include "dovetail/plan/solve/placed.h"
#include "dovetail/plan/step/planned_step.h"
#include "tests/plan/small_step.h"

namespace dovetail::plan::cuda_planned_step_test {
namespace {

constexpr int kSteps = 20;
constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kBatch = 256;

class CudaPlannedStep : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = load_gpu(); !reason.empty()) GTEST_SKIP() << reason;
    at::globalContext().setDeterministicCuDNN(true);
    at::globalContext().setAllowTF32CuDNN(false);
    device_ = &step_device({c10::kCUDA, 0});
  }
  const StepDevice* device_ = nullptr;
};

TEST_F(CudaPlannedStep, AFingerprintTellsEachByteAndItsPlaceApart) {
  const at::Tensor room = at::zeros({4096 + 16}, at::TensorOptions(at::kByte).device(at::kCUDA));
  for (const int64_t bytes : {1, 7, 8, 16, 17, 255, 4096}) {
    const at::Tensor x = room.narrow(0, 0, bytes);
    const uint64_t zeros = device_->fingerprint(x.data_ptr(), bytes);
    std::vector<uint64_t> seen = {zeros};
    for (int64_t at = 0; at < bytes; at += std::max<int64_t>(bytes / 16, 1)) {
      x[at].fill_(1);
      seen.push_back(device_->fingerprint(x.data_ptr(), bytes));
      x[at].fill_(0);
    }
    EXPECT_EQ(device_->fingerprint(x.data_ptr(), bytes), zeros);
    std::ranges::sort(seen);
    EXPECT_EQ(std::ranges::adjacent_find(seen), seen.end()) << bytes;
  }
  // A copy at an address that is no multiple of 16 is read in another way.
  const at::Tensor values = at::randint(256, {4096}, room.options());
  const at::Tensor moved = room.narrow(0, 3, 4096);
  moved.copy_(values);
  EXPECT_EQ(device_->fingerprint(moved.data_ptr(), 4096),
            device_->fingerprint(values.data_ptr(), 4096));
}

TEST_F(CudaPlannedStep, AnOperationGetsItsPlannedPlaces) {
  const auto region = device_->region(kMiB);
  const at::Tensor x = at::ones({256}, at::kCUDA);
  const std::string name = "aten::add";
  const std::vector<PlannedPlace> places = {{region->data() + 4096, 1024}};
  const int64_t before = device_->held_bytes();
  at::Tensor y;
  {
    const PlannedAllocations planned(name, places, c10::DeviceType::CUDA);
    y = x + 1;
    EXPECT_THROW(x + 2, UserError) << "no place is left";
  }
  EXPECT_EQ(y.data_ptr(), region->data() + 4096);
  EXPECT_EQ(device_->held_bytes(), before);
  EXPECT_TRUE(y.cpu().equal(at::full({256}, 2.0F)));
}

struct Observer : AllocationObserver {
  void allocated(void*, int64_t bytes) override { sizes.push_back(bytes); }
  void freed(void*) override { ++frees; }
  std::vector<int64_t> sizes;
  int frees = 0;
};

TEST_F(CudaPlannedStep, AnObserverSeesTheRequestedSizes) {
  Observer seen;
  at::Tensor kept;
  {
    const ObservedAllocations observed(seen);
    at::empty({100}, at::kCUDA);
    kept = at::empty({1000}, at::kCUDA);
  }
  EXPECT_THAT(seen.sizes, ::testing::ElementsAre(400, 4000));
  EXPECT_EQ(seen.frees, 1);
  kept.reset();  // after its observation
}

TEST_F(CudaPlannedStep, CopiesComeBack) {
  const auto region = device_->region(4 * kMiB);
  const auto streams = device_->streams({}, 4 * kMiB);
  const at::Tensor values = at::randn({kMiB}, at::kCUDA);
  const auto bytes = static_cast<int64_t>(values.nbytes());
  device_->copy(region->data(), values.data_ptr(), values.nbytes());
  const at::Tensor zeros = at::zeros_like(values), found = at::empty_like(values);
  for (const bool timed : {true, false}) {
    streams->begin(3, timed);
    streams->offload(0, {.address = region->data(), .bytes = bytes});
    streams->await(0);
    streams->compute_begins(1);
    device_->copy(region->data(), zeros.data_ptr(), zeros.nbytes());
    streams->compute_ends(1);
    streams->prefetch(2, {.address = region->data(), .bytes = bytes, .waits = {0}});
    streams->await(2);
    device_->copy(found.data_ptr(), region->data(), values.nbytes());
    const auto spans = streams->end();
    EXPECT_TRUE(found.equal(values));
    ASSERT_EQ(spans.size(), timed ? 3u : 0u);
    for (size_t i = 1; i < spans.size(); ++i)
      EXPECT_GE(spans[i].start_s, spans[i - 1].end_s - 1e-5) << i;
  }
}

struct Trained {
  std::vector<at::Tensor> losses, values;
};

/// Runs 20 steps; each has another batch. `run` returns the loss.
Trained train_by(SmallStep& step, const std::function<at::Tensor()>& run) {
  Trained out;
  at::manual_seed(5);
  for (int i = 0; i < kSteps; ++i) {
    step.new_batch(i);
    out.losses.push_back(run().cpu());
  }
  for (const at::Tensor& value : step.values()) out.values.push_back(value.cpu());
  return out;
}

void expect_same_bits(const Trained& a, const Trained& b) {
  for (int i = 0; i < kSteps; ++i) EXPECT_TRUE(a.losses[i].equal(b.losses[i])) << "step " << i;
  for (size_t i = 0; i < a.values.size(); ++i) EXPECT_TRUE(a.values[i].equal(b.values[i])) << i;
}

/// PlannedStep of a SmallStep on the GPU, which writes its loss to `loss`.
class PlannedSmallStep {
 public:
  explicit PlannedSmallStep(PlannedStep::Options options)
      : planned_([this](const std::vector<at::Tensor>&) { loss_.copy_(step_().front()); },
                 [this] {
                   StepTensors tensors = step_.tensors();
                   tensors.state.emplace_back("loss", loss_);
                   for (auto& input : tensors.inputs) tensors.state.push_back(input);
                   tensors.inputs.clear();
                   return tensors;
                 },
                 std::move(options)) {}

  SmallStep& step() { return step_; }
  const PlannedStep& planned() const { return planned_; }
  at::Tensor run() {
    planned_.run({}, {});
    return loss_;
  }

 private:
  SmallStep step_ = SmallStep(kBatch, at::kCUDA);
  at::Tensor loss_ = at::zeros({}, at::kCUDA);
  PlannedStep planned_;
};

/// Returns a budget between the floor for these techniques and the peak with everything kept.
std::string budget_above_the_floor(PlannedStep::Options options) {
  options.budget = "1x";
  PlannedSmallStep looked(options);
  for (int i = 0; i < 3; ++i) looked.run();
  const Graph& graph = looked.planned().graph();
  const auto how = PlannedStep::solve_options(options, {c10::kCUDA, 0});
  const int64_t floor = placed_floor_of(graph, how).bytes, kept = keep_all_bytes(graph);
  EXPECT_LT(floor, kept);
  return std::to_string((floor + kept) / 2);
}

TEST_F(CudaPlannedStep, GivesTheSameBitsWithinItsBudget) {
  const Trained expected = [] {
    SmallStep eager(kBatch, at::kCUDA);
    return train_by(eager, [&] { return eager().front(); });
  }();
  for (const bool replay : {false, true})
    for (const bool offload : {true, false}) {
      SCOPED_TRACE(std::string(replay ? "replayed" : "called") + (offload ? ", offload" : ""));
      PlannedStep::Options options{.budget = "1x",
                                   .offload = offload,
                                   .recompute = !offload,
                                   .solve_s = 1,
                                   .replay = replay};
      options.budget = budget_above_the_floor(options);
      const int64_t beside_bytes = device_->held_bytes();  // such as cuBLAS's workspaces
      PlannedSmallStep small(options);
      int64_t most_bytes = 0;
      const Trained trained = train_by(small.step(), [&] {
        const bool by_plan = small.planned().report().has_value();
        device_->reset_peak();
        const at::Tensor loss = small.run();
        if (by_plan) most_bytes = std::max(most_bytes, device_->peak_held_bytes() - beside_bytes);
        return loss;
      });
      expect_same_bits(trained, expected);
      ASSERT_TRUE(small.planned().report().has_value());
      const MemoryPlanReport& report = *small.planned().report();
      EXPECT_LE(report.step_bytes, report.budget_bytes);
      EXPECT_LT(report.budget_bytes, report.keep_all_bytes);
      EXPECT_GT(offload ? report.offloaded_bytes : report.again_bytes, 0);
      EXPECT_LE(most_bytes, report.budget_bytes + 2 * kMiB) << "torch rounds up to 2 MiB";
    }
}

TEST_F(CudaPlannedStep, EachConvolutionRunsByCudnnsAlgorithmThatThePlanNames) {
  SmallStep eager(kBatch, at::kCUDA), step(kBatch, at::kCUDA);
  const auto loss_of = [](SmallStep& of, const std::function<at::Tensor()>& run) {
    at::manual_seed(9);
    of.new_batch(3);
    return run().item<double>();
  };
  step();
  eager();
  const CapturedStep captured = capture([&] { return step(); }, step.tensors());
  step.set(eager.values());
  const double expected = loss_of(eager, [&] { return eager().front(); });
  const std::vector<at::Tensor> start = step.values();
  StepGraph graph = graph_of(captured);
  ProfileCache cache(std::filesystem::path{});
  add_convolution_algorithms(captured, graph, cache);
  graph.graph.budget_bytes = int64_t{1} << 40;
  size_t most = 0;
  for (const GraphNode& node : graph.graph.nodes) most = std::max(most, node.algorithms.size());
  EXPECT_GT(most, 2u);
  for (size_t a = 1; a < most; ++a) {
    Plan plan = keep_all(graph.graph);
    std::string names;
    for (Action& action : plan.actions) {
      if (action.op != Op::kCompute) continue;
      const auto& algorithms = graph.graph.nodes[action.node].algorithms;
      action.algorithm = static_cast<int>(std::min(a, algorithms.size() - 1));
      if (action.algorithm > 0) names += algorithms[action.algorithm].name + "; ";
    }
    SCOPED_TRACE(names);
    step.set(start);
    Executor executor(captured, graph, plan, {});
    EXPECT_NEAR(loss_of(step,
                        [&] {
                          executor.run();
                          return executor.results().front();
                        }),
                expected, 1e-3);
  }
}

TEST_F(CudaPlannedStep, RefusesAFolder) {
  SmallStep step(8, at::kCUDA);
  PlannedStep planned([&](const std::vector<at::Tensor>&) { step(); },
                      [&] { return step.tensors(); },
                      {.budget = "0.7x", .folder = ::testing::TempDir()});
  try {
    planned.run({}, {});
    ADD_FAILURE() << "the folder is ignored";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("folder does not work on a GPU"));
  }
}

}  // namespace
}  // namespace dovetail::plan::cuda_planned_step_test
