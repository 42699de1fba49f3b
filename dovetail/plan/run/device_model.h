#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "dovetail/plan/record/captured_step.h"
#include "dovetail/plan/record/step_graph.h"

namespace dovetail::plan {

/// GPU in a few numbers, to plan steps for a GPU that is not present. The default is the GPU used
/// by MO-SOS, a planner that decides by 0-1 programs. Its peaks are from the data sheet. A fraction
/// says how much of the FP32 peak a kind of kernel reaches. Fractions are assumptions of this
/// model, not measurements.
struct DeviceModel {
  double flops_per_s = 11.76e12;  ///< FP32 peak in operations per second
  double bytes_per_s = 347e9;     ///< memory bandwidth
  Bandwidth bandwidth = {.to_host = 12e9, .to_device = 11e9};

  double matrix_fraction = 0.80;  ///< matrix products, single and batched
  /// Complex products: four multiplications and four additions per term.
  double complex_fraction = 0.70;
  /// Convolution by implicit GEMM: a matrix product that gathers one operand on the fly.
  double implicit_fraction = 0.45;
  double precomputed_fraction = 0.65;  ///< implicit GEMM with a table of offsets
  double fused_fraction = 0.50;        ///< Winograd products and their transforms in one kernel
};

/// Convolution of x (n, c, h, w) by weight (k, c, r, s) to y (n, k, p, q):
/// - n: batch size; c, k: number of input and output channels
/// - h, w: height and width of x; r, s: of the filter; p, q: of y
///
/// The padding follows from h and p, or from w and q.
struct ConvolutionShape {
  int64_t n = 1, c = 1, h = 1, w = 1, k = 1, r = 1, s = 1, p = 1, q = 1, stride = 1;
};
/// Pass of a convolution. kForward computes y, kData the gradient of x, kFilter the gradient of the
/// weight.
enum class ConvolutionPass { kForward, kData, kFilter };

/// Returns the algorithms of cuDNN 7 for one pass of an FP32 convolution, in the order below. Each
/// has its workspace and time. The time of a kernel is the longer of its arithmetic and its memory
/// traffic.
///
/// implicit_gemm      2 n k p q c r s operations. No workspace.
/// precomputed_gemm   Same operations. A table of 4 bytes for each of c r s offsets (kData: k r s).
///                    cuDNN names: IMPLICIT_PRECOMP_GEMM, and ALGO_1 of the backward passes.
/// gemm               kForward only. Same product, after writing the columns of one image at a
///                    time. Workspace: 4 c r s p q bytes for these columns.
/// winograd           3 x 3, stride 1, not kFilter. F(2x2, 3x3) in one kernel: 16 products over the
///                    tiles of n images. Workspace: 64 c k bytes for the transformed weight.
/// winograd_nonfused  3 x 3, stride 1. F(4x4, 3x3), for kFilter F(3x3, 4x4): three transforms and
///                    36 products of t x c by c x k, where t is the number of 4 x 4 tiles.
///                    Workspace: 144 (t c + t k + c k) bytes.
/// fft_tiling         Stride 1, filters up to 32 x 32. Tiles of 32 x 32, which overlap by r - 1 and
///                    s - 1, as 32 x 17 complex products over t tiles.
///                    Workspace: 4352 (t c + t k + c k) bytes.
///
/// The workspaces of gemm, fft_tiling and winograd equal the workspaces that cuDNN reports
/// (tests/plan/device_model_test.cpp). The workspace of winograd_nonfused holds its three operands.
std::vector<Algorithm> convolution_algorithms(const DeviceModel& device,
                                              const ConvolutionShape& shape, ConvolutionPass pass);

/// Returns the algorithms of one pass of a convolution.
using ConvolutionAlgorithms =
    std::function<std::vector<Algorithm>(const ConvolutionShape& shape, ConvolutionPass pass)>;

/// Removes each algorithm for which another one is no slower and needs no more workspace. Returns
/// the remaining ones in order of ascending workspace.
std::vector<Algorithm> without_dominated(std::vector<Algorithm> algorithms);

/// Returns the graph of a captured step (`graph_of`), with the modelled bandwidth and the modelled
/// time of each node on `device`. Graph::budget_bytes is the peak memory if everything is kept.
///
/// A convolution has the algorithms that `convolutions` returns; by default that is
/// `convolution_algorithms`. A backward convolution has all pairs of a data and a filter algorithm,
/// run one after the other. Only algorithms that `without_dominated` returns remain. A matrix
/// product (mm, addmm, bmm) takes the longer of its arithmetic and its memory traffic. Every other
/// operation reads each of its tensors once, and writes once what it creates or changes. A codec
/// `mxfp8` runs at the speed of the memory. It may compress float activations, with loss.
StepGraph graph_on(const DeviceModel& device, const CapturedStep& step,
                   const ConvolutionAlgorithms& convolutions = {});

/// Returns the peak memory of the step in a framework without liveness analysis. There, each
/// forward output is held until its node's backward and its last reader have ended. Nodes are
/// paired by layer: the last forward node of a layer with its first backward node.
int64_t peak_with_outputs_held(const Graph& graph);

}  // namespace dovetail::plan
