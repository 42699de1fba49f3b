#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "dovetail/base/error.h"
#include "dovetail/data/hash.h"
#include "dovetail/data/parquet/arrow_file.h"
#include "dovetail/data/parquet/flat_column.h"
#include "dovetail/data/parquet/parquet_module.h"

namespace dovetail {
namespace {

using Kind = ColumnValues::Kind;

bool is_list(const arrow::DataType& type) {
  return type.id() == arrow::Type::LIST || type.id() == arrow::Type::LARGE_LIST ||
         type.id() == arrow::Type::FIXED_SIZE_LIST;
}

/// Whether values of `type` can be read, and as what.
bool value_kind(const arrow::DataType& type, Kind& kind) {
  switch (type.id()) {
    case arrow::Type::BOOL:
    case arrow::Type::INT8:
    case arrow::Type::INT16:
    case arrow::Type::INT32:
    case arrow::Type::INT64:
    case arrow::Type::UINT8:
    case arrow::Type::UINT16:
    case arrow::Type::UINT32:
      kind = Kind::kInteger;
      return true;
    case arrow::Type::FLOAT:
    case arrow::Type::DOUBLE:
      kind = Kind::kReal;
      return true;
    case arrow::Type::STRING:
    case arrow::Type::LARGE_STRING:
    case arrow::Type::BINARY:
    case arrow::Type::LARGE_BINARY:
      kind = Kind::kText;
      return true;
    case arrow::Type::DICTIONARY: {
      const auto& dictionary = static_cast<const arrow::DictionaryType&>(type);
      return dictionary.value_type()->id() != arrow::Type::DICTIONARY && value_kind(*dictionary.value_type(), kind);
    }
    default:
      return false;
  }
}

template <class Array>
void append_numbers(const arrow::Array& array, ColumnValues& out) {
  const auto& typed = static_cast<const Array&>(array);
  for (int64_t i = 0; i < typed.length(); ++i) {
    if constexpr (std::is_floating_point_v<decltype(typed.Value(i))>)
      out.reals.push_back(typed.Value(i));
    else
      out.integers.push_back(static_cast<int64_t>(typed.Value(i)));
  }
}

template <class Array>
void append_texts(const arrow::Array& array, ColumnValues& out) {
  const auto& typed = static_cast<const Array&>(array);
  for (int64_t i = 0; i < typed.length(); ++i) {
    out.codes.push_back(static_cast<int32_t>(out.words.size()));
    out.words.push_back(typed.IsNull(i) ? std::string_view() : typed.GetView(i));
  }
}

void append_values(const arrow::Array& array, ColumnValues& out);

void append_dictionary(const arrow::DictionaryArray& array, ColumnValues& out) {
  ColumnValues words;
  words.kind = out.kind;
  append_values(*array.dictionary(), words);
  const auto before = static_cast<int32_t>(out.words.size());
  out.words.insert(out.words.end(), words.words.begin(), words.words.end());
  // A null has no index; without words its code would have none to name.
  if (out.kind == Kind::kText && words.words.empty()) out.words.emplace_back();
  uint8_t* const presence = out.value_present.data() + out.value_present.size() - array.length();
  for (int64_t i = 0; i < array.length(); ++i) {
    const size_t word = presence[i] != 0 ? static_cast<size_t>(array.GetValueIndex(i)) : 0;
    const bool present = presence[i] != 0 && words.value_present[word] != 0;
    presence[i] = present;
    if (out.kind == Kind::kText) out.codes.push_back(before + static_cast<int32_t>(word));
    if (out.kind == Kind::kInteger) out.integers.push_back(present ? words.integers[word] : 0);
    if (out.kind == Kind::kReal) out.reals.push_back(present ? words.reals[word] : 0);
  }
}

void append_presence(const arrow::Array& array, std::vector<uint8_t>& present) {
  const size_t before = present.size();
  present.resize(before + static_cast<size_t>(array.length()), 1);
  if (array.null_count() == 0) return;
  for (int64_t i = 0; i < array.length(); ++i) present[before + static_cast<size_t>(i)] = !array.IsNull(i);
}

void reserve(const arrow::Array& array, ColumnValues& out) {
  const auto more = static_cast<size_t>(array.length());
  if (out.kind == Kind::kInteger) out.integers.reserve(out.integers.size() + more);
  if (out.kind == Kind::kReal) out.reals.reserve(out.reals.size() + more);
  if (out.kind == Kind::kText) out.codes.reserve(out.codes.size() + more);
}

void append_values(const arrow::Array& array, ColumnValues& out) {
  reserve(array, out);
  append_presence(array, out.value_present);
  switch (array.type_id()) {
    case arrow::Type::BOOL:
      return append_numbers<arrow::BooleanArray>(array, out);
    case arrow::Type::INT8:
      return append_numbers<arrow::Int8Array>(array, out);
    case arrow::Type::INT16:
      return append_numbers<arrow::Int16Array>(array, out);
    case arrow::Type::INT32:
      return append_numbers<arrow::Int32Array>(array, out);
    case arrow::Type::INT64:
      return append_numbers<arrow::Int64Array>(array, out);
    case arrow::Type::UINT8:
      return append_numbers<arrow::UInt8Array>(array, out);
    case arrow::Type::UINT16:
      return append_numbers<arrow::UInt16Array>(array, out);
    case arrow::Type::UINT32:
      return append_numbers<arrow::UInt32Array>(array, out);
    case arrow::Type::FLOAT:
      return append_numbers<arrow::FloatArray>(array, out);
    case arrow::Type::DOUBLE:
      return append_numbers<arrow::DoubleArray>(array, out);
    case arrow::Type::STRING:
      return append_texts<arrow::StringArray>(array, out);
    case arrow::Type::LARGE_STRING:
      return append_texts<arrow::LargeStringArray>(array, out);
    case arrow::Type::BINARY:
      return append_texts<arrow::BinaryArray>(array, out);
    case arrow::Type::LARGE_BINARY:
      return append_texts<arrow::LargeBinaryArray>(array, out);
    default:
      return append_dictionary(static_cast<const arrow::DictionaryArray&>(array), out);
  }
}

/// The values of a list array between the first and the last list, and where each list begins among all read so far.
template <class Array>
void append_lists(const arrow::Array& array, ColumnValues& out) {
  const auto& lists = static_cast<const Array&>(array);
  const int64_t first = lists.length() > 0 ? lists.value_offset(0) : 0;
  const int64_t last =
      lists.length() > 0 ? lists.value_offset(lists.length() - 1) + lists.value_length(lists.length() - 1) : 0;
  const int64_t before = out.list_begins.back();
  for (int64_t i = 0; i < lists.length(); ++i)
    out.list_begins.push_back(before + lists.value_offset(i) + lists.value_length(i) - first);
  append_presence(array, out.list_present);
  append_values(*lists.values()->Slice(first, last - first), out);
}

void hash_words(ColumnValues& values) {
  values.keys.reserve(values.words.size());
  for (const std::string_view word : values.words) values.keys.push_back(xxh64(word));
}

/// What the words of a row group lie in.
struct WordOwner {
  std::unique_ptr<FlatColumns> flat;
  std::shared_ptr<arrow::Table> table;
};

class ArrowColumns : public ParquetColumns {
 public:
  explicit ArrowColumns(std::string path) : file_(std::move(path), ArrowFile::Texts::kDictionary) {}

