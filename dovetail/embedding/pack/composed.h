#pragma once

#include <vector>

#include "dovetail/embedding/pack/lookup.h"

/// Reference versions of the lookup.h operations, table by table with ATen operators. They run if
/// the embedding kernels are disabled. Callers have checked the arguments.
namespace dovetail::embedding::composed {

void pool(const PackedTables& tables, const Jagged& batch, const at::Tensor& y);

/// Updates rows and state like lookup.h, but does not count the step.
void update(PackedTables& tables, const std::vector<PooledGradient>& micro_batches);

}  // namespace dovetail::embedding::composed
