// cuDNN's legacy interface is deprecated. Its successor names no algorithms.
#define CUDNN_DISABLE_DEPRECATION_WARNINGS
#include <ATen/cudnn/Handle.h>
#include <c10/util/Exception.h>
#include <cudnn.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <type_traits>

#include "dovetail/base/error.h"
#include "dovetail/ops/gpu_convolution.h"

namespace dovetail::ops::cuda {
namespace {

void check(cudnnStatus_t status, const char* what) {
  TORCH_CHECK(status == CUDNN_STATUS_SUCCESS, what, " of cuDNN ", cudnnGetVersion(),
              " fails: ", cudnnGetErrorString(status));
}

/// cuDNN's object, which its functions make and destroy.
template <class T, cudnnStatus_t (*make)(T*), cudnnStatus_t (*destroy)(T)>
class Descriptor {
 public:
  Descriptor() {
    T made = nullptr;
    check(make(&made), "a descriptor");
    held_.reset(made);
  }
  // NOLINTNEXTLINE(google-explicit-constructor): stands for cuDNN's own type
  operator T() const { return held_.get(); }

 private:
  struct Destroy {
    void operator()(T held) const { destroy(held); }
  };
  std::unique_ptr<std::remove_pointer_t<T>, Destroy> held_;
};
using TensorDescriptor =
    Descriptor<cudnnTensorDescriptor_t, cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor>;
using FilterDescriptor =
    Descriptor<cudnnFilterDescriptor_t, cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor>;
using ConvolutionDescriptor =
    Descriptor<cudnnConvolutionDescriptor_t, cudnnCreateConvolutionDescriptor,
               cudnnDestroyConvolutionDescriptor>;

std::array<int, 4> as_ints(const std::array<int64_t, 4>& sizes) {
  std::array<int, 4> out{};
  std::ranges::transform(sizes, out.begin(), [](int64_t size) { return static_cast<int>(size); });
  return out;
}

TensorDescriptor tensor_of(const std::array<int64_t, 4>& sizes) {
  const auto [n, c, h, w] = as_ints(sizes);
  TensorDescriptor out;
  check(cudnnSetTensor4dDescriptor(out, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, n, c, h, w),
        "a tensor");
  return out;
}

FilterDescriptor filter_of(const std::array<int64_t, 4>& sizes) {
  const auto [k, c, r, s] = as_ints(sizes);
  FilterDescriptor out;
  check(cudnnSetFilter4dDescriptor(out, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, k, c, r, s),
        "a filter");
  return out;
}

/// Descriptors of a problem.
struct Problem {
  explicit Problem(const GpuConvolution& convolution)
      : x(tensor_of(convolution.x)), y(tensor_of(convolution.y)), w(filter_of(convolution.weight)) {
    const auto& [down, right] = convolution.stride;
    const auto& [above, left] = convolution.padding;
    check(cudnnSetConvolution2dDescriptor(c, static_cast<int>(above), static_cast<int>(left),
                                          static_cast<int>(down), static_cast<int>(right), 1, 1,
                                          CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT),
          "a convolution");
    // Each algorithm runs with this choice, so that a name stands for the same bits.
    check(cudnnSetConvolutionMathType(c, convolution.tf32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH),
          "a convolution");
  }
  TensorDescriptor x, y;
  FilterDescriptor w;
  ConvolutionDescriptor c;
};

// Names of algorithms by their numbers. Each pass has numbers of its own.
constexpr std::array<std::string_view, CUDNN_CONVOLUTION_FWD_ALGO_COUNT> kForward = {
    "implicit_gemm", "implicit_precomp_gemm", "gemm", "direct", "fft", "fft_tiling",
    "winograd",      "winograd_nonfused"};
constexpr std::array<std::string_view, CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT> kData = {
    "algo_0", "algo_1", "fft", "fft_tiling", "winograd", "winograd_nonfused"};
constexpr std::array<std::string_view, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT> kFilter = {
    "algo_0", "algo_1", "fft", "algo_3", "winograd", "winograd_nonfused", "fft_tiling"};

template <size_t N>
int number_of(std::string_view name, const std::array<std::string_view, N>& names) {
  const auto found = std::ranges::find(names, name);
  user_check(found != names.end(), "gpu_convolution: cuDNN has no algorithm \"{}\" for this pass",
             name);
  return static_cast<int>(found - names.begin());
}

/// Returns the algorithms that cuDNN reports as possible and deterministic, in its order.
/// `workspace_of(algorithm, &bytes)` asks for the workspace.
template <class Performance, size_t N, class Ask, class WorkspaceOf>
std::vector<GpuConvolutionAlgorithm> possible(const std::array<std::string_view, N>& names,
                                              const Ask& ask, const WorkspaceOf& workspace_of) {
  std::array<Performance, 2 * N> found{};  // some come twice, for both kinds of products
  int count = 0;
  check(ask(static_cast<int>(found.size()), &count, found.data()), "a list of algorithms");
  std::vector<GpuConvolutionAlgorithm> out;
  for (int i = 0; i < count; ++i) {
    const auto number = static_cast<size_t>(found[i].algo);
    if (found[i].status != CUDNN_STATUS_SUCCESS || number >= N ||
        found[i].determinism != CUDNN_DETERMINISTIC)
      continue;
    size_t bytes = 0;
    const std::string name(names[number]);
    if (std::ranges::find(out, name, &GpuConvolutionAlgorithm::name) != out.end() ||
        workspace_of(found[i].algo, &bytes) != CUDNN_STATUS_SUCCESS)
      continue;
    out.push_back({name, static_cast<int64_t>(bytes)});
  }
  return out;
}

std::vector<GpuConvolutionAlgorithm> algorithms(const GpuConvolution& convolution) {
  const cudnnHandle_t handle = at::native::getCudnnHandle();
  const Problem p(convolution);
  switch (convolution.pass) {
    case ConvolutionPass::kForward:
      return possible<cudnnConvolutionFwdAlgoPerf_t>(
          kForward,
          [&](int most, int* count, auto* found) {
            return cudnnGetConvolutionForwardAlgorithm_v7(handle, p.x, p.w, p.c, p.y, most, count,
                                                          found);
          },
          [&](auto algorithm, size_t* bytes) {
            return cudnnGetConvolutionForwardWorkspaceSize(handle, p.x, p.w, p.c, p.y, algorithm,
                                                           bytes);
          });
    case ConvolutionPass::kBackwardData:
      return possible<cudnnConvolutionBwdDataAlgoPerf_t>(
          kData,
          [&](int most, int* count, auto* found) {
            return cudnnGetConvolutionBackwardDataAlgorithm_v7(handle, p.w, p.y, p.c, p.x, most,
                                                               count, found);
          },
          [&](auto algorithm, size_t* bytes) {
            return cudnnGetConvolutionBackwardDataWorkspaceSize(handle, p.w, p.y, p.c, p.x,
                                                                algorithm, bytes);
          });
    case ConvolutionPass::kBackwardWeight:
      return possible<cudnnConvolutionBwdFilterAlgoPerf_t>(
          kFilter,
          [&](int most, int* count, auto* found) {
            return cudnnGetConvolutionBackwardFilterAlgorithm_v7(handle, p.x, p.y, p.c, p.w, most,
                                                                 count, found);
          },
          [&](auto algorithm, size_t* bytes) {
            return cudnnGetConvolutionBackwardFilterWorkspaceSize(handle, p.x, p.y, p.c, p.w,
                                                                  algorithm, bytes);
          });
  }
  return {};
}

void convolve(const GpuConvolution& convolution, const GpuConvolutionAlgorithm& algorithm,
              const float* a, const float* b, float* to, void* workspace) {
  const cudnnHandle_t handle = at::native::getCudnnHandle();  // on torch's current stream
  const Problem p(convolution);
  const auto bytes = static_cast<size_t>(algorithm.workspace_bytes);
  const float one = 1, zero = 0;
  switch (convolution.pass) {
    case ConvolutionPass::kForward:
      return check(cudnnConvolutionForward(
                       handle, &one, p.x, a, p.w, b, p.c,
                       static_cast<cudnnConvolutionFwdAlgo_t>(number_of(algorithm.name, kForward)),
                       workspace, bytes, &zero, p.y, to),
                   algorithm.name.c_str());
    case ConvolutionPass::kBackwardData:
      return check(cudnnConvolutionBackwardData(
                       handle, &one, p.w, b, p.y, a, p.c,
                       static_cast<cudnnConvolutionBwdDataAlgo_t>(number_of(algorithm.name, kData)),
                       workspace, bytes, &zero, p.x, to),
                   algorithm.name.c_str());
    case ConvolutionPass::kBackwardWeight:
      return check(cudnnConvolutionBackwardFilter(handle, &one, p.x, b, p.y, a, p.c,
                                                  static_cast<cudnnConvolutionBwdFilterAlgo_t>(
                                                      number_of(algorithm.name, kFilter)),
                                                  workspace, bytes, &zero, p.w, to),
                   algorithm.name.c_str());
  }
}

void add_bias(const std::array<int64_t, 4>& y_sizes, const float* bias, float* y) {
  const float one = 1;
  check(cudnnAddTensor(at::native::getCudnnHandle(), &one, tensor_of({1, y_sizes[1], 1, 1}), bias,
                       &one, tensor_of(y_sizes), y),
        "the sum with a bias");
}

void bias_gradient(const std::array<int64_t, 4>& y_sizes, const float* dy, float* to) {
  const float one = 1, zero = 0;
  check(cudnnConvolutionBackwardBias(at::native::getCudnnHandle(), &one, tensor_of(y_sizes), dy,
                                     &zero, tensor_of({1, y_sizes[1], 1, 1}), to),
        "the gradient of a bias");
}

}  // namespace
}  // namespace dovetail::ops::cuda

extern "C" const dovetail::ops::CudnnKernels* dovetail_cudnn_kernels() {
  static const dovetail::ops::CudnnKernels kernels = {
      .algorithms = dovetail::ops::cuda::algorithms,
      .convolve = dovetail::ops::cuda::convolve,
      .add_bias = dovetail::ops::cuda::add_bias,
      .bias_gradient = dovetail::ops::cuda::bias_gradient};
  return &kernels;
}
