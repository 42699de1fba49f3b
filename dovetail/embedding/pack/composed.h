#pragma once

#include <vector>

#include "dovetail/embedding/pack/lookup.h"

/// lookup.h in ATen's operators, table by table: what switched-off kernels use. Arguments have been
/// checked.
namespace dovetail::embedding::composed {

void pool(const PackedTables& tables, const Jagged& batch, const at::Tensor& y);

/// Without counting the step.
void update(PackedTables& tables, const std::vector<PooledGradient>& micro_batches);

}  // namespace dovetail::embedding::composed
