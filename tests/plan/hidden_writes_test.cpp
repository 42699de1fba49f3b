#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/library.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/plan/device/fingerprint.h"
#include "dovetail/plan/model/index_list.h"
#include "dovetail/plan/model/packing.h"
#include "dovetail/plan/record/capture.h"
#include "dovetail/plan/record/step_graph.h"
#include "dovetail/plan/run/executor.h"
#include "dovetail/plan/solve/solve.h"

/// Operators that change their arguments without a mark in their schemas.
namespace dovetail::plan::hidden_writes_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

at::Tensor double_and_count(const at::Tensor& x, const at::Tensor& counts) {
  const at::Tensor counted = counts;
  counted.add_(x.abs().mean().item<float>());
  return x * 2;
}

at::Tensor doubled(const at::Tensor& x, const at::Tensor& counts) {
  static const auto handle =
      c10::Dispatcher::singleton().findSchemaOrThrow("planted::double_and_count", "");
  return handle.typed<at::Tensor(const at::Tensor&, const at::Tensor&)>().call(x, counts);
}

/// Layers with one planted operator each, whose result backward reads. Counts are in units of 64
/// KiB.
struct PlantedStep {
  static constexpr int kLayers = 4;
  static constexpr int64_t kWidth = 128;

  PlantedStep() {
    at::manual_seed(1);
    for (int i = 0; i < kLayers; ++i) {
      parameters.emplace_back("w" + std::to_string(i),
                              (at::randn({kWidth, kWidth}) * 0.1).requires_grad_());
      counts.emplace_back("counts" + std::to_string(i), at::zeros({kWidth, kWidth}));
    }
  }
  std::vector<at::Tensor> operator()() {
    for (auto& [name, parameter] : parameters) parameter.mutable_grad().reset();
    at::Tensor y = x;
    for (int i = 0; i < kLayers; ++i) {
      const at::Tensor mask = doubled(y.detach(), counts[i].second);
      y = (y.mm(parameters[i].second) * mask.sigmoid()).tanh() * mask;
    }
    const at::Tensor loss = (y - x).square().mean();
    torch::autograd::backward({loss}, {});
    const at::NoGradGuard no_grad;
    for (auto& [name, parameter] : parameters) parameter.add_(parameter.grad(), -1e-3);
    return {loss.detach()};
  }
  StepTensors tensors() const {
    return {.inputs = {{"x", x}}, .parameters = parameters, .state = counts};
  }
  void new_batch(uint64_t step) {
    x.copy_(at::randn(x.sizes(), at::detail::createCPUGenerator(step)));
  }

  at::Tensor x = at::zeros({256, kWidth});
  std::vector<std::pair<std::string, at::Tensor>> parameters, counts;
};

void expect_same(const PlantedStep& a, const PlantedStep& b) {
  for (int i = 0; i < PlantedStep::kLayers; ++i) {
    EXPECT_TRUE(a.parameters[i].second.equal(b.parameters[i].second)) << i;
    EXPECT_TRUE(a.counts[i].second.equal(b.counts[i].second)) << i;
  }
}

struct Recorded {
  explicit Recorded(PlantedStep& step) {
    step.new_batch(0);
    step();
    captured = capture([&] { return step(); }, step.tensors());
    graph = graph_of(captured);
    graph.graph.budget_bytes = int64_t{1} << 40;
    graph.graph.bandwidth = {.to_host = 1e9, .to_device = 1e9};
    for (GraphNode& node : graph.graph.nodes) node.algorithms[0].time_s = 1e-4;
  }
  CapturedStep captured;
  StepGraph graph;
};

void train(PlantedStep& step, const std::function<void()>& run) {
  for (int i = 1; i <= 20; ++i) {
    step.new_batch(i);
    run();
  }
}

/// Trains eagerly, up to the step that was recorded.
PlantedStep trained_eagerly() {
  PlantedStep step;
  step.new_batch(0);
  for (int i = 0; i < 3; ++i) step();
  train(step, [&] { step(); });
  return step;
}

TEST(HiddenWrites, OfAPlantedOperatorAreFoundAndItRunsOnce) {
  PlantedStep step;
  Recorded recorded(step);
  int planted = 0;
  for (const GraphNode& node : recorded.graph.graph.nodes) {
    if (!node.name.starts_with("planted::double_and_count")) continue;
    ASSERT_EQ(node.mutates.size(), 1U);
    EXPECT_EQ(recorded.graph.graph.tensors[node.mutates[0]].id,
              "counts" + std::to_string(planted++));
    EXPECT_TRUE(node.runs_once());
  }
  EXPECT_EQ(planted, PlantedStep::kLayers);
  SolveOptions options{.offload = false, .compress = false, .time_limit_s = 0.5};
  Graph& graph = recorded.graph.graph;
  const int64_t all = check(graph, keep_all(graph)).peak_bytes;
  graph.budget_bytes = (floor_of(graph, options).bytes + all) / 2;
  const Plan plan = solve(graph, options).schedule.plan;
  EXPECT_GT(std::count_if(plan.actions.begin(), plan.actions.end(),
                          [](const Action& a) { return a.op == Op::kCompute; }),
            static_cast<std::ptrdiff_t>(graph.nodes.size()));
  graph.budget_bytes = all;  // addresses take a little more
  {
    Executor executor(recorded.captured, recorded.graph, plan, {});
    train(step, [&] { executor.run(); });
  }
  expect_same(step, trained_eagerly());
}

