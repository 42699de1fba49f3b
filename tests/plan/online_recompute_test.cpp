#include "dovetail/plan/record/online_recompute.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "dovetail/plan/model/budget.h"
#include "dovetail/plan/record/capture.h"

namespace dovetail::plan::online_recompute_test {
namespace {

/// Counts the bytes that tensors hold.
class CountingAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* address = bytes == 0 ? nullptr : c10::alloc_cpu(bytes);
    const std::lock_guard lock(mutex);
    sizes[address] = static_cast<int64_t>(bytes);
    peak = std::max(peak, now += static_cast<int64_t>(bytes));
    c10::profiledCPUMemoryReporter().New(address, bytes);
    return {address, address, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  static CountingAllocator& instance() {
    static auto* const counting = new CountingAllocator;
    static const bool in_use = (c10::SetCPUAllocator(counting, /*priority=*/1), true);
    EXPECT_TRUE(in_use);
    return *counting;
  }

  int64_t now = 0, peak = 0;

 private:
  static void release(void* address) {
    CountingAllocator& self = instance();
    const std::lock_guard lock(self.mutex);
    self.now -= std::exchange(self.sizes[address], 0);
    c10::profiledCPUMemoryReporter().Delete(address);
    c10::free_cpu(address);
  }
  std::mutex mutex;
  std::map<void*, int64_t> sizes;
};

/// Layers with dropout, an in-place activation and a residual path. Their parameters are small
/// compared with activations. With norms, autograd adds to the gradient of the residual path in
/// place.
struct DeepStep {
  static constexpr int kLayers = 24;
  static constexpr int64_t kWidth = 64, kRows = 1024;
  static constexpr int64_t kActivation = kRows * kWidth * 4;

  explicit DeepStep(bool with_norms = false) : with_norms(with_norms) {
    CountingAllocator::instance();
    at::manual_seed(3);
    for (int i = 0; i < kLayers; ++i)
      parameters.emplace_back("w" + std::to_string(i),
                              (at::randn({kWidth, kWidth}) * 0.1).requires_grad_());
    x = at::randn({kRows, kWidth});
  }
  std::vector<at::Tensor> operator()() {
    for (auto& [name, parameter] : parameters) parameter.mutable_grad().reset();
    at::Tensor y = x;
    for (int i = 0; i < kLayers; ++i) {
      at::Tensor h = (with_norms ? at::layer_norm(y, {kWidth}) : y).mm(parameters[i].second);
      h.relu_();
      y = y + at::dropout(h, 0.1, /*train=*/true).tanh();
    }
    const at::Tensor loss = y.square().mean();
    loss.backward();
    const at::NoGradGuard no_grad;
    for (auto& [name, parameter] : parameters) parameter.add_(parameter.grad(), -1e-2);
    losses.push_back(loss.item<double>());
    return {};
  }
  StepTensors tensors() const { return {.inputs = {{"x", x}}, .parameters = parameters}; }

