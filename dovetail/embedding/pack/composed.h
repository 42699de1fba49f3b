#pragma once

#include <vector>

#include "dovetail/embedding/pack/lookup.h"

/// Reference versions of the operations in lookup.h, which compute table by table with ATen
/// operators. They run if the embedding kernels are disabled. Callers have checked the arguments.
namespace dovetail::embedding::composed {

/// Writes the result of `pool` in lookup.h into y.
void pool(const PackedTables& tables, const Jagged& batch, const at::Tensor& y);

/// Updates rows and state like `update` in lookup.h, but does not increment tables.steps().
void update(PackedTables& tables, const std::vector<PooledGradient>& micro_batches);
/// The same for `update_single_rows` in lookup.h.
void update_single_rows(PackedTables& tables, const std::vector<RowGradients>& parts);

}  // namespace dovetail::embedding::composed