TEST(HiddenWrites, OfStateThatStartsOnTheHostAreCopiedBack) {
  PlantedStep step;
  Recorded recorded(step);
  const Graph& graph = recorded.graph.graph;
  Plan plan = keep_all(graph);
  std::erase_if(plan.actions, [&](const Action& a) {
    return a.op == Op::kFree && contains(graph.final, a.tensor);
  });
  const auto insert = [&](int node, int after, const Action& action) {
    const auto at = std::find_if(plan.actions.begin(), plan.actions.end(), [&](const Action& a) {
      return a.op == Op::kCompute && a.node == node;
    });
    plan.actions.insert(at + after, action);
  };
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    for (const int t : graph.nodes[n].mutates) {
      if (graph.tensors[t].kind != TensorKind::kState) continue;
      EXPECT_GE(graph.tensors[t].bytes, 32 << 10);
      plan.starts_on_host.push_back(t);
      insert(static_cast<int>(n), 1, {.op = Op::kFree, .tensor = t});
      insert(static_cast<int>(n), 1, {.op = Op::kOffload, .tensor = t});
      insert(static_cast<int>(n), 0, {.op = Op::kPrefetch, .tensor = t});
      insert(static_cast<int>(n), 0, {.op = Op::kFreeHost, .tensor = t});
    }
  EXPECT_EQ(plan.starts_on_host.size(), static_cast<size_t>(PlantedStep::kLayers));
  {
    Executor executor(recorded.captured, recorded.graph, plan, {});
    train(step, [&] { executor.run(); });
  }
  expect_same(step, trained_eagerly());
}

TEST(HiddenWrites, ThatBeginAfterTheRecordingAreNoticed) {
  PlantedStep step;
  at::Tensor nothing = at::zeros({64});
  const auto work = [&] {
    auto out = step();
    doubled(nothing, step.counts[0].second.view(-1));  // adds 0 while recorded
    return out;
  };
  step.new_batch(0);
  StepTensors tensors = step.tensors();
  tensors.state.emplace_back("nothing", nothing);
  work();
  CapturedStep captured = capture(work, tensors);
  StepGraph graph = graph_of(captured);
  graph.graph.budget_bytes = int64_t{1} << 40;
  Executor executor(captured, graph, keep_all(graph.graph), {});
  const auto called = [&] {
    executor.run([&] { work(); }, {.same_numbers = true, .writes = true});
  };
  called();
  nothing.fill_(1);
  EXPECT_THAT(called,
              ThrowsMessage<UserError>(HasSubstr("planted::double_and_count has changed counts0")));
}

TEST(HiddenWrites, OfUndeclaredTensorsRunOnceAndMoveNothing) {
  at::Tensor x = at::randn({64}), factor = at::randn({64}), counts = at::zeros({64}),
             total = at::zeros({64});
  const auto work = [&] {
    const at::Tensor before = counts * 1;
    doubled(x.mul(factor), counts);
    total.add_(before);
    return std::vector{total.sum()};
  };
  const CapturedStep captured = capture(work, {.inputs = {{"x", x}}});
  const StepGraph graph = graph_of(captured);
  for (size_t s = 0; s < captured.storages.size(); ++s) {
    const at::Tensor& found = captured.storages[s].external;
    if (!found.defined() || !(found.is_alias_of(counts) || found.is_alias_of(total))) continue;
    EXPECT_EQ(graph.tensor_of_storage[s], -1);
  }
  int repeatable = 0;  // no operator writes x * factor
  for (const GraphNode& node : graph.graph.nodes) repeatable += !node.runs_once();
  EXPECT_EQ(repeatable, 1);
}

TEST(HiddenWrites, BetweenOperationsAreRefused) {
  at::Tensor x = at::randn({64}), state = at::zeros({64});
  const auto capturing = [&](const std::function<void()>& between) {
    return [&, between] {
      capture(
          [&] {
            const at::Tensor y = x * state;
            between();
            return std::vector{y + state};
          },
          {.inputs = {{"x", x}}, .state = {{"counted", state}}});
    };
  };
  EXPECT_NO_THROW(capturing([] {})());
  EXPECT_THAT(capturing([&] { state.data_ptr<float>()[63] += 1; }),
              ThrowsMessage<UserError>(HasSubstr("plan: counted has changed before aten::add")));
}

