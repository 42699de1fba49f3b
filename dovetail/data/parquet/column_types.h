#pragma once

#include <arrow/api.h>

#include <string>

#include "dovetail/data/parquet/parquet_module.h"

namespace dovetail::data {

bool is_list(const arrow::DataType& type);

/// Returns true for booleans, also in an extension type or a dictionary.
bool is_boolean(const arrow::DataType& type);

/// Sets `kind` to the kind of ColumnValues that holds values of `type`. Returns false if the type
/// is not supported.
bool value_kind(const arrow::DataType& type, ColumnValues::Kind& kind);

/// Returns advice for a column of a type that is not supported. `field` is the index of the column.
std::string unread_help(const arrow::DataType& type, int field);

}  // namespace dovetail::data
