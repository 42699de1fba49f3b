#include "dovetail/plan/run/device_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "dovetail/plan/model/check.h"
#include "dovetail/plan/record/batch.h"
#include "dovetail/plan/run/profile.h"
#include "tests/plan/small_step.h"

namespace dovetail::plan::device_model_test {
namespace {

Algorithm named(const std::vector<Algorithm>& algorithms, const std::string& name) {
  for (const Algorithm& algorithm : algorithms)
    if (algorithm.name == name) return algorithm;
  ADD_FAILURE() << "no " << name;
  return {};
}

// Workspaces that NVIDIA's sample mnistCUDNN prints for its two 5 x 5 convolutions, with cuDNN 7
// and 8 on many machines. "Algo 2" (GEMM): 57600 and 128000 bytes. "Algo 5" (FFT_TILING): 178432
// and 4656640. "Algo 1" (IMPLICIT_PRECOMP_GEMM): 100.
TEST(DeviceModel, WorkspacesAreThoseThatCudnnReports) {
  const ConvolutionShape first{
      .n = 1, .c = 1, .h = 28, .w = 28, .k = 20, .r = 5, .s = 5, .p = 24, .q = 24};
  const ConvolutionShape second{
      .n = 1, .c = 20, .h = 12, .w = 12, .k = 50, .r = 5, .s = 5, .p = 8, .q = 8};
  const auto of = [](const ConvolutionShape& shape) {
    return convolution_algorithms({}, shape, ConvolutionPass::kForward);
  };
  EXPECT_EQ(named(of(first), "gemm").workspace_bytes, 57600);
  EXPECT_EQ(named(of(first), "fft_tiling").workspace_bytes, 178432);
  EXPECT_EQ(named(of(first), "precomputed_gemm").workspace_bytes, 100);
  EXPECT_EQ(named(of(second), "gemm").workspace_bytes, 128000);
  EXPECT_EQ(named(of(second), "fft_tiling").workspace_bytes, 4656640);
  // LBANN's pull request 437: Winograd of the 3 x 3 convolutions of ResNet-50's first blocks, 64
  // channels, 256 KiB.
  const ConvolutionShape block{
      .n = 32, .c = 64, .h = 56, .w = 56, .k = 64, .r = 3, .s = 3, .p = 56, .q = 56};
  EXPECT_EQ(named(of(block), "winograd").workspace_bytes, 256 * 1024);
}

TEST(DeviceModel, TimesAreArithmeticOrMemory) {
  const DeviceModel device;
  const ConvolutionShape shape{
      .n = 144, .c = 512, .h = 28, .w = 28, .k = 512, .r = 3, .s = 3, .p = 28, .q = 28};
  const double flops = 2.0 * 144 * 512 * 28 * 28 * 512 * 9;
  for (const auto pass :
       {ConvolutionPass::kForward, ConvolutionPass::kData, ConvolutionPass::kFilter}) {
    const auto algorithms = convolution_algorithms(device, shape, pass);
    EXPECT_NEAR(named(algorithms, "implicit_gemm").time_s, flops / (0.45 * 11.76e12), 1e-9);
    EXPECT_NEAR(named(algorithms, "precomputed_gemm").time_s, flops / (0.65 * 11.76e12), 1e-9);
    // 7 x 7 tiles of 4 x 4. Needs a quarter of the multiplications, after transforms of 36 / 16 of
    // each image in FP32.
    const double tiles = 144.0 * 49, operands = 144 * (tiles * 512 * 2 + 512.0 * 512);
    const double direct = 4 * (144.0 * 512 * 28 * 28 * 2 + 512.0 * 512 * 9);
    EXPECT_EQ(named(algorithms, "winograd_nonfused").workspace_bytes,
              static_cast<int64_t>(operands));
    EXPECT_NEAR(named(algorithms, "winograd_nonfused").time_s,
                flops / 4 / (0.8 * 11.76e12) + (operands + direct) / 347e9, 1e-9);
  }
  // A 1 x 1 convolution of one channel is bound by memory: it reads or writes x, y and the weight
  // once.
  const ConvolutionShape thin{.n = 1, .c = 1, .h = 1000, .w = 1000, .k = 1, .p = 1000, .q = 1000};
  EXPECT_NEAR(convolution_algorithms(device, thin, ConvolutionPass::kForward)[0].time_s,
              8000004 / 347e9, 1e-12);
}

TEST(DeviceModel, PassesHaveCudnnsAlgorithms) {
  const auto names = [](const ConvolutionShape& shape, ConvolutionPass pass) {
    std::set<std::string> out;
    for (const Algorithm& algorithm : convolution_algorithms({}, shape, pass))
      out.insert(algorithm.name);
    return out;
  };
  using Names = std::set<std::string>;
  const ConvolutionShape three{.r = 3, .s = 3}, strided{.r = 3, .s = 3, .stride = 2},
      five{.r = 5, .s = 5};
  EXPECT_EQ(names(three, ConvolutionPass::kForward),
            (Names{"implicit_gemm", "precomputed_gemm", "gemm", "winograd", "winograd_nonfused",
                   "fft_tiling"}));
  EXPECT_EQ(
      names(three, ConvolutionPass::kData),
      (Names{"implicit_gemm", "precomputed_gemm", "winograd", "winograd_nonfused", "fft_tiling"}));
  EXPECT_EQ(names(three, ConvolutionPass::kFilter),
            (Names{"implicit_gemm", "precomputed_gemm", "winograd_nonfused", "fft_tiling"}));
  EXPECT_EQ(names(five, ConvolutionPass::kData),
            (Names{"implicit_gemm", "precomputed_gemm", "fft_tiling"}));
  EXPECT_EQ(names(strided, ConvolutionPass::kForward),
            (Names{"implicit_gemm", "precomputed_gemm", "gemm"}));
}

TEST(DeviceModel, DominatedAlgorithmsGo) {
  const auto left = without_dominated(
      {{"a", 3, 0}, {"b", 2, 10}, {"c", 2, 20}, {"d", 4, 5}, {"e", 1, 30}, {"f", 3, 0}});
  std::vector<std::string> names;
  for (const Algorithm& algorithm : left) names.push_back(algorithm.name);
  EXPECT_THAT(names, ::testing::ElementsAre("a", "b", "e"));
}

TEST(DeviceModel, OutputsAreHeldUntilTheirOwnBackward) {
  // A convolution and a ReLU. Backward of the ReLU reads its result; no node reads the
  // convolution's output a second time.
  Graph graph;
  graph.tensors = {{.id = "x", .bytes = 1, .kind = TensorKind::kInput},
                   {.id = "y", .bytes = 10},
                   {.id = "z", .bytes = 100},
                   {.id = "loss", .bytes = 1000},
                   {.id = "gz", .bytes = 10000, .kind = TensorKind::kGrad},
                   {.id = "gy", .bytes = 100000, .kind = TensorKind::kGrad},
                   {.id = "gw", .bytes = 1000000, .kind = TensorKind::kGrad}};
  const auto add = [&](const char* layer, std::vector<int> inputs, int output) {
    graph.nodes.push_back({.name = graph.tensors[output].id,
                           .layer = layer,
                           .inputs = std::move(inputs),
                           .outputs = {output},
                           .algorithms = {{"only", 1, 0}}});
  };
  add("conv", {0}, 1);
  add("relu", {1}, 2);
  add("loss", {2}, 3);
  add("loss", {2, 3}, 4);
  add("relu", {2, 4}, 5);
  add("conv", {0, 5}, 6);
  graph.budget_bytes = int64_t{1} << 40;
  EXPECT_EQ(check(graph, keep_all(graph)).peak_bytes, 1100001);
  EXPECT_EQ(peak_with_outputs_held(graph), 1100011);
}

TEST(DeviceModel, AStepHasTimesOfItsOperations) {
  SmallStep step(8);
  const CapturedStep captured = record_step([&] { return step(); }, step.tensors());
  const StepGraph made = graph_on({}, captured);
  std::map<std::string, int> choices;
  for (size_t n = 0; n < made.nodes.size(); ++n) {
    const GraphNode& node = made.graph.nodes[n];
    const std::string& name = captured.operations[made.nodes[n].first].name;
    ASSERT_FALSE(node.algorithms.empty());
    for (size_t a = 1; a < node.algorithms.size(); ++a) {
      EXPECT_GT(node.algorithms[a].workspace_bytes, node.algorithms[a - 1].workspace_bytes);
      EXPECT_LT(node.algorithms[a].time_s, node.algorithms[a - 1].time_s);
    }
    if (node.algorithms.size() > 1) ++choices[name];
    // 8 x 16 x 16 x 16 floats read and written.
    if (name == "aten::relu") {
      EXPECT_NEAR(node.algorithms[0].time_s, 2 * 8 * 16 * 16 * 16 * 4 / 347e9, 1e-12);
    }
  }
  // The first convolution has three channels and is bound by memory with any algorithm.
  EXPECT_EQ(choices, (std::map<std::string, int>{{"aten::convolution", 1},
                                                 {"aten::convolution_backward", 1}}));
  EXPECT_EQ(check(made.graph, keep_all(made.graph)).peak_bytes, made.graph.budget_bytes);
  EXPECT_GE(peak_with_outputs_held(made.graph), made.graph.budget_bytes);
  for (const GraphTensor& tensor : made.graph.tensors)
    EXPECT_TRUE(tensor.kind == TensorKind::kActivation || !tensor.lossy_ok) << tensor.id;
}

}  // namespace
}  // namespace dovetail::plan::device_model_test
