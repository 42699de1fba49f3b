#include "dovetail/ops/convolution.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/library.h>

#include <algorithm>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"
#include "dovetail/ops/convolution_simd.h"
#include "dovetail/ops/gemm_simd.h"
#include "dovetail/ops/simd_level.h"
#include "dovetail/ops/winograd.h"

namespace dovetail::ops {
namespace {

constexpr std::array<std::string_view, 2> kNames = {"im2col", "winograd"};

/// Checked sizes of one convolution.
struct Problem {
  int64_t batch, filters;
  ColumnShape columns;

  Problem(at::IntArrayRef x, at::IntArrayRef weight, const ConvolutionOptions& o) {
    user_check(
        x.size() == 4 && weight.size() == 4 && x[1] == weight[1],
        "convolution: x [{}] must be (N, C, H, W) and weight [{}] (K, C, R, S) with the same C",
        fmt::join(x, ", "), fmt::join(weight, ", "));
    user_check(
        *std::min_element(weight.begin(), weight.end()) > 0 && x[1] > 0 && x[2] > 0 && x[3] > 0,
        "convolution: of x [{}] and weight [{}] only the batch may be empty", fmt::join(x, ", "),
        fmt::join(weight, ", "));
    user_check(std::min(o.stride[0], o.stride[1]) > 0 && std::min(o.padding[0], o.padding[1]) >= 0,
               "convolution: stride [{}] must be positive and padding [{}] not negative",
               fmt::join(o.stride, ", "), fmt::join(o.padding, ", "));
    std::array<int64_t, 2> out;
    for (int i = 0; i < 2; ++i) {
      const int64_t room = x[2 + i] + 2 * o.padding[i] - weight[2 + i];
      user_check(room >= 0, "convolution: filters [{}] do not fit into x [{}] with padding [{}]",
                 fmt::join(weight, ", "), fmt::join(x, ", "), fmt::join(o.padding, ", "));
      out[i] = room / o.stride[i] + 1;
    }
    batch = x[0];
    filters = weight[0];
    columns = {x[1],        x[2],         x[3],         weight[2], weight[3], o.stride[0],
               o.stride[1], o.padding[0], o.padding[1], out[0],    out[1]};
  }

  /// Returns true if the columns of an image are the image itself.
  bool pointwise() const {
    const ColumnShape& c = columns;
    return c.kernel_height == 1 && c.kernel_width == 1 && c.stride_height == 1 &&
           c.stride_width == 1 && c.pad_height == 0 && c.pad_width == 0;
  }
  int64_t image_floats() const { return columns.channels * columns.height * columns.width; }
  int64_t out_floats() const { return filters * columns.pixels(); }
  std::array<int64_t, 4> out_sizes() const {
    return {batch, filters, columns.out_height, columns.out_width};
  }

  WinogradProblem winograd(ConvolutionPass pass) const {
    const bool backward = pass == ConvolutionPass::kBackwardData;
    const ColumnShape& c = columns;
    return {.batch = batch,
            .in_channels = c.channels,
            .out_channels = filters,
            .height = backward ? c.out_height : c.height,
            .width = backward ? c.out_width : c.width,
            .pad_height = backward ? 2 - c.pad_height : c.pad_height,
            .pad_width = backward ? 2 - c.pad_width : c.pad_width,
            .transposed = backward};
  }

