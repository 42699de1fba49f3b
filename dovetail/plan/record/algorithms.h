#pragma once

#include <cstdint>
#include <limits>

#include "dovetail/plan/record/captured_step.h"
#include "dovetail/plan/record/profile_cache.h"
#include "dovetail/plan/record/step_graph.h"

namespace dovetail::plan {

/// Adds alternative algorithms to each convolution node of the graph. On a CPU they are ours
/// (ops/convolution.h), on a GPU cuDNN's deterministic ones (ops/gpu_convolution.h). The recorded
/// algorithm stays first and gets the name "aten". Names of the alternatives:
/// - forward: "im2col", "winograd", or cuDNN's names
/// - backward: "<data>, <weight>", as in "winograd, aten"
///
/// <data> computes the gradient of the data. <weight> computes the gradients of weight and bias. If
/// only one of the two is needed, the name has only this part.
///
/// A node gets only those algorithms that can compute its convolution. A convolution has no
/// alternatives if
/// - it has groups or dilation,
/// - it is transposed,
/// - its dtype is not float32,
/// - one of its tensors is not contiguous,
/// - its tensors and the algorithm's workspace take more than `most_bytes` together.
///
/// Times are 0 until time_on_zeros or a profile (plan/run/profile.h) fills them. The memory that an
/// alternative allocates on a CPU is found by running it twice on zeros. `cache` stores the
/// allocations. If it has them already, the alternative does not run.
void add_convolution_algorithms(const CapturedStep& step, StepGraph& graph, ProfileCache& cache,
                                int64_t most_bytes = std::numeric_limits<int64_t>::max());

/// Sets the times of all algorithms of each node with several: the sum over its operations. The
/// time of an operation is the minimum of three runs on zeros after a warm-up. `cache` stores the
/// times. If it has one already, nothing runs for it. The runs allocate memory outside any plan: an
/// operation's tensors and its workspace. Call it before
/// add_host_updates (plan/run/host_updates.h): updates must not run on zeros.
void time_on_zeros(const CapturedStep& step, StepGraph& graph, ProfileCache& cache);

/// Removes algorithms of nodes that failed on zeros, or for which another one takes neither more
/// time nor more workspace. The recorded algorithm stays. Call it after time_on_zeros.
void drop_dominated(StepGraph& graph);

}  // namespace dovetail::plan
