#include "dovetail/plan/record/packable.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>

#include "dovetail/mx/operand.h"
#include "dovetail/mx/quantized_linear.h"
#include "dovetail/mx/recipe.h"
#include "dovetail/plan/record/capture.h"
#include "tests/plan/small_step.h"

namespace dovetail::plan::packable_test {
namespace {

std::vector<std::string> lossy(const StepGraph& graph) {
  std::vector<std::string> out;
  for (const GraphTensor& tensor : graph.graph.tensors)
    if (tensor.lossy_ok) out.push_back(tensor.id.substr(0, tensor.id.rfind(':')));
  std::sort(out.begin(), out.end());
  return out;
}

StepGraph allowed(const std::function<std::vector<at::Tensor>()>& step,
                  const StepTensors& tensors) {
  step();
  const CapturedStep captured = capture(step, tensors);
  StepGraph graph = graph_of(captured);
  allow_loss(captured, graph);
  return graph;
}

TEST(AllowLoss, TakesWhatBackwardDifferentiatesAtAndNothingElse) {
  SmallStep step;
  const StepGraph graph = allowed([&] { return step(); }, step.tensors());
  // Packable tensors: the first convolution's result (normalized), relu's, relu_'s after the second
  // convolution, the pooled sum. Also packable: the input of the head's product. Not packable:
  // statistics, dropout masks, the pool's indices, the softmax.
  EXPECT_THAT(lossy(graph), ::testing::ElementsAre("aten::add", "aten::convolution",
                                                   "aten::convolution", "aten::mul", "aten::relu"));
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
    EXPECT_EQ(graph.graph.nodes[n].reads_unpacked,
              !captured.operations[graph.nodes[n].first].backward)
        << graph.graph.nodes[n].name;
}

/// Returns the loss of y = f(x w) x for a function `f`.
template <class F>
std::vector<std::string> lossy_of(F&& f, at::ScalarType dtype = at::kFloat) {
  const at::Tensor w = at::randn({8, 8}).to(dtype).requires_grad_(),
                   x = at::randn({8, 8}).to(dtype);
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
  using ::testing::ElementsAre;
  using ::testing::IsEmpty;
  EXPECT_THAT(lossy_of([](const auto& h, const auto&) { return at::gelu(h); }),
              ElementsAre("aten::mm"));
  EXPECT_THAT(lossy_of([](const auto& h, const auto&) { return at::gelu(h); }, at::kBFloat16),
              ElementsAre("aten::mm"));
  EXPECT_THAT(lossy_of([](const auto& h, const auto&) { return at::gelu(h); }, at::kDouble),
              IsEmpty());
  EXPECT_THAT(lossy_of([](const auto& h, const auto&) { return at::logsumexp(h, 0); }), IsEmpty());
  EXPECT_THAT(
      lossy_of([](const auto& h, const auto&) { return at::gelu(h) + at::logsumexp(h, 0); }),
      IsEmpty());
  // Each of the two halves of a storage covers only a part of it.
  EXPECT_THAT(lossy_of([](const auto& h, const auto&) { return at::gelu(h.narrow(0, 0, 4)); }),
              IsEmpty());
  // It is changed after its creation, so it is not a constant activation.
  EXPECT_THAT(lossy_of([](const auto& h, const auto&) {
                const at::Tensor y = at::gelu(h);
                h.variable_data().narrow(0, 0, 1).add_(0);
                return y;
              }),
              IsEmpty());
}

/// Returns the codecs of tensors that may be packed without loss. The step squares `rows` rows and
/// multiplies them by a Linear with this recipe. `also` reads the rows, too, and adds to the loss.
std::vector<std::string> same_codes_of(
    const char* recipe, at::ScalarType dtype, int64_t rows,
    const std::function<at::Tensor(const at::Tensor&)>& also = nullptr) {
  const at::Tensor w = at::randn({32, 64}).to(dtype).requires_grad_(),
                   x = at::randn({rows, 64}).to(dtype);
  const auto linear = std::make_shared<mx::QuantizedLinear>(
      mx::find_recipe(mx::built_in_recipes(), recipe).linear, "linear");
  const auto step = [&] {
    w.mutable_grad().reset();
    linear->begin_step(1);
    const at::Tensor h = x.square().requires_grad_();
    at::Tensor loss = linear->forward(h, w).sum();
    if (also) loss = loss + also(h).sum();
    torch::autograd::backward({loss}, {});
    return std::vector{loss.detach()};
  };
  step();
  const CapturedStep captured = capture(step, {.inputs = {{"x", x}}, .parameters = {{"w", w}}});
  StepGraph graph = graph_of(captured);
  allow_same_codes(captured, graph);
  std::vector<std::string> out;
  for (const GraphTensor& tensor : graph.graph.tensors)
    for (const int codec : tensor.codecs.value_or(std::vector<int>()))
      out.push_back(graph.graph.codecs[codec].name);
  return out;
}

TEST(AllowSameCodes, TakesTheInputOfALinearThatQuantizesItInBackward) {
  using ::testing::ElementsAre;
  using ::testing::IsEmpty;
  EXPECT_THAT(same_codes_of("mxfp8", at::kFloat, 96),
              ElementsAre("e4m3.round_up.columns64.float32.same_codes"));
  const mx::LinearRecipe& mxfp8 = mx::find_recipe(mx::built_in_recipes(), "mxfp8").linear;
  if (mx::emulation_dtype(at::empty({0}, at::kBFloat16), mxfp8.gradient, mxfp8.activation) ==
      at::kBFloat16) {
    EXPECT_THAT(same_codes_of("mxfp8", at::kBFloat16, 96),
                ElementsAre("e4m3.round_up.columns64.bfloat16.same_codes"));
  } else {
    EXPECT_THAT(same_codes_of("mxfp8", at::kBFloat16, 96),
                IsEmpty());  // products read wider numbers
  }
  EXPECT_THAT(same_codes_of("mxfp8", at::kFloat, 95), IsEmpty());  // the last block is short
  EXPECT_THAT(same_codes_of("fp8_tensor", at::kFloat, 96), IsEmpty());
  EXPECT_THAT(
      same_codes_of("mxfp8", at::kFloat, 96, [](const at::Tensor& h) { return at::gelu(h); }),
      IsEmpty());
  EXPECT_THAT(
      same_codes_of("mxfp8", at::kFloat, 96, [](const at::Tensor& h) { return h * 2; }),
      ElementsAre("e4m3.round_up.columns64.float32.same_codes"));  // reads it only in forward
}

}  // namespace
}  // namespace dovetail::plan::packable_test
