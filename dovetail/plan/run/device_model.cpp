#include "dovetail/plan/run/device_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/plan/model/check.h"
#include "dovetail/plan/run/profile.h"

namespace dovetail::plan {
namespace {

constexpr double kFloatBytes = 4;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Pass of a convolution as a product of two factors. The roles of x, weight and y in the product
/// do not depend on which of the three is the result.
class ConvolutionModel {
 public:
  ConvolutionModel(const DeviceModel& device, const ConvolutionShape& shape, ConvolutionPass pass)
      : device_(device), s_(shape), pass_(pass) {
    const auto product = [](std::initializer_list<int64_t> factors) {
      double out = 1;
      for (const int64_t factor : factors) out *= static_cast<double>(factor);
      return out;
    };
    flops_ = 2 * product({s_.n, s_.k, s_.p, s_.q, s_.c, s_.r, s_.s});
    bytes_ = kFloatBytes * (product({s_.n, s_.c, s_.h, s_.w}) + product({s_.k, s_.c, s_.r, s_.s}) +
                            product({s_.n, s_.k, s_.p, s_.q}));
  }

  std::vector<Algorithm> all() const {
    const int64_t offsets = (pass_ == ConvolutionPass::kData ? s_.k : s_.c) * s_.r * s_.s;
    std::vector<Algorithm> out = {
        {"implicit_gemm", kernel(flops_, device_.implicit_fraction, bytes_), 0},
        {"precomputed_gemm", kernel(flops_, device_.precomputed_fraction, bytes_), 4 * offsets}};
    if (pass_ == ConvolutionPass::kForward) out.push_back(gemm());
    const bool winograd = s_.stride == 1 && s_.r == 3 && s_.s == 3;
    if (winograd && pass_ != ConvolutionPass::kFilter) out.push_back(fused_winograd());
    if (winograd)
      out.push_back(
          tiled("winograd_nonfused", 4, 4, 36 * kFloatBytes, 2 * 36, device_.matrix_fraction));
    if (s_.stride == 1 && s_.r <= kTile && s_.s <= kTile)
      out.push_back(tiled("fft_tiling", kTile - s_.r + 1, kTile - s_.s + 1,
                          2 * kFloatBytes * kSpectrum, 8 * kSpectrum, device_.complex_fraction));
    return out;
  }

 private:
  static constexpr int64_t kTile = 32, kFrequencies = kTile / 2 + 1;
  static constexpr double kSpectrum = kTile * kFrequencies;

  double kernel(double flops, double fraction, double bytes) const {
    return std::max(flops / (fraction * device_.flops_per_s), bytes / device_.bytes_per_s);
  }

  Algorithm gemm() const {
    const int64_t columns = s_.c * s_.r * s_.s * s_.p * s_.q;
    const double bytes = kFloatBytes * static_cast<double>(s_.n * columns);
    return {"gemm",
            bytes / device_.bytes_per_s + kernel(flops_, device_.matrix_fraction, bytes_ + bytes),
            static_cast<int64_t>(kFloatBytes) * columns};
  }

  int64_t tiles(int64_t height, int64_t width) const {
    // Tiles cover the images of the result x in kData, and the images of y otherwise.
    const bool of_x = pass_ == ConvolutionPass::kData;
    return s_.n * divide_up(of_x ? s_.h : s_.p, height) * divide_up(of_x ? s_.w : s_.q, width);
  }

  Algorithm fused_winograd() const {
    constexpr double kProducts = 16;
    const auto operands = static_cast<double>(s_.c * s_.k);
    return {"winograd",
            kernel(2 * kProducts * static_cast<double>(tiles(2, 2)) * operands,
                   device_.fused_fraction, bytes_),
            static_cast<int64_t>(kProducts * kFloatBytes * operands)};
  }

  /// Transforms both factors, multiplies the transforms, and transforms the result back.
  Algorithm tiled(const char* name, int64_t height, int64_t width, double bytes_of_each,
                  double flops_of_each, double fraction) const {
    const auto t = static_cast<double>(tiles(height, width));
    const auto c = static_cast<double>(s_.c), k = static_cast<double>(s_.k);
    const double workspace = bytes_of_each * (t * c + t * k + c * k);
    return {name,
            (bytes_ + workspace) / device_.bytes_per_s +
                kernel(flops_of_each * t * c * k, fraction, workspace),
            static_cast<int64_t>(workspace)};
  }

