#include "dovetail/data/parquet/flat_column.h"

#include <arrow/type.h>
#include <parquet/exception.h>
#include <parquet/metadata.h>

#include <algorithm>

#include "dovetail/base/hash.h"

namespace dovetail::data {
namespace {

using Kind = ColumnValues::Kind;

/// Buffer for the values of some rows. Values are packed: missing ones take no place yet.
template <class Number>
struct Packed {
  explicit Packed(int64_t num_rows)
      : rows(num_rows),
        levels(std::make_unique_for_overwrite<int16_t[]>(static_cast<size_t>(num_rows))),
        numbers(std::make_unique_for_overwrite<Number[]>(static_cast<size_t>(num_rows) + 1)) {}

  bool full() const { return num_levels == rows; }
  int64_t left() const { return rows - num_levels; }
  /// Counts what one call of a reader has added: `read` rows with `values` values. Rows have levels
  /// only if some may be missing.
  void added(int64_t read, int64_t values) {
    if (read <= 0)
      throw parquet::ParquetException("a column has fewer values than its row group has rows");
    num_levels += read;
    num_values += values;
  }

  int64_t rows, num_levels = 0, num_values = 0;
  std::unique_ptr<int16_t[]> levels;
  std::unique_ptr<Number[]> numbers;
};

/// Sets `out[r]` to `as(number)` of row r, or to 0 if the row has no number.
template <class Number, class Out, class As>
void spread(const Packed<Number>& packed, std::vector<Out>& out, std::vector<uint8_t>& present,
            As&& as) {
  const auto rows = static_cast<size_t>(packed.rows);
  out.resize(rows);
  present.assign(rows, 1);
  const Number* const numbers = packed.numbers.get();
  if (packed.num_values == packed.rows) {
    for (size_t r = 0; r < rows; ++r) out[r] = as(numbers[r]);
    return;
  }
  // The loop reads one number past the last if the last rows are missing.
  packed.numbers[static_cast<size_t>(packed.num_values)] = 0;
  size_t next = 0;
  for (size_t r = 0; r < rows; ++r) {
    const Out number = as(numbers[next]);
    const bool there = packed.levels[r] != 0;
    out[r] = there ? number : Out(0);
    present[r] = there;
    next += there;
  }
}

template <class Type, class Out, class As>
void read_numbers(parquet::ColumnReader& column, int64_t rows, std::vector<Out>& out,
                  std::vector<uint8_t>& present, As&& as) {
  auto& reader = static_cast<parquet::TypedColumnReader<Type>&>(column);
  Packed<typename Type::c_type> packed(rows);
  while (!packed.full()) {
    int64_t values = 0;
    const int64_t read =
        reader.ReadBatch(packed.left(), packed.levels.get() + packed.num_levels, nullptr,
                         packed.numbers.get() + packed.num_values, &values);
    packed.added(read, values);
  }
  spread(packed, out, present, as);
}

void read_codes(parquet::ColumnReader& column, int64_t rows, ColumnValues& out) {
  auto& reader = static_cast<parquet::ByteArrayReader&>(column);
  Packed<int32_t> packed(rows);
  const parquet::ByteArray* words = nullptr;
  int32_t num_words = 0;
  while (!packed.full()) {
    int64_t values = 0;
    const int64_t read = reader.ReadBatchWithDictionary(
        packed.left(), packed.levels.get() + packed.num_levels, nullptr,
        packed.numbers.get() + packed.num_values, &values, &words, &num_words);
    packed.added(read, values);
  }
  // The reader does not compare codes with the dictionary.
  uint32_t largest = 0;
  for (int64_t i = 0; i < packed.num_values; ++i)
    largest = std::max(largest, static_cast<uint32_t>(packed.numbers[static_cast<size_t>(i)]));
  if (packed.num_values > 0 && largest >= static_cast<uint32_t>(num_words))
    throw parquet::ParquetException("a value names a word that its dictionary does not have");
  out.words.reserve(static_cast<size_t>(num_words) + 1);
  for (int32_t w = 0; w < num_words; ++w)
    out.words.emplace_back(reinterpret_cast<const char*>(words[w].ptr), words[w].len);
  // A row without a value has code 0, so at least one word must exist.
  if (num_words == 0) out.words.emplace_back();
  spread(packed, out.codes, out.value_present, [](int32_t code) { return code; });
}

bool reads_numbers(parquet::ColumnReader& column, arrow::Type::type type, int64_t rows,
                   ColumnValues& out) {
  const auto integer = [](auto number) { return static_cast<int64_t>(number); };
  const auto real = [](auto number) { return static_cast<double>(number); };
  switch (column.type()) {
    case parquet::Type::BOOLEAN:
      read_numbers<parquet::BooleanType>(column, rows, out.integers, out.value_present, integer);
      return true;
    case parquet::Type::INT32:
      if (type == arrow::Type::UINT32)
        read_numbers<parquet::Int32Type>(
            column, rows, out.integers, out.value_present,
            [](int32_t number) { return int64_t{static_cast<uint32_t>(number)}; });
      else
        read_numbers<parquet::Int32Type>(column, rows, out.integers, out.value_present, integer);
      return true;
    case parquet::Type::INT64:
      read_numbers<parquet::Int64Type>(column, rows, out.integers, out.value_present, integer);
      return true;
    case parquet::Type::FLOAT:
      read_numbers<parquet::FloatType>(column, rows, out.reals, out.value_present, real);
      return true;
    case parquet::Type::DOUBLE:
      read_numbers<parquet::DoubleType>(column, rows, out.reals, out.value_present, real);
      return true;
    default:
      return false;
  }
}

/// Returns true if the file stores one value or null per row, in a physical type that `read`
/// supports for `kind`.
bool is_flat(const parquet::ColumnDescriptor& leaf, const arrow::DataType& type, Kind kind) {
  if (leaf.max_repetition_level() != 0 || leaf.max_definition_level() > 1) return false;
  if (arrow::is_decimal(type.id()) || type.id() == arrow::Type::UINT64) return false;
  if (kind == Kind::kText) return leaf.physical_type() == parquet::Type::BYTE_ARRAY;
  if (type.id() == arrow::Type::DICTIONARY) return false;
  const bool real =
      leaf.physical_type() == parquet::Type::FLOAT || leaf.physical_type() == parquet::Type::DOUBLE;
  const bool integer = leaf.physical_type() == parquet::Type::BOOLEAN ||
                       leaf.physical_type() == parquet::Type::INT32 ||
                       leaf.physical_type() == parquet::Type::INT64;
  return kind == Kind::kReal ? real : integer;
}

}  // namespace

bool FlatColumns::read(int leaf, const arrow::DataType& type, ColumnValues& out) {
  const parquet::RowGroupMetaData& metadata = *group_->metadata();
  if (!is_flat(*metadata.schema()->Column(leaf), type, out.kind)) return false;
  const bool text = out.kind == Kind::kText;
  const auto exposed =
      text ? parquet::ExposedEncoding::DICTIONARY : parquet::ExposedEncoding::NO_ENCODING;
  auto reader = group_->ColumnWithExposeEncoding(leaf, exposed);
  if (reader->GetExposedEncoding() != exposed) return false;
  if (!text) return reads_numbers(*reader, type.id(), metadata.num_rows(), out);
  read_codes(*reader, metadata.num_rows(), out);
  readers_.push_back(std::move(reader));
  return true;
}

}  // namespace dovetail::data
