#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "dovetail/moe/device_rows.h"
#include "dovetail/moe/expert_weights.h"

/// Products of the experts whose numbers of rows stay on the device. `torch._grouped_mm` reads them
/// there. `feed_forward` of moe/experts.h passes sizes from the host.
///
/// Roofline of forward and backward: 16 experts, k = 2, 16384 tokens of width 1024, ffn_width 4096,
/// GELU, bfloat16. The rates are an H100's data sheet (989 TFLOP/s, 3.35 TB/s). Computed, not
/// measured:
///
/// - products: 6 * 32784 * 1024 * 8192 = 1.65 TFLOP, 1.67 ms; their operands: 2.8 GB, 0.84 ms
/// - rows gathered, activated and combined: 2.1 GB, 0.62 ms
///
/// Weights that share one storage (`share_storage`) are read as they are. Others are copied in
/// forward and in backward: 1.07 GB here, 0.32 ms.
namespace dovetail::moe {

/// Linear layer with another weight for each expert: y[p] = weight[e] x[p] + bias[e] for the places
/// p of expert e. Places behind the last expert's stay undefined.
///
/// x: (P, in). weight: E tensors (out, in) of equal sizes. ends: (E) int32 on x's device, ascending
/// (DeviceRows::ends); no expert may be without places. bias: E tensors (out), or empty. y: (P,
/// out). in and out are multiples of 16 bytes. Sums are float32. Differentiable in x and all
/// weights and biases.
at::Tensor device_grouped_linear(const at::Tensor& x, at::TensorList weight, const at::Tensor& ends,
                                 at::TensorList bias = {});

/// Computes the same as feed_forward(x, weight, Dispatch, experts) of moe/experts.h, in float32 or
/// bfloat16, without the host. Runs on a GPU, the CPU or the meta device. Throws UserError naming
/// the tensor.
at::Tensor feed_forward(const at::Tensor& x, const at::Tensor& weight, const DeviceRows& to,
                        const ExpertWeights& experts);

/// Runs the experts on the choices `expert` and `slot`, (T, k) int32 (Routing): by DeviceRows if
/// device_rows_obstacle is empty, else by a Dispatch.
at::Tensor run_choices(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& expert,
                       const at::Tensor& slot, const ExpertWeights& experts);

/// Returns the reason why the numbers of the experts' rows cannot follow from shapes alone. Empty
/// if they can. Reasons:
///
/// - the kernel `experts` or `grouped_mm` is disabled (DOVETAIL_DISABLE),
/// - experts of different widths, or widths that are not multiples of 8,
/// - more experts than `torch._grouped_mm` takes.
///
/// Within `torch._grouped_mm` the host may still read the sizes (grouped_mm_obstacle).
std::string fixed_sizes_obstacle(const ExpertWeights& experts);

/// Returns the reason why a GPU of compute capability `major` cannot run `experts` without the
/// host. Empty if it can. Reasons:
///
/// - a reason of fixed_sizes_obstacle,
/// - another dtype than bfloat16,
/// - a compute capability other than 9 and 10.
std::string grouped_mm_obstacle(const ExpertWeights& experts, int major);

/// Returns the reason why `experts` cannot run so on their device. Empty if they can. The meta
/// device stands for a GPU of compute capability 9.
std::string device_rows_obstacle(const ExpertWeights& experts);

}  // namespace dovetail::moe