  const DeviceModel& device_;
  const ConvolutionShape& s_;
  ConvolutionPass pass_;
  double flops_, bytes_;  // flops of the direct product; bytes of x, weight and y
};

int64_t numel(const TensorUse& use) {
  int64_t out = 1;
  for (const int64_t size : use.sizes) out *= size;
  return out;
}

/// All pairs. The two algorithms of a pair run one after the other in the same workspace.
std::vector<Algorithm> pairs(const std::vector<Algorithm>& a, const std::vector<Algorithm>& b) {
  std::vector<Algorithm> out;
  for (const Algorithm& x : a)
    for (const Algorithm& y : b)
      out.push_back({x.name + "+" + y.name, x.time_s + y.time_s,
                     std::max(x.workspace_bytes, y.workspace_bytes)});
  return out;
}

class DeviceGraph {
 public:
  DeviceGraph(const DeviceModel& device, const CapturedStep& step,
              const ConvolutionAlgorithms& convolutions)
      : device_(device), step_(step), convolutions_(convolutions), made_(graph_of(step)) {}

  StepGraph build() {
    Graph& graph = made_.graph;
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      std::vector<Algorithm> algorithms = {{"only", 0, 0}};
      for (int o = made_.nodes[n].first; o < made_.nodes[n].last; ++o)
        add(algorithms, algorithms_of(o));
      for (Algorithm& algorithm : algorithms)
        algorithm.workspace_bytes += made_.nodes[n].memory.workspace_bytes;
      graph.nodes[n].algorithms = without_dominated(std::move(algorithms));
    }
    graph.bandwidth = device_.bandwidth;
    add_codec();
    graph.budget_bytes = std::numeric_limits<int64_t>::max();
    graph.budget_bytes = check(graph, keep_all(graph)).peak_bytes;
    return std::move(made_);
  }

 private:
  void add_codec() {
    // 32 values of 8 bits share a scale of 8 bits. A value with 3 mantissa bits has a relative
    // error of up to 1 / 16.
    constexpr double kRatio = 33.0 / (32 * kFloatBytes), kError = 0.0625;
    const double rate = device_.bytes_per_s / (1 + kRatio);
    made_.graph.codecs = {{"mxfp8", kRatio, rate, rate, kError}};
    for (GraphTensor& tensor : made_.graph.tensors)
      tensor.lossy_ok = tensor.kind == TensorKind::kActivation;
    for (const CapturedOperation& operation : step_.operations)
      for (const CapturedArgument& argument : operation.arguments)
        for (const TensorUse& use : argument.uses)
          if (use.storage >= 0 && use.dtype != at::kFloat &&
              made_.tensor_of_storage[use.storage] >= 0)
            made_.graph.tensors[made_.tensor_of_storage[use.storage]].lossy_ok = false;
  }

  /// Appends an operation to a node's algorithms. Only one operation of a node can have a choice.
  static void add(std::vector<Algorithm>& node, std::vector<Algorithm> operation) {
    if (node.size() > 1) {
      DOVETAIL_CHECK(operation.size() == 1, "two operations of a node have a choice of algorithms");
      std::swap(node, operation);
    }
    const double time_s = node[0].time_s;
    node = std::move(operation);
    for (Algorithm& algorithm : node) algorithm.time_s += time_s;
  }

  std::vector<Algorithm> algorithms_of(int index) const {
    const CapturedOperation& operation = step_.operations[index];
    if (operation.name == "aten::convolution") return convolution(operation);
    if (operation.name == "aten::convolution_backward") return convolution_backward(operation);
    const double memory_s = bytes_of(operation) / device_.bytes_per_s;
    return {
        {"only",
         std::max(memory_s, flops_of(operation) / (device_.matrix_fraction * device_.flops_per_s)),
         0}};
  }

  double bytes_of(const CapturedOperation& operation) const {
    double out = 0;
    for (const CapturedArgument& argument : operation.arguments)
      for (const TensorUse& use : argument.uses)
        if (use.storage >= 0)
          out += std::min(
              static_cast<double>(numel(use)) * static_cast<double>(c10::elementSize(use.dtype)),
              // An expanded tensor is read once.
              static_cast<double>(step_.storages[use.storage].bytes));
    for (const auto* list : {&operation.writes, &operation.makes})
      for (const int storage : *list) out += static_cast<double>(step_.storages[storage].bytes);
    return out;
  }

