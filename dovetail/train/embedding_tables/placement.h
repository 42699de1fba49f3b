#pragma once

#include <cstdint>
#include <vector>

#include "dovetail/embedding/ranks/table_placement.h"
#include "dovetail/train/config/run_config.h"

namespace dovetail::train {

/// Returns the options of embedding::place_tables that [embedding] gives for the tables of `pack`.
/// The options are sharding, sharding of single tables, bytes of a rank, transfer and packing.
/// Throws UserError for an entry of embedding.placement that names no table. Also throws it for an
/// entry whose tables later entries name too.
embedding::PlacementOptions placement_options(const EmbeddingSection& config,
                                              const embedding::PackSpec& pack);

}  // namespace dovetail::train
