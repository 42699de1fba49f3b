#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "dovetail/moe/parallel_experts.h"

namespace dovetail::moe {

/// Gathers `experts` (ascending) as far as this rank receives their slices. Every rank sends its
/// own slices to each rank for which `wants(to, from)` is true. All ranks call it together.
/// Backward sends the gradients of the slices back.
ExpertWeights gather_slices(const ExpertWeights& own, const std::vector<int64_t>& experts,
                            const ExpertRanks& ranks,
                            const std::function<bool(int to, int from)>& wants);

/// Gathers the experts of all ranks, calls `feed_forward` with them and returns its result (ZeRO-3,
/// arXiv 1910.02054). All ranks call it together, and all call backward. The gathered weights are
/// freed before it returns. Backward gathers them again, and frees them before it sums the
/// gradients over the ranks. A recorded step frees nothing, since its memory plan decides.
///
/// Forward is an all-gather, backward an all-gather and a reduce-scatter. Each goes in pieces of
/// about 4 MB for each rank. With n ranks each of them sends (n - 1)/n of the experts' bytes.
at::Tensor with_all_experts(
    const ExpertWeights& own, const ExpertRanks& ranks,
    const std::function<at::Tensor(const ExpertWeights& all)>& feed_forward);

}  // namespace dovetail::moe