  /// Flops of a matrix product; 0 for any other operation.
  static double flops_of(const CapturedOperation& operation) {
    const auto& name = operation.name;
    const size_t first = name == "aten::addmm" ? 1 : 0;
    if (first == 0 && name != "aten::mm" && name != "aten::bmm") return 0;
    const TensorUse &a = operation.arguments[first].uses[0],
                    &b = operation.arguments[first + 1].uses[0];
    return 2 * static_cast<double>(numel(a)) * static_cast<double>(b.sizes.back());
  }

  struct Layer {
    ConvolutionShape shape;
    bool transposed = false;
  };
  /// Parses the arguments from index `stride` on, which both operators share.
  static Layer layer_of(const CapturedOperation& operation, const TensorUse& input,
                        const TensorUse& weight, size_t stride) {
    // A list of one number applies to both dimensions.
    const auto numbers = [&](size_t i) {
      std::vector<int64_t> out = operation.arguments[i].value.toIntVector();
      if (out.size() == 1) out.push_back(out[0]);
      return out;
    };
    const auto strides = numbers(stride), padding = numbers(stride + 1),
               dilation = numbers(stride + 2);
    const bool transposed = operation.arguments[stride + 3].value.toBool();
    const auto added = numbers(stride + 4);
    user_check(input.sizes.size() == 4 && strides.size() == 2 && strides[0] == strides[1] &&
                   dilation[0] == 1 && dilation[1] == 1 &&
                   operation.arguments[stride + 5].value.toInt() == 1,
               "plan: the model of a GPU knows convolutions of images by one stride, without "
               "dilation and groups; {}{} is another",
               operation.name, operation.layer.empty() ? "" : " in " + operation.layer);
    Layer out{.transposed = transposed};
    ConvolutionShape& s = out.shape;
    s.n = input.sizes[0];
    s.k = weight.sizes[0];
    s.c = weight.sizes[1];
    s.r = weight.sizes[2];
    s.s = weight.sizes[3];
    s.stride = strides[0];
    const auto larger = [&](int i) {
      return (input.sizes[2 + i] - 1) * s.stride - 2 * padding[i] + weight.sizes[2 + i] + added[i];
    };
    const auto smaller = [&](int i) {
      return (input.sizes[2 + i] + 2 * padding[i] - weight.sizes[2 + i]) / s.stride + 1;
    };
    // A transposed convolution is the backward of one whose x is its output.
    s.h = transposed ? larger(0) : input.sizes[2];
    s.w = transposed ? larger(1) : input.sizes[3];
    s.p = transposed ? input.sizes[2] : smaller(0);
    s.q = transposed ? input.sizes[3] : smaller(1);
    return out;
  }

  std::vector<Algorithm> algorithms_of(const ConvolutionShape& shape, ConvolutionPass pass) const {
    return convolutions_ ? convolutions_(shape, pass)
                         : convolution_algorithms(device_, shape, pass);
  }

  std::vector<Algorithm> convolution(const CapturedOperation& operation) const {
    const auto& arguments = operation.arguments;
    const Layer layer = layer_of(operation, arguments[0].uses[0], arguments[1].uses[0], 3);
    std::vector<Algorithm> out = algorithms_of(
        layer.shape, layer.transposed ? ConvolutionPass::kData : ConvolutionPass::kForward);
    const bool bias =
        arguments[2].kind == CapturedArgument::Kind::kTensor && arguments[2].uses[0].storage >= 0;
    double made = 0;
    for (const int storage : operation.makes)
      made += static_cast<double>(step_.storages[storage].bytes);
    if (bias)  // a separate kernel adds it in place
      for (Algorithm& algorithm : out) algorithm.time_s += 2 * made / device_.bytes_per_s;
    return out;
  }

