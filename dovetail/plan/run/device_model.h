#pragma once

#include <cstdint>
#include <vector>

#include "dovetail/plan/record/captured_step.h"
#include "dovetail/plan/record/step_graph.h"

namespace dovetail::plan {

/// GPU in a few numbers, to plan steps for a GPU that is not present. The default is the GPU of
/// MO-SOS, with the peaks of its data sheet. The fractions say how much of the arithmetic peak a
/// kernel reaches. They are assumptions of this model, not measurements.
struct DeviceModel {
  double flops_per_s = 11.76e12;  ///< FP32 peak
  double bytes_per_s = 347e9;     ///< memory bandwidth
  Bandwidth bandwidth = {.to_host = 12e9, .to_device = 11e9};

  double matrix_fraction = 0.80;  ///< matrix products, single and batched
  double complex_fraction =
      0.70;  ///< complex products: four multiplications and four additions per term
  double implicit_fraction =
      0.45;  ///< implicit GEMM: the convolution gathers one operand on the fly
  double precomputed_fraction = 0.65;  ///< implicit GEMM with a table of offsets
  double fused_fraction = 0.50;        ///< Winograd products and their transforms in one kernel
};

/// Convolution of x (n, c, h, w) by weight (k, c, r, s) to y (n, k, p, q). The padding follows from
/// h and p, or from w and q.
struct ConvolutionShape {
  int64_t n = 1, c = 1, h = 1, w = 1, k = 1, r = 1, s = 1, p = 1, q = 1, stride = 1;
};
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

/// Removes each algorithm if another one is no slower and needs no more workspace. The rest is
/// ordered by falling workspace.
std::vector<Algorithm> without_dominated(std::vector<Algorithm> algorithms);

/// Returns the graph of a captured step on the device: `graph_of`, with the device's bandwidth and
/// the time of every node. A codec `mxfp8` runs at the speed of the memory. Convolutions have the
/// algorithms above. A backward convolution has all pairs of a data and a filter algorithm, run one
/// after the other. Dominated algorithms of a node are removed. A matrix product (mm, addmm, bmm)
/// takes the longer of its arithmetic and its memory traffic. Every other operation reads each of
/// its tensors once, and writes once what it makes or changes. Float activations may go through the
/// codec, which loses bits. `budget_bytes` is the peak with everything kept.
StepGraph graph_on(const DeviceModel& device, const CapturedStep& step);

/// Peak memory of the step if each forward output is held until its node's backward has run. It is
/// held until its last reader if that is later. Frameworks without liveness analysis hold outputs
/// so long. Nodes are paired by layer: the last forward node of a layer with its first backward
/// node.
int64_t peak_with_outputs_held(const Graph& graph);

}  // namespace dovetail::plan
