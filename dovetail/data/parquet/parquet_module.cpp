#include "dovetail/data/parquet/parquet_module.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "dovetail/base/error.h"
#include "dovetail/data/parquet/arrow_file.h"

namespace dovetail {
namespace {

class ArrowText : public ParquetText {
 public:
  ArrowText(std::string path, const std::string& column)
      : file_(std::move(path), ArrowFile::Texts::kPlain), column_(find_column(column)) {}

  int64_t num_row_groups() const override { return file_.metadata().num_row_groups(); }

  uint64_t group_bytes(int64_t group) const override {
    const auto metadata = file_.metadata().RowGroup(static_cast<int>(group));
    return static_cast<uint64_t>(std::max<int64_t>(0, metadata->ColumnChunk(column_)->total_uncompressed_size()));
  }

  void read(int64_t group, const std::function<void(int64_t, std::string_view)>& visit) override {
    const auto table = file_.read(group, {column_});
    int64_t row = first_row(group);
    for (const auto& chunk : table->column(0)->chunks()) {
      if (const auto* text = dynamic_cast<const arrow::StringArray*>(chunk.get()))
        visit_all(*text, row, visit);
      else if (const auto* large = dynamic_cast<const arrow::LargeStringArray*>(chunk.get()))
        visit_all(*large, row, visit);
      else
        file_.refuse(fmt::format("the text column is read as {}, not as strings", chunk->type()->ToString()));
      row += chunk->length();
    }
  }

 private:
  int find_column(const std::string& wanted) const {
    std::string found;
    const arrow::Schema& schema = file_.schema();
    for (int i = 0; i < schema.num_fields(); ++i) {
      const auto& field = *schema.field(i);
      found += fmt::format(" `{}` ({})", field.name(), field.type()->ToString());
      if (field.name() != wanted) continue;
      if (field.type()->id() != arrow::Type::STRING && field.type()->id() != arrow::Type::LARGE_STRING)
        file_.refuse(fmt::format("column `{}` holds {}, not strings", wanted, field.type()->ToString()));
      return file_.leaves(i).front();
    }
    throw UserError(fmt::format("no column `{}`; found{}", wanted, found),
                    "name the column that holds the text: --set data.text_field=...", file_.path());
  }

  int64_t first_row(int64_t group) const {
    int64_t row = 0;
    for (int64_t g = 0; g < group; ++g) row += file_.metadata().RowGroup(static_cast<int>(g))->num_rows();
    return row;
  }

  template <class Array>
  static void visit_all(const Array& texts, int64_t row, const std::function<void(int64_t, std::string_view)>& visit) {
    for (int64_t i = 0; i < texts.length(); ++i)
      if (!texts.IsNull(i)) visit(row + i, texts.GetView(i));
  }

  ArrowFile file_;
  int column_ = 0;  ///< among the leaves
};

}  // namespace
}  // namespace dovetail

extern "C" __attribute__((visibility("default"))) void dovetail_open_parquet_text(
    const char* path, const char* column, std::unique_ptr<dovetail::ParquetText>& reader) {
  reader = std::make_unique<dovetail::ArrowText>(path, column);
}