/// Operators of ATen that change an argument without a mark in their schemas. Each has a call that
/// runs on a CPU.
struct SilentWriter {
  const char* name;
  const char* overload;
  std::function<void(const at::Tensor& x, const at::Tensor& mean, const at::Tensor& variance)> call;
};
std::vector<SilentWriter> silent_writers() {
  return {
      {"aten::native_batch_norm", "",
       [](const auto& x, const auto& mean, const auto& variance) {
         at::native_batch_norm(x, {}, {}, mean, variance, /*training=*/true, 0.1, 1e-5);
       }},
      {"aten::native_batch_norm", "out",
       [](const auto& x, const auto& mean, const auto& variance) {
         at::Tensor out = at::zeros_like(x), a = at::zeros_like(mean), b = at::zeros_like(mean);
         at::native_batch_norm_out(out, a, b, x, {}, {}, mean, variance, true, 0.1, 1e-5);
       }},
      {"aten::batch_norm_update_stats", "",
       [](const auto& x, const auto& mean, const auto& variance) {
         at::batch_norm_update_stats(x, mean, variance, 0.1);
       }},
      {"aten::batch_norm_update_stats", "out",
       [](const auto& x, const auto& mean, const auto& variance) {
         at::Tensor a = at::zeros_like(mean), b = at::zeros_like(mean);
         at::batch_norm_update_stats_out(a, b, x, mean, variance, 0.1);
       }},
      {"aten::cudnn_batch_norm", "", nullptr},
      {"aten::miopen_batch_norm", "", nullptr},
      {"aten::batch_norm_gather_stats", "", nullptr},
      {"aten::batch_norm_gather_stats_with_counts", "", nullptr},
  };
}

TEST(HiddenWrites, OfOperatorsOfATenAreFound) {
  for (const SilentWriter& writer : silent_writers()) {
    const auto handle =
        c10::Dispatcher::singleton().findSchemaOrThrow(writer.name, writer.overload);
    EXPECT_EQ(writer.call != nullptr,
              handle.hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
                  handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd))
        << writer.name;
    if (writer.call == nullptr) continue;
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble})
      for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
        SCOPED_TRACE(std::string(writer.name) + " " + writer.overload + " " + c10::toString(dtype));
        const at::Tensor x = (at::randn({3, 5, 7, 2}) + 1).to(dtype).contiguous(format);
        const at::Tensor mean = at::zeros({5}, dtype), variance = at::ones({5}, dtype);
        const CapturedStep captured = capture(
            [&] {
              writer.call(x, mean, variance);
              return std::vector<at::Tensor>();
            },
            {.inputs = {{"x", x}}, .state = {{"mean", mean}, {"variance", variance}}});
        const auto found =
            std::find_if(captured.operations.begin(), captured.operations.end(),
                         [&](const CapturedOperation& o) { return o.name == writer.name; });
        ASSERT_NE(found, captured.operations.end());
        for (const int storage : {1, 2}) {
          EXPECT_TRUE(contains(found->writes, storage)) << captured.storages[storage].name;
          EXPECT_FALSE(contains(found->reads, storage));
        }
        EXPECT_FALSE(contains(found->writes, 0));
      }
  }
}

TEST(HiddenWrites, FingerprintsTellEachByteAndSignsApart) {
  for (const int64_t bytes : {1, 7, 8, 31, 32, 33, 4096, (256 << 10) + 5, 600 << 10}) {
    std::vector<unsigned char> data(static_cast<size_t>(bytes), 0);
    const uint64_t before = fingerprint(data.data(), bytes);
    for (const int64_t at : {int64_t{0}, bytes / 2, bytes - 1})
      for (const int bit : {0, 7}) {
        data[at] ^= 1 << bit;
        EXPECT_NE(fingerprint(data.data(), bytes), before) << bytes << " " << at;
        data[at] ^= 1 << bit;
      }
    EXPECT_EQ(fingerprint(data.data(), bytes), before);
    EXPECT_NE(fingerprint(data.data(), bytes - 1), before);
  }
  const at::Tensor x = at::randn({4096}, at::kDouble), y = -x;  // signs alone
  EXPECT_NE(fingerprint(x.data_ptr(), 4096 * 8), fingerprint(y.data_ptr(), 4096 * 8));
}

}  // namespace
}  // namespace dovetail::plan::hidden_writes_test

TORCH_LIBRARY(planted, m) {
  m.def("double_and_count(Tensor x, Tensor counts) -> Tensor");
  m.impl("double_and_count",
         torch::dispatch(c10::DispatchKey::CPU,
                         &dovetail::plan::hidden_writes_test::double_and_count));
}
