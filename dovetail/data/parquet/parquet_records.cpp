#include <arrow/extension_type.h>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "dovetail/base/error.h"
#include "dovetail/data/parquet/arrow_file.h"
#include "dovetail/data/parquet/parquet_module.h"

namespace dovetail::data {
namespace {

using nlohmann::json;

json value_at(const ArrowFile& file, const arrow::Array& array, int64_t i);

template <class Array>
json number_at(const arrow::Array& array, int64_t i) {
  return static_cast<const Array&>(array).Value(i);
}

template <class Array>
json string_at(const arrow::Array& array, int64_t i) {
  return std::string(static_cast<const Array&>(array).GetView(i));
}

template <class Array>
json list_at(const ArrowFile& file, const arrow::Array& array, int64_t i) {
  const auto values = static_cast<const Array&>(array).value_slice(i);
  json list = json::array();
  for (int64_t k = 0; k < values->length(); ++k) list.push_back(value_at(file, *values, k));
  return list;
}

json structure_at(const ArrowFile& file, const arrow::StructArray& array, int64_t i) {
  json object = json::object();
  for (int k = 0; k < array.num_fields(); ++k)
    object[array.struct_type()->field(k)->name()] = value_at(file, *array.field(k), i);
  return object;
}

json value_at(const ArrowFile& file, const arrow::Array& array, int64_t i) {
  if (array.IsNull(i)) return nullptr;
  switch (array.type_id()) {
    case arrow::Type::NA:
      return nullptr;
    case arrow::Type::BOOL:
      return number_at<arrow::BooleanArray>(array, i);
    case arrow::Type::INT8:
      return number_at<arrow::Int8Array>(array, i);
    case arrow::Type::INT16:
      return number_at<arrow::Int16Array>(array, i);
    case arrow::Type::INT32:
      return number_at<arrow::Int32Array>(array, i);
    case arrow::Type::INT64:
      return number_at<arrow::Int64Array>(array, i);
    case arrow::Type::UINT8:
      return number_at<arrow::UInt8Array>(array, i);
    case arrow::Type::UINT16:
      return number_at<arrow::UInt16Array>(array, i);
    case arrow::Type::UINT32:
      return number_at<arrow::UInt32Array>(array, i);
    case arrow::Type::UINT64:
      return number_at<arrow::UInt64Array>(array, i);
    case arrow::Type::FLOAT:
      return number_at<arrow::FloatArray>(array, i);
    case arrow::Type::DOUBLE:
      return number_at<arrow::DoubleArray>(array, i);
    case arrow::Type::STRING:
      return string_at<arrow::StringArray>(array, i);
    case arrow::Type::LARGE_STRING:
      return string_at<arrow::LargeStringArray>(array, i);
    case arrow::Type::STRING_VIEW:
      return string_at<arrow::StringViewArray>(array, i);
    case arrow::Type::LIST:
      return list_at<arrow::ListArray>(file, array, i);
    case arrow::Type::LARGE_LIST:
      return list_at<arrow::LargeListArray>(file, array, i);
    case arrow::Type::FIXED_SIZE_LIST:
      return list_at<arrow::FixedSizeListArray>(file, array, i);
    case arrow::Type::STRUCT:
      return structure_at(file, static_cast<const arrow::StructArray&>(array), i);
    case arrow::Type::DICTIONARY: {
      const auto& codes = static_cast<const arrow::DictionaryArray&>(array);
      return value_at(file, *codes.dictionary(), codes.GetValueIndex(i));
    }
    case arrow::Type::EXTENSION:
      return value_at(file, *static_cast<const arrow::ExtensionArray&>(array).storage(), i);
    default:
      file.refuse(fmt::format("a column holds {}, not numbers, strings, lists or structures",
                              printable(array.type()->ToString())));
  }
}

int find_field(const ArrowFile& file, const std::string& column) {
  const int field = file.schema().GetFieldIndex(column);
  if (field >= 0) return field;
  std::string found;
  for (const auto& other : file.schema().fields())
    found += fmt::format(" `{}` ({})", printable(other->name()), other->type()->ToString());
  throw UserError(fmt::format("not one column is named `{}`; found{}", column, found), {},
                  file.path());
}

}  // namespace
}  // namespace dovetail::data

extern "C" __attribute__((visibility("default"))) void dovetail_read_parquet_records(
    const char* path, const std::vector<std::string>& columns, nlohmann::json& records) {
  using dovetail::data::ArrowFile;
  const ArrowFile file(path, ArrowFile::Texts::kPlain);
  std::vector<int> fields, leaves;
  for (const std::string& column : columns)
    fields.push_back(dovetail::data::find_field(file, column));
  for (const int field : std::set<int>(fields.begin(), fields.end()))
    std::ranges::copy(file.leaves(field), std::back_inserter(leaves));
  for (int group = 0; group < file.metadata().num_row_groups(); ++group) {
    const auto table = file.read(group, leaves);
    const size_t before = records.size();
    for (const std::string& column : columns) {
      size_t row = before;
      for (const auto& chunk : table->GetColumnByName(column)->chunks()) {
        for (int64_t i = 0; i < chunk->length(); ++i)
          records[row++][column] = dovetail::data::value_at(file, *chunk, i);
      }
    }
  }
}
