#include "dovetail/data/parquet/column_types.h"

#include <arrow/extension_type.h>
#include <fmt/format.h>

namespace dovetail::data {

bool is_list(const arrow::DataType& type) {
  return type.id() == arrow::Type::LIST || type.id() == arrow::Type::LARGE_LIST ||
         type.id() == arrow::Type::FIXED_SIZE_LIST || type.id() == arrow::Type::LIST_VIEW ||
         type.id() == arrow::Type::LARGE_LIST_VIEW;
}

std::string unread_help(const arrow::DataType& type, int field) {
  const std::string leave_out =
      fmt::format("or leave the column out (--drop-columns {}, or no name of it in [rows])", field);
  if (!arrow::is_temporal(type) && type.id() != arrow::Type::DURATION)
    return "cast it to one of them, or to lists of them, " + leave_out;
  const char* cast = type.id() == arrow::Type::DURATION ? "dt.total_seconds()"
                     : type.id() == arrow::Type::TIMESTAMP
                         ? "astype(\"datetime64[s]\").astype(\"int64\")"
                         : "astype(str)";
  return fmt::format("cast it, for example by column.{} of pandas, {}", cast, leave_out);
}

bool value_kind(const arrow::DataType& type, ColumnValues::Kind& kind) {
  switch (type.id()) {
    case arrow::Type::BOOL:
    case arrow::Type::INT8:
    case arrow::Type::INT16:
    case arrow::Type::INT32:
    case arrow::Type::INT64:
    case arrow::Type::UINT8:
    case arrow::Type::UINT16:
    case arrow::Type::UINT32:
    case arrow::Type::UINT64:
    case arrow::Type::NA:
      kind = ColumnValues::Kind::kInteger;
      return true;
    case arrow::Type::HALF_FLOAT:
    case arrow::Type::FLOAT:
    case arrow::Type::DOUBLE:
      kind = ColumnValues::Kind::kReal;
      return true;
    case arrow::Type::STRING:
    case arrow::Type::LARGE_STRING:
    case arrow::Type::BINARY:
    case arrow::Type::LARGE_BINARY:
    case arrow::Type::STRING_VIEW:
    case arrow::Type::BINARY_VIEW:
    case arrow::Type::FIXED_SIZE_BINARY:
    case arrow::Type::DECIMAL32:
    case arrow::Type::DECIMAL64:
    case arrow::Type::DECIMAL128:
    case arrow::Type::DECIMAL256:
      kind = ColumnValues::Kind::kText;
      return true;
    case arrow::Type::EXTENSION:
      return value_kind(*static_cast<const arrow::ExtensionType&>(type).storage_type(), kind);
    case arrow::Type::DICTIONARY: {
      const auto& dictionary = static_cast<const arrow::DictionaryType&>(type);
      return dictionary.value_type()->id() != arrow::Type::DICTIONARY &&
             value_kind(*dictionary.value_type(), kind);
    }
    default:
      return false;
  }
}

bool is_boolean(const arrow::DataType& type) {
  if (type.id() == arrow::Type::EXTENSION)
    return is_boolean(*static_cast<const arrow::ExtensionType&>(type).storage_type());
  if (type.id() == arrow::Type::DICTIONARY)
    return is_boolean(*static_cast<const arrow::DictionaryType&>(type).value_type());
  return type.id() == arrow::Type::BOOL;
}

}  // namespace dovetail::data
