#include "dovetail/data/documents.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/data/parquet.h"
#include "dovetail/data/utf8.h"

namespace dovetail {
namespace {

using nlohmann::json;

constexpr uint64_t kJsonLinesPiece = uint64_t{4} << 20;

std::string_view text_of(const MappedFile& file) {
  const auto bytes = file.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class JsonLines {
 public:
  JsonLines(const InputFile& file, const std::string& field) : input_(file), field_(field), file_(file.path) {}

  void read(const Piece& piece, const std::function<void(const Document&)>& visit) const {
    const std::string_view all = text_of(file_);
    const auto limit = std::min<size_t>(piece.end, all.size());
    // A line belongs to the piece in which it begins.
    size_t at = piece.begin;
    if (at > 0 && at <= all.size() && all[at - 1] != '\n') at = std::min(all.find('\n', at), all.size() - 1) + 1;
    while (at < limit) {
      const size_t end = std::min(all.find('\n', at), all.size());
      read_line(all, at, end, visit);
      at = end + 1;
    }
  }

 private:
  void read_line(std::string_view all, size_t begin, size_t end,
                 const std::function<void(const Document&)>& visit) const {
    const std::string_view line = all.substr(begin, end - begin);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) return;
    Document document;
    document.identity = fmt::format("{}#{}", input_.relative, begin);
    if (!is_valid_utf8(line)) {
      document.text = line;
      document.valid = false;
      return visit(document);
    }
    const std::string text = text_in(line, all, begin);
    document.text = text;
    if (!text.empty()) visit(document);
  }

  std::string text_in(std::string_view line, std::string_view all, size_t begin) const {
    const auto place = [&] {
      return fmt::format("{}:{}", input_.path.string(),
                         1 + std::count(all.begin(), all.begin() + static_cast<ptrdiff_t>(begin), '\n'));
    };
    json record;
    try {
      record = json::parse(line);
    } catch (const json::exception& e) {
      throw UserError(fmt::format("not valid JSON: {}", e.what()), "a .jsonl file has one JSON object a line", place());
    }
    const auto field = record.is_object() ? record.find(field_) : record.end();
    if (!record.is_object() || field == record.end() || !field->is_string()) {
      std::string found = record.is_object() ? "fields" : record.type_name();
      if (record.is_object())
        for (const auto& [key, value] : record.items()) found += fmt::format(" `{}` ({})", key, value.type_name());
      throw UserError(fmt::format("no string `{}` in this record; found {}", field_, found),
                      "name the field that holds the text: --set data.text_field=...", place());
    }
    return field->get<std::string>();
  }

  const InputFile& input_;
  const std::string& field_;
  MappedFile file_;
};

}  // namespace

std::vector<Piece> cut_into_pieces(const std::vector<InputFile>& files, const std::string& text_field) {
  std::vector<Piece> pieces;
  for (size_t f = 0; f < files.size(); ++f) {
    const InputFile& file = files[f];
    switch (file.format) {
      case InputFormat::kText:
        pieces.push_back({f, 0, file.bytes, file.bytes});
        break;
      case InputFormat::kJsonLines:
        for (uint64_t begin = 0; begin < file.bytes; begin += kJsonLinesPiece) {
          const uint64_t end = std::min(begin + kJsonLinesPiece, file.bytes);
          pieces.push_back({f, begin, end, end - begin});
        }
        break;
      case InputFormat::kParquet: {
        const auto reader = open_parquet(file.path, text_field);
        for (int64_t group = 0; group < reader->num_row_groups(); ++group)
          pieces.push_back(
              {f, static_cast<uint64_t>(group), static_cast<uint64_t>(group) + 1, reader->group_bytes(group)});
        break;
      }
    }
  }
  return pieces;
}

void read_documents(const InputFile& file, const Piece& piece, const std::string& text_field,
                    const std::function<void(const Document&)>& visit) {
  switch (file.format) {
    case InputFormat::kText: {
      const std::string text = read_file(file.path);
      if (!text.empty()) visit({text, file.relative, is_valid_utf8(text)});
      return;
    }
    case InputFormat::kJsonLines:
      return JsonLines(file, text_field).read(piece, visit);
    case InputFormat::kParquet: {
      const auto reader = open_parquet(file.path, text_field);
      reader->read(static_cast<int64_t>(piece.begin), [&](int64_t row, std::string_view text) {
        if (!text.empty()) visit({text, fmt::format("{}#{}", file.relative, row), is_valid_utf8(text)});
      });
      return;
    }
  }
}

}  // namespace dovetail
