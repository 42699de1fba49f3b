#pragma once

#include "dovetail/plan/record/captured_step.h"
#include "dovetail/plan/record/profile_cache.h"
#include "dovetail/plan/record/step_graph.h"

namespace dovetail::plan {

/// Give the graph's nodes that are a convolution the other algorithms that there are for it
/// (ops/convolution.h), after the captured one, which is then called "aten":
///   forward   "im2col", "winograd"
///   backward  the gradient of the data by one, that of weight and bias by another, "winograd,
///   aten" say; where only one
///             of them is asked for, the name of its own
/// An algorithm that does not apply is left out, as are convolutions with groups, dilation or
/// transposed, of another dtype than float32, and of tensors that are not contiguous. Times are 0
/// until a profile fills them (plan/run/profile.h).
///
/// What an operation allocates is found by running it, twice, on tensors of zeros, unless `cache`
/// knows; it is put there.
void add_convolution_algorithms(const CapturedStep& step, StepGraph& graph, ProfileCache& cache);

}  // namespace dovetail::plan
