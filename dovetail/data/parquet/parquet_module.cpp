#include "dovetail/data/parquet/parquet_module.h"

#include <arrow/extension_type.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "dovetail/base/error.h"
#include "dovetail/data/parquet/arrow_file.h"

namespace dovetail::data {
namespace {

/// Returns true for types whose values are strings of bytes.
bool is_text(const arrow::DataType& type) {
  switch (type.id()) {
    case arrow::Type::STRING:
    case arrow::Type::LARGE_STRING:
    case arrow::Type::STRING_VIEW:
    case arrow::Type::BINARY:
    case arrow::Type::LARGE_BINARY:
    case arrow::Type::BINARY_VIEW:
    case arrow::Type::FIXED_SIZE_BINARY:
    case arrow::Type::NA:
      return true;
    case arrow::Type::DICTIONARY:
      return is_text(*static_cast<const arrow::DictionaryType&>(type).value_type());
    case arrow::Type::EXTENSION:
      return is_text(*static_cast<const arrow::ExtensionType&>(type).storage_type());
    default:
      return false;
  }
}

std::optional<std::string_view> text_at(const arrow::Array& texts, int64_t i) {
  if (texts.type_id() == arrow::Type::NA || texts.IsNull(i)) return std::nullopt;
  switch (texts.type_id()) {
    case arrow::Type::STRING:
    case arrow::Type::BINARY:
      return static_cast<const arrow::BinaryArray&>(texts).GetView(i);
    case arrow::Type::LARGE_STRING:
    case arrow::Type::LARGE_BINARY:
      return static_cast<const arrow::LargeBinaryArray&>(texts).GetView(i);
    case arrow::Type::STRING_VIEW:
    case arrow::Type::BINARY_VIEW:
      return static_cast<const arrow::BinaryViewArray&>(texts).GetView(i);
    case arrow::Type::FIXED_SIZE_BINARY:
      return static_cast<const arrow::FixedSizeBinaryArray&>(texts).GetView(i);
    case arrow::Type::EXTENSION:
      return text_at(*static_cast<const arrow::ExtensionArray&>(texts).storage(), i);
    default: {
      const auto& codes = static_cast<const arrow::DictionaryArray&>(texts);
      return text_at(*codes.dictionary(), codes.GetValueIndex(i));
    }
  }
}

class ArrowText : public ParquetText {
 public:
  ArrowText(std::string path, const std::string& column)
      : file_(std::move(path), ArrowFile::Texts::kPlain), column_(find_column(column)) {}

  int64_t num_row_groups() const override { return file_.metadata().num_row_groups(); }

  uint64_t group_bytes(int64_t group) const override {
    const auto metadata = file_.metadata().RowGroup(static_cast<int>(group));
    const int64_t bytes =
        file_.guarded([&] { return metadata->ColumnChunk(column_)->total_uncompressed_size(); });
    return static_cast<uint64_t>(std::max<int64_t>(0, bytes));
  }

  void read(int64_t group,
            const std::function<void(int64_t, std::optional<std::string_view>)>& visit) override {
    const auto table = file_.read(group, {column_});
    int64_t row = first_row(group);
    for (const auto& chunk : table->column(0)->chunks()) {
      if (!is_text(*chunk->type()))
        file_.refuse(fmt::format("the text column is read as {}, not as strings",
                                 chunk->type()->ToString()));
      for (int64_t i = 0; i < chunk->length(); ++i) visit(row + i, text_at(*chunk, i));
      row += chunk->length();
    }
  }

 private:
  int find_column(const std::string& wanted) const {
    std::string names;
    int found = -1;
    const arrow::Schema& schema = file_.schema();
    for (int i = 0; i < schema.num_fields(); ++i) {
      const auto& field = *schema.field(i);
      names += fmt::format(" `{}` ({})", field.name(), field.type()->ToString());
      if (field.name() != wanted) continue;
      if (found >= 0)
        throw UserError(fmt::format("two columns are named `{}`", wanted),
                        "rename one of them, or name another column with --set data.text_field=...",
                        file_.path());
      found = i;
    }
    if (found < 0) {
      const auto structure = schema.GetFieldByName(wanted.substr(0, wanted.find('.')));
      throw UserError(fmt::format("no column `{}`; found{}", wanted, names),
                      structure && structure->type()->id() == arrow::Type::STRUCT
                          ? "fields of a structure are not read: write the file again after "
                            "pyarrow's Table.flatten()"
                          : "name the column that holds the text: --set data.text_field=...",
                      file_.path());
    }
    const auto& type = *schema.field(found)->type();
    if (!is_text(type))
      throw UserError(fmt::format("column `{}` holds {}, not strings", wanted, type.ToString()),
                      type.id() == arrow::Type::STRUCT
                          ? "fields of a structure are not read: write the file again after "
                            "pyarrow's Table.flatten()"
                          : "name the column that holds the text: --set data.text_field=...",
                      file_.path());
    return file_.leaves(found).front();
  }

  int64_t first_row(int64_t group) const {
    int64_t row = 0;
    for (int64_t g = 0; g < group; ++g)
      row += file_.metadata().RowGroup(static_cast<int>(g))->num_rows();
    return row;
  }

  ArrowFile file_;
  int column_ = 0;  ///< index among the leaves
};

}  // namespace
}  // namespace dovetail::data

extern "C" __attribute__((visibility("default"))) void dovetail_open_parquet_text(
    const char* path, const char* column, std::unique_ptr<dovetail::data::ParquetText>& reader) {
  reader = std::make_unique<dovetail::data::ArrowText>(path, column);
}
