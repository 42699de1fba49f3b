#include "dovetail/data/parquet/parquet_module.h"

#include <arrow/api.h>
#include <arrow/io/api.h>
#include <fmt/format.h>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>

#include <algorithm>
#include <string>
#include <vector>

#include "dovetail/base/error.h"

namespace dovetail {
namespace {

class ArrowText : public ParquetText {
 public:
  ArrowText(std::string path, const std::string& column) : path_(std::move(path)) {
    auto file = check(arrow::io::ReadableFile::Open(path_));
    // Damage in the file's own structures comes as an exception, everything else as a status.
    try {
      reader_ = check(parquet::arrow::OpenFile(std::move(file), arrow::default_memory_pool()));
    } catch (const parquet::ParquetException& e) {
      refuse(e.what());
    }
    std::shared_ptr<arrow::Schema> schema;
    check(reader_->GetSchema(&schema));
    column_ = find_column(*schema, column);
  }

  int64_t num_row_groups() const override { return reader_->num_row_groups(); }

  uint64_t group_bytes(int64_t group) const override {
    const auto metadata = reader_->parquet_reader()->metadata()->RowGroup(static_cast<int>(group));
    return static_cast<uint64_t>(std::max<int64_t>(0, metadata->ColumnChunk(column_)->total_uncompressed_size()));
  }

  void read(int64_t group, const std::function<void(int64_t, std::string_view)>& visit) override {
    std::shared_ptr<arrow::Table> table;
    try {
      table = check(reader_->ReadRowGroup(static_cast<int>(group), {column_}));
    } catch (const parquet::ParquetException& e) {
      refuse(e.what());
    }
    int64_t row = first_row(group);
    for (const auto& chunk : table->column(0)->chunks()) {
      if (const auto* text = dynamic_cast<const arrow::StringArray*>(chunk.get()))
        visit_all(*text, row, visit);
      else if (const auto* large = dynamic_cast<const arrow::LargeStringArray*>(chunk.get()))
        visit_all(*large, row, visit);
      else
        refuse(fmt::format("the text column is read as {}, not as strings", chunk->type()->ToString()));
      row += chunk->length();
    }
  }

 private:
  [[noreturn]] void refuse(const std::string& reason) const {
    throw UserError(fmt::format("cannot read Parquet: {}", reason), "write it again, for example with pyarrow", path_);
  }

  void check(const arrow::Status& status) const {
    if (!status.ok()) refuse(status.message());
  }

  template <class T>
  T check(arrow::Result<T> result) const {
    check(result.status());
    return std::move(result).ValueUnsafe();
  }

  int find_column(const arrow::Schema& schema, const std::string& wanted) const {
    std::string found;
    for (int i = 0; i < schema.num_fields(); ++i) {
      const auto& field = *schema.field(i);
      found += fmt::format(" `{}` ({})", field.name(), field.type()->ToString());
      if (field.name() != wanted) continue;
      if (field.type()->id() != arrow::Type::STRING && field.type()->id() != arrow::Type::LARGE_STRING)
        refuse(fmt::format("column `{}` holds {}, not strings", wanted, field.type()->ToString()));
      return leaf_index(schema, i);
    }
    throw UserError(fmt::format("no column `{}`; found{}", wanted, found),
                    "name the column that holds the text: --set data.text_field=...", path_);
  }

  /// Parquet numbers leaves: a nested column before ours counts for each of its own.
  int leaf_index(const arrow::Schema& schema, int field) const {
    const auto* parquet_schema = reader_->parquet_reader()->metadata()->schema();
    for (int leaf = 0; leaf < parquet_schema->num_columns(); ++leaf)
      if (parquet_schema->Column(leaf)->path()->ToDotString() == schema.field(field)->name()) return leaf;
    refuse(fmt::format("column `{}` is not a leaf", schema.field(field)->name()));
  }

  int64_t first_row(int64_t group) const {
    int64_t row = 0;
    for (int64_t g = 0; g < group; ++g)
      row += reader_->parquet_reader()->metadata()->RowGroup(static_cast<int>(g))->num_rows();
    return row;
  }

  template <class Array>
  static void visit_all(const Array& texts, int64_t row, const std::function<void(int64_t, std::string_view)>& visit) {
    for (int64_t i = 0; i < texts.length(); ++i)
      if (!texts.IsNull(i)) visit(row + i, texts.GetView(i));
  }

  std::string path_;
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  int column_ = 0;  ///< among the leaves
};

}  // namespace
}  // namespace dovetail

extern "C" __attribute__((visibility("default"))) void dovetail_open_parquet_text(
    const char* path, const char* column, std::unique_ptr<dovetail::ParquetText>& reader) {
  reader = std::make_unique<dovetail::ArrowText>(path, column);
}
