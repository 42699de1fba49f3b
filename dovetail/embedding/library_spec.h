#pragma once

#include <nlohmann/json_fwd.hpp>

#include "dovetail/embedding/pack/table.h"

namespace dovetail::embedding {

/// Returns the collection that a Python program describes: "tables", "features" (a table's number
/// for each), "optimizer", "seed" and "row_dtype". A table has the members of TableSpec. Throws
/// UserError for an unknown name of an optimizer, pooling or row format.
PackSpec spec_from_json(const nlohmann::json& description);

}  // namespace dovetail::embedding
