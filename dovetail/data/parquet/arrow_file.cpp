#include "dovetail/data/parquet/arrow_file.h"

#include <arrow/extension_type.h>
#include <arrow/io/api.h>
#include <arrow/util/int_util.h>
#include <fmt/format.h>
#include <parquet/arrow/schema.h>

#include "dovetail/base/error.h"

namespace dovetail::data {
namespace {

void collect(const parquet::arrow::SchemaField& field, std::vector<int>& leaves) {
  if (field.is_leaf()) leaves.push_back(field.column_index);
  for (const auto& child : field.children) collect(child, leaves);
}

/// Checks codes against the length of their dictionary, which Arrow's reader does not do.
arrow::Status check_codes(const arrow::ArrayData& data) {
  const arrow::DataType* type = data.type.get();
  if (type->id() == arrow::Type::EXTENSION)
    type = static_cast<const arrow::ExtensionType*>(type)->storage_type().get();
  if (type->id() == arrow::Type::DICTIONARY) {
    const auto codes = data.Copy();
    codes->type = static_cast<const arrow::DictionaryType*>(type)->index_type();
    codes->dictionary = nullptr;
    ARROW_RETURN_NOT_OK(
        arrow::internal::CheckIndexBounds(*codes, static_cast<uint64_t>(data.dictionary->length)));
  }
  for (const auto& child : data.child_data) ARROW_RETURN_NOT_OK(check_codes(*child));
  return arrow::Status::OK();
}

/// Returns true if Arrow can read a column of bytes as a dictionary and codes. It cannot if a page
/// has one of two delta encodings, as some writers choose for page version 2.
bool reads_as_dictionary(const parquet::FileMetaData& metadata, int leaf) {
  if (metadata.schema()->Column(leaf)->physical_type() != parquet::Type::BYTE_ARRAY) return false;
  for (int group = 0; group < metadata.num_row_groups(); ++group) {
    const auto chunk = metadata.RowGroup(group)->ColumnChunk(leaf);
    for (const parquet::Encoding::type encoding : chunk->encodings())
      if (encoding == parquet::Encoding::DELTA_BYTE_ARRAY ||
          encoding == parquet::Encoding::DELTA_LENGTH_BYTE_ARRAY)
        return false;
  }
  return true;
}

}  // namespace

ArrowFile::ArrowFile(std::string path, Texts texts) : path_(std::move(path)) {
  auto file = arrow::io::ReadableFile::Open(path_);
  if (!file.ok()) refuse(file.status().message());
  guarded([&] {
    auto reader = parquet::ParquetFileReader::Open(std::move(file).ValueUnsafe());
    parquet::ArrowReaderProperties properties;
    const parquet::FileMetaData& metadata = *reader->metadata();
    for (int leaf = 0; texts == Texts::kDictionary && leaf < metadata.num_columns(); ++leaf)
      properties.set_read_dictionary(leaf, reads_as_dictionary(metadata, leaf));
    reader_ = check(parquet::arrow::FileReader::Make(arrow::default_memory_pool(),
                                                     std::move(reader), properties));
    check(reader_->GetSchema(&schema_));
    check_rows();
  });
}

void ArrowFile::check_rows() const {
  int64_t left = metadata().num_rows();
  for (int g = 0; g < metadata().num_row_groups(); ++g) {
    const int64_t rows = metadata().RowGroup(g)->num_rows();
    if (rows < 0 || rows > left)
      refuse(fmt::format("row group {} has {} rows, where {} are left", g, rows, left));
    left -= rows;
  }
  if (left != 0) refuse(fmt::format("{} of its rows are in no row group", left));
}

std::vector<int> ArrowFile::leaves(int field) const {
  std::vector<int> found;
  collect(reader_->manifest().schema_fields[static_cast<size_t>(field)], found);
  return found;
}

void ArrowFile::check_values(int64_t group, const std::vector<int>& leaves) const {
  guarded([&] {
    const auto of_group = metadata().RowGroup(static_cast<int>(group));
    for (const int leaf : leaves) {
      const int64_t values = of_group->ColumnChunk(leaf)->num_values(), rows = of_group->num_rows();
      const bool repeated = metadata().schema()->Column(leaf)->max_repetition_level() > 0;
      if (values < rows || (values > rows && !repeated))
        refuse(fmt::format("column {} has {} values in row group {} of {} rows", leaf, values,
                           group, rows));
    }
  });
}

std::shared_ptr<arrow::Table> ArrowFile::read(int64_t group, const std::vector<int>& leaves) const {
  check_values(group, leaves);
  return guarded_group(group, [&] {
    auto table = check(reader_->ReadRowGroup(static_cast<int>(group), leaves));
    for (const auto& column : table->columns())
      for (const auto& chunk : column->chunks()) check(check_codes(*chunk->data()));
    return table;
  });
}

std::shared_ptr<parquet::RowGroupReader> ArrowFile::group(int64_t group) const {
  return reader_->parquet_reader()->RowGroup(static_cast<int>(group));
}

void ArrowFile::refuse(const std::string& reason) const {
  throw UserError(fmt::format("cannot read Parquet: {}", reason),
                  "write it again, for example with pyarrow", path_);
}

void ArrowFile::refuse_damage(std::string words) const {
  words = words.substr(0, words.find('\n'));
  for (const std::string_view layer : {"thrift: ", "Exception: "})
    if (const size_t at = words.rfind(layer); at != std::string::npos)
      words.erase(0, at + layer.size());
  if (words.find("ot yet implemented") != std::string::npos) refuse(printable(words));
  throw UserError(fmt::format("the Parquet file is damaged or cut short{}",
                              words.empty() ? "" : fmt::format(" ({})", printable(words))),
                  "download or write it again", path_);
}

void ArrowFile::check(const arrow::Status& status) const {
  if (status.IsNotImplemented()) refuse(status.message());
  if (!status.ok()) refuse_damage(status.message());
}

}  // namespace dovetail::data
