#include "dovetail/plan/record/capture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>

#include "dovetail/base/error.h"
#include "dovetail/base/operation.h"
#include "dovetail/plan/record/step_graph.h"
#include "tests/plan/small_step.h"

namespace dovetail::plan::capture_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

CapturedStep captured(SmallStep& step) {
  step();
  return capture([&] { return step(); }, step.tensors());
}

TEST(Capture, RecordsForwardBackwardAndUpdateWithTheirLayers) {
  SmallStep step;
  const CapturedStep made = captured(step);
  std::map<std::string, int> forward, backward;
  for (const auto& operation : made.operations)
    ++(operation.backward ? backward : forward)[operation.name];
  EXPECT_EQ(forward["aten::convolution"], 2);
  EXPECT_EQ(backward["aten::convolution_backward"], 2);
  EXPECT_EQ(forward["aten::native_batch_norm"], 1);
  EXPECT_EQ(forward["aten::relu_"], 1);
  EXPECT_EQ(forward["aten::add_"], 10);  // momentum and parameter of five parameters
  EXPECT_EQ(forward.count("aten::view") + backward.count("aten::view") + forward.count("aten::t"),
            0);
  for (const auto& operation : made.operations) {
    if (operation.name != "aten::convolution" && operation.name != "aten::convolution_backward")
      continue;
    EXPECT_THAT(operation.layer, ::testing::AnyOf("net.conv1", "net.conv2"));
  }
  const auto bytes = [&](TensorKind kind) {
    int64_t sum = 0;
    for (const auto& storage : made.storages) sum += storage.kind == kind ? storage.bytes : 0;
    return sum;
  };
  const int64_t parameters = 4 * (16 * 27 + 16 * 144 + 32 + 10 * 1024);
  EXPECT_EQ(bytes(TensorKind::kParam), parameters);
  EXPECT_EQ(bytes(TensorKind::kState), parameters + 4 * 32);
  EXPECT_EQ(bytes(TensorKind::kOutput), 4);
}

TEST(Capture, ChangesNothingOfTheTraining) {
  SmallStep recorded, plain;
  at::manual_seed(3);
  captured(recorded);
  at::manual_seed(3);
  for (int i = 0; i < 3; ++i) plain();
  const auto a = recorded.values(), b = plain.values();
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].equal(b[i])) << i;
}

TEST(Capture, WhatIsChangedInPlaceAtOnceIsOneNode) {
  SmallStep step;
  const CapturedStep made = captured(step);
  const StepGraph graph = graph_of(made);
  int joined = 0;
  for (const StepNode& node : graph.nodes) {
    if (made.operations[node.first].name != "aten::convolution" || node.last - node.first == 1)
      continue;
    ++joined;
    EXPECT_EQ(made.operations[node.first + 1].name, "aten::relu_");
    EXPECT_FALSE(graph.graph.nodes[&node - graph.nodes.data()].runs_once());
  }
  EXPECT_EQ(joined, 1);
  // Updates change tensors that outlive the step, so they run once.
  int once = 0;
  for (const GraphNode& node : graph.graph.nodes) once += node.runs_once() ? 1 : 0;
  EXPECT_GE(once, 10);
}

TEST(Capture, OperationsThatRunOnceCannotRunAgainAndWhatTheyHoldIsAlwaysThere) {
  SmallStep step;
  const int64_t without = graph_of(captured(step)).graph.base_bytes;
  std::unique_ptr<HeldMemory> held;
  const CapturedStep made = capture(
      [&] {
        const at::Tensor loss = step()[0];
        operation_once("test::start", {.reads = {loss}}, [&](const Operands&) {
          held = std::make_unique<HeldMemory>(1000);
          return std::vector<at::Tensor>();
        });
        const at::Tensor doubled =
            operation("test::double", {.reads = {loss}},
                      [](const Operands& inputs) { return std::vector{inputs.reads[0] * 2}; })[0];
        const at::Tensor came = operation_once("test::wait", {}, [&](const Operands&) {
          held.reset();
          return std::vector{at::ones({32})};
        })[0];
        return std::vector{doubled + came};
      },
      step.tensors());
  const StepGraph graph = graph_of(made);
  EXPECT_EQ(graph.graph.base_bytes, without + 1000);
  std::map<std::string, bool> once;
  for (const GraphNode& node : graph.graph.nodes)
    once[node.name.substr(0, node.name.rfind(':'))] = node.runs_once();
  EXPECT_TRUE(once.at("test::start"));
  EXPECT_TRUE(once.at("test::wait"));
  EXPECT_FALSE(once.at("test::double"));
}

TEST(Capture, RefusesWhatCannotBeRunAgain) {
  SmallStep step;
  step();
  const auto refuses = [&](auto body) {
    return [&step, body] {
      capture(
          [&] {
            auto out = step();
            body(out[0]);
            return out;
          },
          step.tensors());
    };
  };
  EXPECT_THAT(refuses([](const at::Tensor& loss) {
                const LayerScope layer("log");
                (void)loss.item<float>();
              }),
              ThrowsMessage<UserError>(
                  HasSubstr("aten::_local_scalar_dense in log reads a tensor's values")));
  EXPECT_THAT(refuses([](const at::Tensor& loss) { (void)loss.unsqueeze(0).nonzero(); }),
              ThrowsMessage<UserError>(HasSubstr("aten::nonzero")));
  EXPECT_THAT(refuses([](const at::Tensor& loss) { loss.clone().resize_({7}); }),
              ThrowsMessage<UserError>(HasSubstr("aten::resize_")));
  int calls = 0;
  EXPECT_THAT(refuses([&](const at::Tensor& loss) { (void)loss.mul(++calls); }),
              ThrowsMessage<UserError>(HasSubstr("is another number")));
  EXPECT_THAT(
      refuses([&](const at::Tensor& loss) { (void)(++calls % 2 == 0 ? loss.sin() : loss.cos()); }),
      ThrowsMessage<UserError>(HasSubstr("the second calls aten::")));
  // A later capture works as before.
  EXPECT_GT(captured(step).operations.size(), 20U);
}

}  // namespace
}  // namespace dovetail::plan::capture_test