  int64_t workspace_floats(ConvolutionPass pass, ConvolutionAlgorithm algorithm) const {
    if (batch == 0) return 0;
    if (algorithm == ConvolutionAlgorithm::kWinograd)
      return winograd_workspace_floats(winograd(pass));
    return (pointwise() ? 0 : columns.rows() * columns.pixels()) +
           (pass == ConvolutionPass::kBackwardWeight ? filters : 0);
  }
};

void check_tensor(const char* what, const at::Tensor& tensor, at::IntArrayRef sizes) {
  user_check(tensor.defined() && tensor.is_cpu() && tensor.scalar_type() == at::kFloat &&
                 tensor.sizes() == sizes,
             "convolution: {} must be [{}] float32 on the CPU; it is {}", what,
             fmt::join(sizes, ", "), describe(tensor));
}

void check_applies(ConvolutionPass pass, at::IntArrayRef weight,
                   const ConvolutionOptions& options) {
  if (const auto reason = why_not(pass, weight, options))
    throw UserError(fmt::format("convolution: {} {}", name(options.algorithm), *reason),
                    "use im2col, or at::convolution");
}

at::Tensor made(at::IntArrayRef sizes) { return at::empty(sizes, at::kFloat); }

/// Workspace of a pass; an undefined tensor if the pass needs none.
struct Scratch {
  explicit Scratch(int64_t floats) : memory(floats > 0 ? made({floats}) : at::Tensor()) {}
  float* data() const { return memory.defined() ? memory.mutable_data_ptr<float>() : nullptr; }
  at::Tensor memory;
};

GemmProblem product(int64_t m, int64_t n, int64_t k, MatrixView a, MatrixView b, float* c) {
  return {.m = m,
          .n = n,
          .k = k,
          .a = a,
          .b = b,
          .c = c,
          .ldc = n,
          .bias = nullptr,
          .accumulate = false,
          .row_sums = nullptr,
          .c_row = nullptr,
          .c_weight = nullptr};
}

void multiply(const GemmProblem& problem) { gemm_float32({&problem, 1}); }

void forward_columns(const Problem& p, const float* x, const float* weight, const float* bias,
                     float* y, float* columns) {
  const int64_t terms = p.columns.rows(), pixels = p.columns.pixels();
  for (int64_t n = 0; n < p.batch; ++n, x += p.image_floats(), y += p.out_floats()) {
    if (!p.pointwise()) image_to_columns(p.columns, x, columns);
    GemmProblem one = product(p.filters, pixels, terms, {weight, terms, 1},
                              {p.pointwise() ? x : columns, pixels, 1}, y);
    if (bias != nullptr) {
      one.accumulate = true;
      for (int64_t k = 0; k < p.filters; ++k) std::fill_n(y + k * pixels, pixels, bias[k]);
    }
    multiply(one);
  }
}

void backward_data_columns(const Problem& p, const float* dy, const float* weight, float* dx,
                           float* columns) {
  const int64_t terms = p.columns.rows(), pixels = p.columns.pixels();
  for (int64_t n = 0; n < p.batch; ++n, dy += p.out_floats(), dx += p.image_floats()) {
    multiply(product(terms, pixels, p.filters, {weight, 1, terms}, {dy, pixels, 1},
                     p.pointwise() ? dx : columns));
    if (!p.pointwise()) columns_to_image(p.columns, columns, dx);
  }
}

void backward_weight_columns(const Problem& p, const float* dy, const float* x, float* dweight,
                             float* dbias, float* scratch) {
  const int64_t terms = p.columns.rows(), pixels = p.columns.pixels();
  float* const sums = scratch;
  float* const columns = scratch + p.filters;
  std::fill_n(dbias, p.filters, 0.0f);
  for (int64_t n = 0; n < p.batch; ++n, dy += p.out_floats(), x += p.image_floats()) {
    if (!p.pointwise()) image_to_columns(p.columns, x, columns);
    GemmProblem one = product(p.filters, terms, pixels, {dy, pixels, 1},
                              {p.pointwise() ? x : columns, 1, pixels}, dweight);
    one.accumulate = n > 0;
    one.row_sums = sums;
    multiply(one);
    for (int64_t k = 0; k < p.filters; ++k) dbias[k] += sums[k];
  }
  if (p.batch == 0) std::fill_n(dweight, p.filters * terms, 0.0f);
}

}  // namespace

std::string_view name(ConvolutionAlgorithm algorithm) {
  return kNames[static_cast<size_t>(algorithm)];
}

ConvolutionAlgorithm convolution_algorithm(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i)
    if (name == kNames[i]) return static_cast<ConvolutionAlgorithm>(i);
  throw UserError(fmt::format("convolution: no algorithm is named \"{}\"", name),
                  fmt::format("use one of {}", fmt::join(kNames, ", ")));
}

std::optional<std::string> why_not(ConvolutionPass pass, at::IntArrayRef weight_sizes,
                                   const ConvolutionOptions& options) {
  if (options.algorithm == ConvolutionAlgorithm::kIm2col) return std::nullopt;
  if (pass == ConvolutionPass::kBackwardWeight) return "does not make gradients of weights";
  if (weight_sizes.size() != 4 || weight_sizes[2] != 3 || weight_sizes[3] != 3)
    return fmt::format("is for filters of 3 x 3, and the weight is [{}]",
                       fmt::join(weight_sizes, ", "));
  if (options.stride != std::array<int64_t, 2>{1, 1})
    return fmt::format("is for stride 1, not [{}]", fmt::join(options.stride, ", "));
  if (pass == ConvolutionPass::kBackwardData &&
      std::max(options.padding[0], options.padding[1]) > 2)
    return fmt::format("goes back to data with padding up to 2, not [{}]",
                       fmt::join(options.padding, ", "));
  return std::nullopt;
}

