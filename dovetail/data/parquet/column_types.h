#pragma once

#include <arrow/api.h>

#include <string>

#include "dovetail/data/parquet/parquet_module.h"

namespace dovetail::data {

/// Returns true for list types: lists of variable or fixed size, and list views.
bool is_list(const arrow::DataType& type);

/// Returns true for booleans, also as the values of an extension type or a dictionary.
bool is_boolean(const arrow::DataType& type);

/// Sets `kind` to the ColumnValues::Kind in which values of `type` are stored. Returns false if the
/// type is not supported.
bool value_kind(const arrow::DataType& type, ColumnValues::Kind& kind);

/// Returns advice to the user for an error that a column has an unsupported `type`. `field` is the
/// index of the column in the file.
std::string unread_help(const arrow::DataType& type, int field);

}  // namespace dovetail::data
