#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "dovetail/moe/parallel_experts.h"
#include "dovetail/moe/parts.h"

namespace dovetail::moe {

/// Sends rows to the parts of their experts and runs the parts. Returns the sums of their results
/// for each token, (T, C). All ranks call it together. x: (T, C). weight: (T, k). parts: result of
/// choices_of_parts, (T, k layout.shards), on the CPU. local: the experts of this rank.
///
/// Without `capacity`, a token travels once to each rank that has a part of its experts. This rank
/// adds the weighted results of its parts, and one row travels back. The weights travel with the
/// rows, a number for each choice. With `capacity`, each choice has a place of its own, and its
/// result travels back unweighted.
at::Tensor exchange_rows(const at::Tensor& x, const at::Tensor& weight, const Choices& parts,
                         const LocalExperts& local, const ExpertRanks& ranks,
                         const ExpertLayout& layout, std::optional<int64_t> capacity);

}  // namespace dovetail::moe
