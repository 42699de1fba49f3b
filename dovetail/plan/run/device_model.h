#pragma once

#include <cstdint>
#include <vector>

#include "dovetail/plan/record/captured_step.h"
#include "dovetail/plan/record/step_graph.h"

namespace dovetail::plan {

/// A GPU in a few numbers, for plans of steps that no such GPU is there to run: the default is the
/// one of MO-SOS. Peaks are its data sheet's; fractions of the peak of arithmetic are what kernels
/// are taken to reach, an assumption of this model and no measurement.
struct DeviceModel {
  double flops_per_s = 11.76e12;  ///< FP32
  double bytes_per_s = 347e9;     ///< its memory
  Bandwidth bandwidth = {.to_host = 12e9, .to_device = 11e9};

  double matrix_fraction = 0.80;  ///< of matrix products, single and in batches
  double complex_fraction =
      0.70;  ///< of complex ones, four multiplications and four additions a term
  double implicit_fraction =
      0.45;  ///< of a convolution as a product whose one factor is gathered as it goes
  double precomputed_fraction = 0.65;  ///< of the same with a table of offsets
  double fused_fraction = 0.50;  ///< of Winograd's products in one kernel with their transforms
};

/// x (n, c, h, w) by weight (k, c, r, s) is y (n, k, p, q). Padding is what h and p leave for it.
struct ConvolutionShape {
  int64_t n = 1, c = 1, h = 1, w = 1, k = 1, r = 1, s = 1, p = 1, q = 1, stride = 1;
};
enum class ConvolutionPass { kForward, kData, kFilter };

/// The algorithms that cuDNN 7 has for a pass of a convolution in FP32, in this order, each with
/// its workspace, and with its time by arithmetic or memory traffic, whichever takes longer in each
/// of its kernels:
///
/// implicit_gemm      2 n k p q c r s operations; no workspace.
/// precomputed_gemm   the same; a table of 4 bytes for each of c r s (kData: k r s) offsets.
/// (IMPLICIT_PRECOMP_GEMM, and
///                    ALGO_1 of the backward passes.)
/// gemm               kForward alone: the same product after the columns, 4 c r s p q bytes, of one
/// image at a time have
///                    been written.
/// winograd           3 x 3, stride 1, not kFilter: F(2x2, 3x3) in one kernel, 16 products of the n
/// tiles each; the
///                    transformed weight, 64 c k bytes.
/// winograd_nonfused  3 x 3, stride 1: F(4x4, 3x3), kFilter F(3x3, 4x4): three transforms and 36
/// products of t x c by
///                    c x k, where t is the number of 4 x 4 tiles; 144 (t c + t k + c k) bytes.
/// fft_tiling         stride 1, up to 32 x 32: tiles of 32 x 32, which overlap by r - 1 and s - 1,
/// as 32 x 17 complex
///                    products; 4352 (t c + t k + c k) bytes.
///
/// Workspaces of gemm, fft_tiling and winograd are those that cuDNN reports
/// (tests/plan/device_model_test.cpp); that of winograd_nonfused is what its three operands take.
std::vector<Algorithm> convolution_algorithms(const DeviceModel& device,
                                              const ConvolutionShape& shape, ConvolutionPass pass);

/// Without those that another is no slower than with no more workspace; by falling workspace.
std::vector<Algorithm> without_dominated(std::vector<Algorithm> algorithms);

/// A captured step as the device would run it: `graph_of`, with the device's bandwidth, a codec
/// `mxfp8` at the speed of its memory, and the time of every node. Convolutions have the algorithms
/// above, and a backward one every pair of algorithms for its data and its filter, one after the
/// other; of each node those remain that none dominates. Matrix products (mm, addmm, bmm) take
/// their arithmetic or their memory; every other operation reads each of its tensors once and
/// writes what it makes or changes once. Activations of floats may go through the codec, which
/// loses bits. `budget_bytes` is the peak with everything kept.
StepGraph graph_on(const DeviceModel& device, const CapturedStep& step);

/// The peak of the step if every output of a forward node is held until that node's own backward
/// has run, or its last reader if that is later: what frameworks without liveness analysis hold.
/// Forward and backward nodes belong together by layer, the last forward one of a layer with its
/// first backward one.
int64_t peak_with_outputs_held(const Graph& graph);

}  // namespace dovetail::plan
