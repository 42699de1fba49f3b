#include "dovetail/plan/packable.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "dovetail/plan/capture.h"
#include "tests/plan/small_step.h"

namespace dovetail::plan {
namespace {

std::vector<std::string> lossy(const StepGraph& graph) {
  std::vector<std::string> out;
  for (const GraphTensor& tensor : graph.graph.tensors)
    if (tensor.lossy_ok) out.push_back(tensor.id.substr(0, tensor.id.rfind(':')));
  std::sort(out.begin(), out.end());
  return out;
}

StepGraph allowed(const std::function<std::vector<at::Tensor>()>& step, const StepTensors& tensors) {
  step();
  const CapturedStep captured = capture(step, tensors);
  StepGraph graph = graph_of(captured);
  allow_loss(captured, graph);
  return graph;
}

TEST(AllowLoss, TakesWhatBackwardDifferentiatesAtAndNothingElse) {
  SmallStep step;
  const StepGraph graph = allowed([&] { return step(); }, step.tensors());
  // The first convolution's result (normalized), relu's, relu_'s after the second convolution, the sum that is pooled,
  // and the input of the head's product. Not the statistics, the masks of dropout, the pool's indices, the softmax.
  EXPECT_THAT(lossy(graph),
              testing::ElementsAre("aten::add", "aten::convolution", "aten::convolution", "aten::mul", "aten::relu"));
  ASSERT_EQ(graph.forms.size(), 1U);
  EXPECT_EQ(graph.graph.codecs[0].ratio, 33.0 / 128);
  for (const GraphTensor& tensor : graph.graph.tensors)
    EXPECT_EQ(tensor.codecs, tensor.lossy_ok ? std::vector{0} : std::vector<int>{}) << tensor.id;
}

TEST(AllowLoss, OnlyBackwardReadsWhatWasPacked) {
  SmallStep step;
  step();
  const CapturedStep captured = capture([&] { return step(); }, step.tensors());
  StepGraph graph = graph_of(captured);
  allow_loss(captured, graph);
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    EXPECT_EQ(graph.graph.nodes[n].reads_unpacked, !captured.operations[graph.nodes[n].first].backward)
        << graph.graph.nodes[n].name;
}

/// The loss of y = f(x w) x for one `f`.
template <class F>
std::vector<std::string> lossy_of(F&& f, at::ScalarType dtype = at::kFloat) {
  const at::Tensor w = at::randn({8, 8}).to(dtype).requires_grad_(), x = at::randn({8, 8}).to(dtype);
  return lossy(allowed(
      [&] {
        w.mutable_grad().reset();
        const at::Tensor loss = f(x.mm(w), w).sum();
        torch::autograd::backward({loss}, {});
        return std::vector{loss.detach()};
      },
      {.inputs = {{"x", x}}, .parameters = {{"w", w}}}));
}

TEST(AllowLoss, LeavesAloneWhatOperatorsOutsideTheTableRead) {
  using testing::ElementsAre;
  using testing::IsEmpty;
  EXPECT_THAT(lossy_of([](const auto& h, const auto&) { return at::gelu(h); }), ElementsAre("aten::mm"));
  EXPECT_THAT(lossy_of([](const auto& h, const auto&) { return at::gelu(h); }, at::kBFloat16), ElementsAre("aten::mm"));
  EXPECT_THAT(lossy_of([](const auto& h, const auto&) { return at::gelu(h); }, at::kDouble), IsEmpty());
  EXPECT_THAT(lossy_of([](const auto& h, const auto&) { return at::logsumexp(h, 0); }), IsEmpty());
  EXPECT_THAT(lossy_of([](const auto& h, const auto&) { return at::gelu(h) + at::logsumexp(h, 0); }), IsEmpty());
  // Of two halves of a storage neither spans it.
  EXPECT_THAT(lossy_of([](const auto& h, const auto&) { return at::gelu(h.narrow(0, 0, 4)); }), IsEmpty());
  // Changed after it was made, so it is no activation that stands still.
  EXPECT_THAT(lossy_of([](const auto& h, const auto&) {
                const at::Tensor y = at::gelu(h);
                h.variable_data().narrow(0, 0, 1).add_(0);
                return y;
              }),
              IsEmpty());
}

}  // namespace
}  // namespace dovetail::plan
