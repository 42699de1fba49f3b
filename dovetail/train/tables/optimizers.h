#pragma once

#include "dovetail/embedding/pack/table.h"
#include "dovetail/train/config/run_config.h"

namespace dovetail {

/// Throws UserError for keys of [embedding] or [[embedding.override]] that no optimizer reads, and
/// for an override that names no table or says nothing.
void check_table_optimizers(const EmbeddingSection& config);

/// The optimizers of the tables of `pack`: the general one, and of a table that overrides name that
/// of the last of them. Throws UserError for a name or glob that is no table's, listing those there
/// are.
void set_optimizers(const EmbeddingSection& config, embedding::PackSpec& pack);

/// Throws UserError for an override, and for a key of [embedding], that overrides leave without a
/// table of `pack`.
void check_overrides(const EmbeddingSection& config, const embedding::PackSpec& pack);

}  // namespace dovetail
