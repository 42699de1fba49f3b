#include "dovetail/data/parquet/arrow_file.h"

#include <arrow/io/api.h>
#include <fmt/format.h>
#include <parquet/arrow/schema.h>
#include <parquet/exception.h>

#include "dovetail/base/error.h"

namespace dovetail {
namespace {

void collect(const parquet::arrow::SchemaField& field, std::vector<int>& leaves) {
  if (field.is_leaf()) leaves.push_back(field.column_index);
  for (const auto& child : field.children) collect(child, leaves);
}

}  // namespace

ArrowFile::ArrowFile(std::string path, Texts texts) : path_(std::move(path)) {
  auto file = check(arrow::io::ReadableFile::Open(path_));
  // Damage in the file's own structures comes as an exception, everything else as a status.
  try {
    auto reader = parquet::ParquetFileReader::Open(std::move(file));
    parquet::ArrowReaderProperties properties;
    const parquet::SchemaDescriptor& schema = *reader->metadata()->schema();
    for (int leaf = 0; texts == Texts::kDictionary && leaf < schema.num_columns(); ++leaf)
      properties.set_read_dictionary(leaf, schema.Column(leaf)->physical_type() == parquet::Type::BYTE_ARRAY);
    reader_ = check(parquet::arrow::FileReader::Make(arrow::default_memory_pool(), std::move(reader), properties));
  } catch (const parquet::ParquetException& e) {
    refuse(e.what());
  }
  check(reader_->GetSchema(&schema_));
}

std::vector<int> ArrowFile::leaves(int field) const {
  std::vector<int> found;
  collect(reader_->manifest().schema_fields[static_cast<size_t>(field)], found);
  return found;
}

std::shared_ptr<arrow::Table> ArrowFile::read(int64_t group, const std::vector<int>& leaves) const {
  try {
    return check(reader_->ReadRowGroup(static_cast<int>(group), leaves));
  } catch (const parquet::ParquetException& e) {
    refuse(e.what());
  }
}

std::shared_ptr<parquet::RowGroupReader> ArrowFile::group(int64_t group) const {
  return reader_->parquet_reader()->RowGroup(static_cast<int>(group));
}

void ArrowFile::refuse(const std::string& reason) const {
  throw UserError(fmt::format("cannot read Parquet: {}", reason), "write it again, for example with pyarrow", path_);
}

void ArrowFile::check(const arrow::Status& status) const {
  if (!status.ok()) refuse(status.message());
}

}  // namespace dovetail
