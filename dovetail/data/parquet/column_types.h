#pragma once

#include <arrow/api.h>

#include <string>

#include "dovetail/data/parquet/parquet_module.h"

namespace dovetail {

bool is_list(const arrow::DataType& type);

/// True for booleans, also as an extension or in a dictionary.
bool is_boolean(const arrow::DataType& type);

/// Sets the kind as which values of `type` are read. Returns false if they are not read.
bool value_kind(const arrow::DataType& type, ColumnValues::Kind& kind);

/// Ways on for a column of a type that is not read.
std::string unread_help(const arrow::DataType& type, int field);

}  // namespace dovetail