  bool with_norms;
  at::Tensor x;
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  std::vector<double> losses;
};

void expect_same(const DeepStep& a, const DeepStep& b) {
  EXPECT_EQ(a.losses, b.losses);
  for (int i = 0; i < DeepStep::kLayers; ++i)
    EXPECT_TRUE(a.parameters[i].second.equal(b.parameters[i].second)) << i;
}

/// Returns the peak of three eager steps, minus the memory before them.
int64_t eager_bytes(DeepStep& step) {
  CountingAllocator& counted = CountingAllocator::instance();
  const int64_t before = counted.now;
  counted.peak = before;
  for (int i = 0; i < 3; ++i) step();
  return counted.peak - before;
}

RecordingLimit share(const std::string& budget, const CapturedStep* previous = nullptr) {
  return {
      .bytes = [budget](int64_t keep_all_bytes) { return parse_budget(budget, keep_all_bytes); },
      .previous = previous};
}

class OnlineRecomputeShares : public ::testing::TestWithParam<std::tuple<double, bool>> {};

TEST_P(OnlineRecomputeShares, HoldTheirLimitAndGiveTheBitsOfAnEagerStep) {
  const auto [share_of_all, with_norms] = GetParam();
  DeepStep eager(with_norms), limited(with_norms);
  at::manual_seed(4);
  const int64_t everything = eager_bytes(eager);
  at::manual_seed(4);
  CountingAllocator& counted = CountingAllocator::instance();
  const int64_t before = counted.now,
                found = DeepStep::kActivation + DeepStep::kLayers * DeepStep::kWidth * 64 * 4;
  const std::string budget = fmt::format("{}x", share_of_all);
  std::optional<CapturedStep> previous;
  for (int i = 0; i < 3; ++i) {
    counted.peak = before;
    CapturedStep step =
        record_step([&] { return limited(); }, limited.tensors(), LaterSteps::kCalled,
                    share(budget, previous ? &*previous : nullptr));
    // Tensors of the step from before it count towards the limit. An operation whose need is
    // unknown exceeds the limit once. Costs are measured. At the lowest budget, a busy machine
    // drops other tensors, and their recomputation holds one more.
    const int beyond = !previous ? 3 : share_of_all < 0.2 ? 2 : 1;
    const double limit =
        share_of_all * static_cast<double>(everything + found) - static_cast<double>(found);
    EXPECT_LE(static_cast<double>(counted.peak - before), limit + beyond * DeepStep::kActivation)
        << i;
    previous = std::move(step);
  }
  expect_same(limited, eager);
}

INSTANTIATE_TEST_SUITE_P(Budgets, OnlineRecomputeShares,
                         ::testing::Combine(::testing::Values(0.15, 0.2, 0.3, 0.5, 0.8),
                                            ::testing::Bool()));

TEST(OnlineRecompute, AtAnImpossibleLimitStepsEndWithTheSameBits) {
  DeepStep eager, limited;
  at::manual_seed(4);
  eager();
  at::manual_seed(4);
  record_step([&] { return limited(); }, limited.tensors(), LaterSteps::kCalled, share("1KiB"));
  expect_same(limited, eager);
}

TEST(OnlineRecompute, RecordsWhatAnUnlimitedRecordingHas) {
  DeepStep step;
  const auto record = [&](std::optional<RecordingLimit> limit) {
    return record_step([&] { return step(); }, step.tensors(), LaterSteps::kCalled,
                       std::move(limit));
  };
  const CapturedStep free = record({});
  CapturedStep limited = record(share("0.3x"));
  check_steady(free, limited, LaterSteps::kCalled);
}

TEST(OnlineRecompute, WithoutItAStepHoldsEverything) {
  DeepStep step;
  CountingAllocator& counted = CountingAllocator::instance();
  const int64_t before = counted.now;
  counted.peak = before;
  record_step([&] { return step(); }, step.tensors(), LaterSteps::kCalled);
  EXPECT_GT(counted.peak - before, 2 * DeepStep::kLayers * DeepStep::kActivation);
}

/// Kept tensors are recomputed before one of their sources changes.
TEST(OnlineRecompute, ATensorIsMadeAgainBeforeItsSourceChanges) {
  at::Tensor source = at::randn({64, 1024});
  const at::Tensor expected = source.sin() + 0;
  std::vector<at::Tensor> kept;
  const auto work = [&] {
    kept = {source.sin()};
    for (int i = 0; i < 4; ++i) kept.push_back(at::zeros({64, 1024}) + i);
    source.mul_(2);
    return kept;
  };
  record_step(work, {.state = {{"source", source}}}, LaterSteps::kCalled, share("600KiB"));
  EXPECT_TRUE(kept[0].equal(expected));
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(kept[i + 1].equal(at::full({64, 1024}, i)));
}

}  // namespace
}  // namespace dovetail::plan::online_recompute_test