  std::vector<Algorithm> convolution_backward(const CapturedOperation& operation) const {
    constexpr size_t kStride = 4, kMask = 10;
    const auto& arguments = operation.arguments;
    const Layer layer = layer_of(operation, arguments[1].uses[0], arguments[2].uses[0], kStride);
    const auto mask = arguments[kMask].value.toBoolList();
    std::vector<Algorithm> out = {{"only", 0, 0}};
    const auto pass = [&](ConvolutionPass which) { return algorithms_of(layer.shape, which); };
    const auto data = layer.transposed ? ConvolutionPass::kForward : ConvolutionPass::kData;
    if (mask.get(0) && mask.get(1))
      out = pairs(pass(data), pass(ConvolutionPass::kFilter));
    else if (mask.get(0) || mask.get(1))
      out = pass(mask.get(0) ? data : ConvolutionPass::kFilter);
    const double y_bytes = static_cast<double>(numel(arguments[0].uses[0])) * kFloatBytes;
    if (mask.get(2))
      for (Algorithm& algorithm : out) algorithm.time_s += y_bytes / device_.bytes_per_s;
    return out;
  }

  const DeviceModel& device_;
  const CapturedStep& step_;
  const ConvolutionAlgorithms& convolutions_;
  StepGraph made_;
};

}  // namespace

std::vector<Algorithm> convolution_algorithms(const DeviceModel& device,
                                              const ConvolutionShape& shape, ConvolutionPass pass) {
  return ConvolutionModel(device, shape, pass).all();
}

std::vector<Algorithm> without_dominated(std::vector<Algorithm> algorithms) {
  std::stable_sort(
      algorithms.begin(), algorithms.end(), [](const Algorithm& a, const Algorithm& b) {
        return std::pair(a.workspace_bytes, a.time_s) < std::pair(b.workspace_bytes, b.time_s);
      });
  std::vector<Algorithm> out;
  for (Algorithm& algorithm : algorithms)
    if (out.empty() || algorithm.time_s < out.back().time_s) out.push_back(std::move(algorithm));
  return out;
}

StepGraph graph_on(const DeviceModel& device, const CapturedStep& step,
                   const ConvolutionAlgorithms& convolutions) {
  return DeviceGraph(device, step, convolutions).build();
}

int64_t peak_with_outputs_held(const Graph& graph) {
  const auto backward = [&](const GraphNode& node) {
    return std::any_of(node.outputs.begin(), node.outputs.end(),
                       [&](int t) { return graph.tensors[t].kind == TensorKind::kGrad; });
  };
  std::map<std::string, std::vector<int>> forward_of, backward_of;  // nodes of each layer
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const GraphNode& node = graph.nodes[n];
    if (!node.layer.empty())
      (backward(node) ? backward_of : forward_of)[node.layer].push_back(static_cast<int>(n));
  }
  std::vector<int> until(graph.tensors.size(), -1);
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    for (const auto* list :
         {&graph.nodes[n].inputs, &graph.nodes[n].outputs, &graph.nodes[n].mutates})
      for (const int t : *list) until[graph.root(t)] = static_cast<int>(n);
  for (const auto& [layer, nodes] : forward_of) {
    const auto found = backward_of.find(layer);
    if (found == backward_of.end()) continue;
    const std::vector<int>& after = found->second;
    for (size_t i = 0; i < nodes.size(); ++i) {
      const int its = after[std::min(nodes.size() - 1 - i, after.size() - 1)];
      for (const int t : graph.nodes[nodes[i]].outputs)
        until[graph.root(t)] = std::max(until[graph.root(t)], its);
    }
  }
  for (const int t : graph.final) until[graph.root(t)] = -1;
  int64_t bytes = graph.base_bytes, most = 0;
  for (const GraphTensor& tensor : graph.tensors)
    if (tensor.alias_of < 0 && resident_at_start(tensor.kind)) bytes += tensor.bytes;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    for (const int t : graph.nodes[n].outputs)
      if (graph.tensors[t].alias_of < 0) bytes += graph.tensors[t].bytes;
    most = std::max(most, bytes + graph.nodes[n].algorithms[0].workspace_bytes);
    for (size_t t = 0; t < until.size(); ++t)
      if (until[t] == static_cast<int>(n) && graph.tensors[t].alias_of < 0 &&
          !resident_at_start(graph.tensors[t].kind))
        bytes -= graph.tensors[t].bytes;
  }
  return most;
}

}  // namespace dovetail::plan
