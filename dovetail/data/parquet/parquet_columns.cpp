#include <arrow/extension_type.h>
#include <arrow/util/float16.h>
#include <arrow/util/key_value_metadata.h>
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <nlohmann/json.hpp>
#include <string>

#include "dovetail/base/error.h"
#include "dovetail/base/hash.h"
#include "dovetail/data/parquet/arrow_file.h"
#include "dovetail/data/parquet/column_types.h"
#include "dovetail/data/parquet/flat_column.h"
#include "dovetail/data/parquet/parquet_module.h"

namespace dovetail::data {
namespace {

using Kind = ColumnValues::Kind;

/// Texts created here for numbers that no other kind holds exactly. A deque keeps their addresses
/// valid.
using MadeTexts = std::deque<std::string>;

/// Returns true if an integer is at least 2^63, which int64 does not hold.
bool has_large(const arrow::Array& array) {
  switch (array.type_id()) {
    case arrow::Type::UINT64: {
      const auto& typed = static_cast<const arrow::UInt64Array&>(array);
      for (int64_t i = 0; i < typed.length(); ++i)
        if (!typed.IsNull(i) && typed.Value(i) >> 63U != 0) return true;
      return false;
    }
    case arrow::Type::DICTIONARY:
      return has_large(*static_cast<const arrow::DictionaryArray&>(array).dictionary());
    case arrow::Type::LIST:
      return has_large(*static_cast<const arrow::ListArray&>(array).values());
    case arrow::Type::LARGE_LIST:
      return has_large(*static_cast<const arrow::LargeListArray&>(array).values());
    case arrow::Type::FIXED_SIZE_LIST:
      return has_large(*static_cast<const arrow::FixedSizeListArray&>(array).values());
    case arrow::Type::LIST_VIEW:
      return has_large(*static_cast<const arrow::ListViewArray&>(array).values());
    case arrow::Type::LARGE_LIST_VIEW:
      return has_large(*static_cast<const arrow::LargeListViewArray&>(array).values());
    default:
      return false;
  }
}

template <class Array, class TextOf>
void append_made(const arrow::Array& array, MadeTexts& made, const TextOf& text_of,
                 ColumnValues& out) {
  out.words_are_numbers = true;
  const auto& typed = static_cast<const Array&>(array);
  for (int64_t i = 0; i < typed.length(); ++i) {
    out.codes.push_back(static_cast<int32_t>(out.words.size()));
    out.words.push_back(typed.IsNull(i) ? std::string_view()
                                        : made.emplace_back(text_of(typed, i)));
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

void append_values(const arrow::Array& array, MadeTexts& made, ColumnValues& out);

void append_dictionary(const arrow::DictionaryArray& array, MadeTexts& made, ColumnValues& out) {
  ColumnValues words;
  words.kind = out.kind;
  append_values(*array.dictionary(), made, words);
  out.words_are_numbers = words.words_are_numbers;
  const auto before = static_cast<int32_t>(out.words.size());
  out.words.insert(out.words.end(), words.words.begin(), words.words.end());
  // A null has no index. If there are no words, its code would refer to none.
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
  for (int64_t i = 0; i < array.length(); ++i)
    present[before + static_cast<size_t>(i)] = !array.IsNull(i);
}

void reserve(const arrow::Array& array, ColumnValues& out) {
  const auto more = static_cast<size_t>(array.length());
  if (out.kind == Kind::kInteger) out.integers.reserve(out.integers.size() + more);
  if (out.kind == Kind::kReal) out.reals.reserve(out.reals.size() + more);
  if (out.kind == Kind::kText) out.codes.reserve(out.codes.size() + more);
}

/// Appends decimals as Arrow formats them: as whole numbers or with a point.
template <class Array>
void append_decimals(const arrow::Array& array, MadeTexts& made, ColumnValues& out) {
  append_made<Array>(
      array, made, [](const Array& typed, int64_t i) { return typed.FormatValue(i); }, out);
}

void append_values(const arrow::Array& array, MadeTexts& made, ColumnValues& out) {
  if (array.type_id() == arrow::Type::EXTENSION)
    return append_values(*static_cast<const arrow::ExtensionArray&>(array).storage(), made, out);
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
    case arrow::Type::UINT64:
      if (out.kind == Kind::kInteger) return append_numbers<arrow::UInt64Array>(array, out);
      return append_made<arrow::UInt64Array>(
          array, made,
          [](const arrow::UInt64Array& typed, int64_t i) { return std::to_string(typed.Value(i)); },
          out);
    case arrow::Type::NA:
      out.integers.resize(out.integers.size() + static_cast<size_t>(array.length()));
      return;
    case arrow::Type::HALF_FLOAT: {
      const auto& halves = static_cast<const arrow::HalfFloatArray&>(array);
      for (int64_t i = 0; i < halves.length(); ++i)
        out.reals.push_back(arrow::util::Float16::FromBits(halves.Value(i)).ToDouble());
      return;
    }
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
    case arrow::Type::STRING_VIEW:
      return append_texts<arrow::StringViewArray>(array, out);
    case arrow::Type::BINARY_VIEW:
      return append_texts<arrow::BinaryViewArray>(array, out);
    case arrow::Type::FIXED_SIZE_BINARY:
      return append_texts<arrow::FixedSizeBinaryArray>(array, out);
    case arrow::Type::DECIMAL32:
      return append_decimals<arrow::Decimal32Array>(array, made, out);
    case arrow::Type::DECIMAL64:
      return append_decimals<arrow::Decimal64Array>(array, made, out);
    case arrow::Type::DECIMAL128:
      return append_decimals<arrow::Decimal128Array>(array, made, out);
    case arrow::Type::DECIMAL256:
      return append_decimals<arrow::Decimal256Array>(array, made, out);
    default:
      return append_dictionary(static_cast<const arrow::DictionaryArray&>(array), made, out);
  }
}

/// Appends the values of a list array from the first list to the last. Also appends the beginning
/// of each list among all values read so far.
template <class Array>
void append_lists(const arrow::Array& array, MadeTexts& made, ColumnValues& out) {
  const auto& lists = static_cast<const Array&>(array);
  const int64_t first = lists.length() > 0 ? lists.value_offset(0) : 0;
  const int64_t last = lists.length() > 0 ? lists.value_offset(lists.length() - 1) +
                                                lists.value_length(lists.length() - 1)
                                          : 0;
  const int64_t before = out.list_begins.back();
  for (int64_t i = 0; i < lists.length(); ++i)
    out.list_begins.push_back(before + lists.value_offset(i) + lists.value_length(i) - first);
  append_presence(array, out.list_present);
  append_values(*lists.values()->Slice(first, last - first), made, out);
}

/// Appends list views, whose values may be stored in any order.
template <class Array>
void append_list_views(const arrow::Array& array, MadeTexts& made, ColumnValues& out) {
  const auto& lists = static_cast<const Array&>(array);
  append_presence(array, out.list_present);
  for (int64_t i = 0; i < lists.length(); ++i) {
    const int64_t length = lists.IsNull(i) ? 0 : lists.value_length(i);
    out.list_begins.push_back(out.list_begins.back() + length);
    append_values(*lists.values()->Slice(lists.value_offset(i), length), made, out);
  }
}

void hash_words(ColumnValues& values) {
  values.keys.reserve(values.words.size());
  for (const std::string_view word : values.words) values.keys.push_back(xxh64(word));
}

/// Owner of the memory that the words of a row group refer to.
struct WordOwner {
  std::unique_ptr<FlatColumns> flat;
  std::shared_ptr<arrow::Table> table;
  MadeTexts made;
};

class ArrowColumns : public ParquetColumns {
 public:
  explicit ArrowColumns(std::string path) : file_(std::move(path), ArrowFile::Texts::kDictionary) {}

  std::vector<std::string> column_names() const override { return file_.schema().field_names(); }
  int64_t num_row_groups() const override { return file_.metadata().num_row_groups(); }
  int64_t group_rows(int64_t group) const override {
    return file_.metadata().RowGroup(static_cast<int>(group))->num_rows();
  }

  std::vector<size_t> index_columns() const override {
    const auto& metadata = file_.schema().metadata();
    const int at = metadata == nullptr ? -1 : metadata->FindKey("pandas");
    std::vector<size_t> found;
    if (at < 0) return found;
    const auto pandas =
        nlohmann::json::parse(metadata->value(at), nullptr, /*allow_exceptions=*/false);
    if (!pandas.is_object() || !pandas.contains("index_columns")) return found;
    // An index that is a range of numbers is an object and has no column.
    for (const auto& entry : pandas.at("index_columns"))
      if (const int field =
              entry.is_string() ? file_.schema().GetFieldIndex(entry.get<std::string>()) : -1;
          field >= 0)
        found.push_back(static_cast<size_t>(field));
    return found;
  }

  std::vector<bool> select(const std::vector<size_t>& fields) override {
    std::vector<bool> lists;
    columns_.clear();
    for (const size_t wanted : fields) {
      const int field = static_cast<int>(wanted);
      const std::string& name = file_.schema().field(field)->name();
      const arrow::DataType& type = *file_.schema().field(field)->type();
      const arrow::DataType& value = is_list(type) ? *type.field(0)->type() : type;
      Column column{.field = field,
                    .list = is_list(type),
                    .booleans = is_boolean(value),
                    .leaves = file_.leaves(field)};
      if (!value_kind(value, column.kind))
        throw UserError(fmt::format("column {} (`{}`) holds {}, not integers, floats or strings",
                                    field, printable(name), printable(type.ToString())),
                        unread_help(value, field), file_.path());
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
    file_.guarded_group(group, [&] {
      owner->flat = std::make_unique<FlatColumns>(file_.group(group));
      for (size_t c = 0; c < columns_.size(); ++c) {
        const Column& column = columns_[c];
        file_.check_values(group, column.leaves);
        out[c].kind = column.kind;
        out[c].is_list = column.list;
        out[c].booleans = column.booleans;
        if (!column.list && owner->flat->read(column.leaves[0],
                                              *file_.schema().field(column.field)->type(), out[c]))
          continue;
        others.push_back(c);
      }
      // Arrow's table has its columns in the order of these leaves.
      std::ranges::sort(others, {}, [this](size_t c) { return columns_[c].field; });
      for (const size_t c : others)
        leaves.insert(leaves.end(), columns_[c].leaves.begin(), columns_[c].leaves.end());
    });
    if (!others.empty()) owner->table = file_.read(group, leaves);
    for (size_t i = 0; i < others.size(); ++i)
      append(*owner->table->column(static_cast<int>(i)), owner->made, out[others[i]]);
    for (ColumnValues& values : out) {
      const size_t rows = values.is_list ? values.list_present.size() : values.value_present.size();
      if (static_cast<int64_t>(rows) != group_rows(group))
        file_.refuse(fmt::format("a column has {} values in row group {} of {} rows", rows, group,
                                 group_rows(group)));
      hash_words(values);
      values.owner = owner;
    }
    return out;
  }

 private:
  struct Column {
    int field = 0;
    bool list = false, booleans = false;
    std::vector<int> leaves;
    Kind kind = Kind::kInteger;
  };

  static void append(const arrow::ChunkedArray& chunks, MadeTexts& made, ColumnValues& out) {
    if (std::ranges::any_of(chunks.chunks(), [](const auto& chunk) { return has_large(*chunk); }))
      out.kind = Kind::kText;
    if (out.is_list) out.list_begins.push_back(0);
    for (const auto& chunk : chunks.chunks()) {
      // A null of a fixed-size list still has values. It has an offset and a length like other
      // lists.
      switch (chunk->type_id()) {
        case arrow::Type::LIST:
          append_lists<arrow::ListArray>(*chunk, made, out);
          break;
        case arrow::Type::LARGE_LIST:
          append_lists<arrow::LargeListArray>(*chunk, made, out);
          break;
        case arrow::Type::FIXED_SIZE_LIST:
          append_lists<arrow::FixedSizeListArray>(*chunk, made, out);
          break;
        case arrow::Type::LIST_VIEW:
          append_list_views<arrow::ListViewArray>(*chunk, made, out);
          break;
        case arrow::Type::LARGE_LIST_VIEW:
          append_list_views<arrow::LargeListViewArray>(*chunk, made, out);
          break;
        default:
          append_values(*chunk, made, out);
      }
    }
  }

  ArrowFile file_;
  std::vector<Column> columns_;
};

}  // namespace
}  // namespace dovetail::data

extern "C" __attribute__((visibility("default"))) void dovetail_open_parquet_columns(
    const char* path, std::unique_ptr<dovetail::data::ParquetColumns>& reader) {
  reader = std::make_unique<dovetail::data::ArrowColumns>(path);
}