  std::vector<std::string> column_names() const override { return file_.schema().field_names(); }
  int64_t num_row_groups() const override { return file_.metadata().num_row_groups(); }
  int64_t group_rows(int64_t group) const override {
    return file_.metadata().RowGroup(static_cast<int>(group))->num_rows();
  }

  std::vector<bool> select(const std::vector<std::string>& columns) override {
    std::vector<bool> lists;
    columns_.clear();
    for (const std::string& name : columns) {
      const int field = file_.schema().GetFieldIndex(name);
      DOVETAIL_CHECK(field >= 0, "column {} of {}", name, file_.path());
      const arrow::DataType& type = *file_.schema().field(field)->type();
      const arrow::DataType& value = is_list(type) ? *type.field(0)->type() : type;
      Column column{.name = name, .field = field, .list = is_list(type), .leaves = file_.leaves(field)};
      if (!value_kind(value, column.kind))
        throw UserError(fmt::format("column `{}` holds {}, which is no feature", name, type.ToString()),
                        "cast it to integers, floats or strings, or lists of them", file_.path());
      columns_.push_back(column);
      lists.push_back(column.list);
    }
    return lists;
  }

  std::vector<ColumnValues> read(int64_t group) override {
    const auto owner = std::make_shared<WordOwner>();
    std::vector<ColumnValues> out(columns_.size());
    std::vector<size_t> others;
    std::vector<int> leaves;
    try {
      owner->flat = std::make_unique<FlatColumns>(file_.group(group));
      for (size_t c = 0; c < columns_.size(); ++c) {
        const Column& column = columns_[c];
        out[c].kind = column.kind;
        out[c].is_list = column.list;
        if (!column.list && owner->flat->read(column.leaves[0], *file_.schema().field(column.field)->type(), out[c]))
          continue;
        others.push_back(c);
        leaves.insert(leaves.end(), column.leaves.begin(), column.leaves.end());
      }
    } catch (const parquet::ParquetException& e) {
      file_.refuse(e.what());
    }
    if (!others.empty()) owner->table = file_.read(group, leaves);
    for (const size_t c : others) append(*owner->table->GetColumnByName(columns_[c].name), out[c]);
    for (ColumnValues& values : out) {
      hash_words(values);
      values.owner = owner;
    }
    return out;
  }

 private:
  struct Column {
    std::string name;
    int field = 0;
    bool list = false;
    std::vector<int> leaves;
    Kind kind = Kind::kInteger;
  };

  static void append(const arrow::ChunkedArray& chunks, ColumnValues& out) {
    if (out.is_list) out.list_begins.push_back(0);
    for (const auto& chunk : chunks.chunks()) {
      // A null of a fixed-size list still has its values: as a list it has an offset and a length like the others.
      switch (chunk->type_id()) {
        case arrow::Type::LIST:
          append_lists<arrow::ListArray>(*chunk, out);
          break;
        case arrow::Type::LARGE_LIST:
          append_lists<arrow::LargeListArray>(*chunk, out);
          break;
        case arrow::Type::FIXED_SIZE_LIST:
          append_lists<arrow::FixedSizeListArray>(*chunk, out);
          break;
        default:
          append_values(*chunk, out);
      }
    }
  }

  ArrowFile file_;
  std::vector<Column> columns_;
};

}  // namespace
}  // namespace dovetail

extern "C" __attribute__((visibility("default"))) void dovetail_open_parquet_columns(
    const char* path, std::unique_ptr<dovetail::ParquetColumns>& reader) {
  reader = std::make_unique<dovetail::ArrowColumns>(path);
}
