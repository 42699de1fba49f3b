#pragma once

#include "dovetail/embedding/pack/table.h"
#include "dovetail/train/config/run_config.h"

namespace dovetail::train {

/// Throws UserError for a key of an optimizer (momentum, betas, eps) that the optimizer does not
/// read. Example: momentum with adam. Checks [embedding] and [[embedding.override]]. Also throws if
/// an override names no table or sets nothing.
void check_table_optimizers(const EmbeddingSection& config);

/// Sets optimizer and initial range of each table of `pack`. The last override that names a table
/// decides. If none does, the table takes the optimizer of [embedding]. Throws UserError if a name
/// or glob matches no table; the error lists the tables.
void set_optimizers(const EmbeddingSection& config, embedding::PackSpec& pack);

/// Throws UserError for an override without effect: later overrides replace it in every table of
/// `pack` that it names. Also throws for a key of [embedding] without effect: overrides replace it
/// in every table.
void check_overrides(const EmbeddingSection& config, const embedding::PackSpec& pack);

}  // namespace dovetail::train