int64_t convolution_workspace_bytes(ConvolutionPass pass, at::IntArrayRef x_sizes,
                                    at::IntArrayRef weight_sizes,
                                    const ConvolutionOptions& options) {
  check_applies(pass, weight_sizes, options);
  const Problem problem(x_sizes, weight_sizes, options);
  return problem.workspace_floats(pass, options.algorithm) * static_cast<int64_t>(sizeof(float));
}

at::Tensor convolution(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                       const ConvolutionOptions& options) {
  const TraceSpan span("dovetail::convolution");
  simd_level();  // applies DOVETAIL_SIMD
  check_applies(ConvolutionPass::kForward, weight.sizes(), options);
  const Problem p(x.sizes(), weight.sizes(), options);
  check_tensor("x", x, x.sizes());
  check_tensor("weight", weight, weight.sizes());
  if (bias.defined()) check_tensor("bias", bias, {p.filters});
  at::Tensor y = made(p.out_sizes());
  if (y.numel() == 0) return y;
  const at::Tensor xs = x.contiguous(), weights = weight.contiguous();
  const at::Tensor biases = bias.defined() ? bias.contiguous() : bias;
  const Scratch scratch(p.workspace_floats(ConvolutionPass::kForward, options.algorithm));
  const auto *from = xs.const_data_ptr<float>(), *w = weights.const_data_ptr<float>();
  if (options.algorithm == ConvolutionAlgorithm::kIm2col) {
    forward_columns(p, from, w, data_or_null(biases), y.mutable_data_ptr<float>(), scratch.data());
  } else {
    WinogradProblem problem = p.winograd(ConvolutionPass::kForward);
    problem.x = from, problem.weight = w, problem.bias = data_or_null(biases),
    problem.y = y.mutable_data_ptr<float>();
    convolve_winograd(problem, scratch.data());
  }
  return y;
}

at::Tensor convolution_backward_data(const at::Tensor& dy, const at::Tensor& weight,
                                     at::IntArrayRef x_sizes, const ConvolutionOptions& options) {
  const TraceSpan span("dovetail::convolution_backward_data");
  simd_level();
  check_applies(ConvolutionPass::kBackwardData, weight.sizes(), options);
  const Problem p(x_sizes, weight.sizes(), options);
  check_tensor("dy", dy, p.out_sizes());
  check_tensor("weight", weight, weight.sizes());
  at::Tensor dx = made(x_sizes);
  if (dx.numel() == 0) return dx;
  const at::Tensor from = dy.contiguous(), weights = weight.contiguous();
  const Scratch scratch(p.workspace_floats(ConvolutionPass::kBackwardData, options.algorithm));
  const auto *g = from.const_data_ptr<float>(), *w = weights.const_data_ptr<float>();
  if (options.algorithm == ConvolutionAlgorithm::kIm2col) {
    backward_data_columns(p, g, w, dx.mutable_data_ptr<float>(), scratch.data());
  } else {
    WinogradProblem problem = p.winograd(ConvolutionPass::kBackwardData);
    problem.x = g, problem.weight = w, problem.y = dx.mutable_data_ptr<float>();
    convolve_winograd(problem, scratch.data());
  }
  return dx;
}

ConvolutionGradients convolution_backward_weight(const at::Tensor& dy, const at::Tensor& x,
                                                 at::IntArrayRef weight_sizes,
                                                 const ConvolutionOptions& options) {
  const TraceSpan span("dovetail::convolution_backward_weight");
  simd_level();
  check_applies(ConvolutionPass::kBackwardWeight, weight_sizes, options);
  const Problem p(x.sizes(), weight_sizes, options);
  check_tensor("x", x, x.sizes());
  check_tensor("dy", dy, p.out_sizes());
  ConvolutionGradients out{made(weight_sizes), made({p.filters})};
  const at::Tensor xs = x.contiguous(), from = dy.contiguous();
  const Scratch scratch(p.workspace_floats(ConvolutionPass::kBackwardWeight, options.algorithm));
  backward_weight_columns(p, from.const_data_ptr<float>(), xs.const_data_ptr<float>(),
                          out.weight.mutable_data_ptr<float>(), out.bias.mutable_data_ptr<float>(),
                          scratch.data());
  return out;
}

}  // namespace dovetail::ops
