#include "dovetail/data/text/documents.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/json_fault.h"
#include "dovetail/data/files/parquet.h"
#include "dovetail/data/files/utf8.h"

namespace dovetail::data {
namespace {

using nlohmann::json;

constexpr uint64_t kJsonLinesPiece = uint64_t{4} << 20;

/// Replaces numbers that JSON does not have or float64 cannot hold by null. Python's json.dumps
/// writes NaN, Infinity and -Infinity. Its json.loads reads numbers beyond float64.
std::string without_nonfinite(std::string_view text) {
  std::string out;
  bool in_string = false;
  for (size_t i = 0; i < text.size();) {
    if (!in_string) {
      const auto rest = text.substr(i);
      size_t word = 0;
      for (const std::string_view name : {"NaN", "Infinity", "-Infinity"})
        if (rest.starts_with(name)) word = name.size();
      double number = 0;
      if (text[i] == '-' || (text[i] >= '0' && text[i] <= '9')) {
        const auto read = std::from_chars(rest.data(), rest.data() + rest.size(), number);
        if (read.ec == std::errc::result_out_of_range)
          word = static_cast<size_t>(read.ptr - rest.data());
      }
      if (word > 0) {
        out += "null";
        i += word;
        continue;
      }
    }
    if (in_string && text[i] == '\\' && i + 1 < text.size())
      out += text[i++];
    else if (text[i] == '"')
      in_string = !in_string;
    out += text[i++];
  }
  return out;
}

json parse_record(std::string_view text) {
  json record = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (record.is_discarded()) record = json::parse(without_nonfinite(text));
  return record;
}

class JsonRecords {
 public:
  using Visit = std::function<void(const Document&)>;
  JsonRecords(const InputFile& file, const std::string& field)
      : input_(file), field_(field), content_(file.content) {
    if (!content_) content_ = std::make_shared<MappedInput>(file.path, file.head);
    all_ = content_->bytes();
  }

  void read_lines(const Piece& piece, const Visit& visit) {
    const auto limit = std::min<size_t>(piece.end, all_.size());
    // A line belongs to the piece in which it begins.
    size_t at = piece.begin;
    if (at > 0 && at <= all_.size() && all_[at - 1] != '\n')
      at = std::min(all_.find('\n', at), all_.size() - 1) + 1;
    while (at < limit) {
      const size_t end = std::min(all_.find('\n', at), all_.size());
      if (all_.substr(at, end - at).find_first_not_of(" \t\r") != std::string_view::npos)
        read_record(at, end, visit);
      at = end + 1;
    }
  }

  void read_array(const Visit& visit) {
    constexpr const char* kBetween = " \t\r\n,";
    size_t at = all_.find_first_not_of(kBetween, all_.find('[') + 1);
    for (; at < all_.size() && all_[at] != ']'; at = all_.find_first_not_of(kBetween, at)) {
      const size_t end = end_of_value(at);
      read_record(at, end, visit);
      at = end;
    }
    if (at >= all_.size())
      visit_bad(all_.size(), "the array has no end: the file is cut short", "get or write it again",
                visit);
    else if (at = all_.find_first_not_of(" \t\r\n", at + 1); at != std::string_view::npos)
      visit_bad(at, "text follows the array of records",
                "a .json file has one array, or one JSON object a line", visit);
  }

 private:
  /// Returns the end of a value of the outer array: its comma, the array's end or the end of the
  /// file.
  size_t end_of_value(size_t at) const {
    int64_t depth = 0;
    for (bool in_string = false; at < all_.size(); ++at) {
      const char c = all_[at];
      if (in_string) {
        at += c == '\\';
        in_string = c != '"';
      } else if (c == '"') {
        in_string = true;
      } else if (c == '[' || c == '{') {
        ++depth;
      } else if (depth == 0 && (c == ',' || c == ']')) {
        return at;
      } else if (c == ']' || c == '}') {
        --depth;
      }
    }
    return all_.size();
  }

  struct Shape {
    std::string what, help;
  };

  /// Recognizes a .jsonl file that holds one array, or objects over several lines, by its
  /// beginning.
  std::optional<Shape> other_shape() const {
    if (input_.format != InputFormat::kJsonLines) return std::nullopt;
    const size_t begin = all_.find_first_not_of(" \t\r\n");
    const std::string file = input_.path.filename().string();
    if (all_[begin] == '[') {
      const size_t first = std::min(all_.find_first_not_of(" \t\r\n", begin + 1), all_.size() - 1);
      if (all_[first] != '{') return std::nullopt;
      const size_t end = std::min(all_.find('\n', begin), all_.size());
      const bool one_line = json::accept(all_.substr(begin, end - begin));
      if (one_line && all_.find_first_not_of(" \t\r\n", end) != std::string_view::npos)
        return std::nullopt;
      return Shape{"the file holds one JSON array, not one JSON object a line",
                   fmt::format("name it .json if it is an array of objects, or write its lines: jq "
                               "-c '.[]' {} > lines.jsonl",
                               file)};
    }
    constexpr size_t kLongest = size_t{1} << 20;
    std::istringstream in(std::string(all_.substr(begin, kLongest)));
    try {
      json first;
      in >> first;
    } catch (const json::exception&) {
      return std::nullopt;
    }
    if (all_.substr(begin, static_cast<size_t>(in.tellg())).find('\n') == std::string_view::npos)
      return std::nullopt;
    return Shape{"the file holds a JSON object over several lines, not one JSON object a line",
                 fmt::format("write one object a line: jq -c . {} > lines.jsonl", file)};
  }

  /// Reports the line of the fault, since a record of an array may have many lines.
  void visit_broken(size_t begin, const json::parse_error& error, const Visit& visit) {
    if (described_ == kProblemsDescribed) return visit_bad(begin, {}, {}, visit);
    if (const auto shape = other_shape()) return visit_bad(begin, shape->what, shape->help, visit);
    std::string fault = json_fault(error);
    if (fault.find("surrogate") != std::string::npos)
      return visit_bad(
          begin, "a text has half a surrogate pair, such as \\ud800, which is no character",
          "write it without such halves, in Python: text.encode(\"utf-8\", \"replace\").decode()",
          visit);
    if (fault.starts_with("line ")) fault.erase(0, fault.find(", ") + 2);
    visit_bad(std::min(begin + error.byte - 1, all_.size()),
              fmt::format("not valid JSON: {}", fault),
              input_.head.extension == ".json"
                  ? "a .json file has an array of objects, or one object a line, as jq -c writes it"
                  : "a .jsonl file has one JSON object a line",
              visit);
  }

  void visit_bad(size_t begin, const std::string& what, const std::string& help,
                 const Visit& visit) {
    Document document{.identity = identity(begin), .state = Document::State::kBad};
    visit_problem(document, begin, what, help, visit);
  }

  void visit_problem(Document& document, size_t begin, const std::string& what,
                     const std::string& help, const Visit& visit) {
    if (described_ == kProblemsDescribed) return visit(document);
    ++described_;
    const auto line =
        1 + std::count(all_.begin(), all_.begin() + static_cast<ptrdiff_t>(begin), '\n');
    const UserError problem(what, help, fmt::format("{}:{}", input_.path.string(), line));
    document.problem = &problem;
    visit(document);
  }

  std::string identity(size_t begin) const { return fmt::format("{}#{}", input_.relative, begin); }

  void read_record(size_t begin, size_t end, const Visit& visit) {
    const std::string_view bytes = all_.substr(begin, end - begin);
    Document document{.text = bytes, .identity = identity(begin)};
    if (!is_valid_utf8(bytes)) {
      document.state = Document::State::kNotUtf8;
      return visit_problem(document, begin, "the record is not UTF-8", {}, visit);
    }
    json record;
    try {
      record = parse_record(bytes);
    } catch (const json::parse_error& e) {
      return visit_broken(begin, e, visit);
    }
    const auto field = record.is_object() ? record.find(field_) : record.end();
    if (record.is_object() && field != record.end() && field->is_string()) {
      document.text = field->get_ref<const std::string&>();
      if (document.text.empty()) document.state = Document::State::kEmpty;
      return visit(document);
    }
    if (record.is_object() && field != record.end() && field->is_null()) {
      document.state = Document::State::kEmpty;
      return visit(document);
    }
    if (record.is_array() && described_ < kProblemsDescribed)
      if (const auto shape = other_shape())
        return visit_bad(begin, shape->what, shape->help, visit);
    std::string found = record.is_object() ? "fields" : record.type_name();
    if (record.is_object())
      for (const auto& [key, value] : record.items())
        found += fmt::format(" `{}` ({})", key, value.type_name());
    visit_bad(begin, fmt::format("no string `{}` in this record; found {}", field_, found),
              field != record.end() && field->is_structured()
                  ? "write the text as a field of the record itself"
                  : "name the field that holds the text: --set data.text_field=...",
              visit);
  }

  const InputFile& input_;
  const std::string& field_;
  std::shared_ptr<const MappedInput> content_;
  std::string_view all_;
  int described_ = 0;
};

void read_parquet(const InputFile& file, int64_t group, const std::string& text_field,
                  const std::function<void(const Document&)>& visit) {
  int described = 0;
  open_parquet(file.path, text_field)
      ->read(group, [&](int64_t row, std::optional<std::string_view> text) {
        Document document{.text = text.value_or(""),
                          .identity = fmt::format("{}#{}", file.relative, row)};
        if (document.text.empty()) document.state = Document::State::kEmpty;
        if (is_valid_utf8(document.text)) return visit(document);
        document.state = Document::State::kNotUtf8;
        const UserError problem("the text is not UTF-8", {},
                                fmt::format("{}: row {}", file.path.string(), row));
        if (described++ < kProblemsDescribed) document.problem = &problem;
        visit(document);
      });
}

}  // namespace

std::vector<Piece> cut_into_pieces(const std::vector<InputFile>& files,
                                   const std::string& text_field) {
  std::vector<Piece> pieces;
  for (size_t f = 0; f < files.size(); ++f) {
    const InputFile& file = files[f];
    switch (file.format) {
      case InputFormat::kText:
      case InputFormat::kJsonArray:
        pieces.push_back({f, 0, file.text_bytes, file.text_bytes});
        break;
      case InputFormat::kJsonLines:
        for (uint64_t begin = 0; begin < file.text_bytes; begin += kJsonLinesPiece) {
          const uint64_t end = std::min(begin + kJsonLinesPiece, file.text_bytes);
          pieces.push_back({f, begin, end, end - begin});
        }
        break;
      case InputFormat::kParquet: {
        const auto reader = open_parquet(file.path, text_field);
        for (int64_t group = 0; group < reader->num_row_groups(); ++group)
          pieces.push_back({f, static_cast<uint64_t>(group), static_cast<uint64_t>(group) + 1,
                            reader->group_bytes(group)});
        break;
      }
    }
  }
  return pieces;
}

std::string read_text(const InputFile& file) {
  std::string text;
  if (file.head.is_plain()) {
    text = read_file(file.path);
    if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
    return text;
  }
  const auto stream = open_input_stream(file.path, file.head);
  constexpr size_t kPiece = size_t{1} << 20;
  for (size_t size = 0;; size = text.size()) {
    text.resize(size + kPiece);
    const size_t more = stream->read(text.data() + size, kPiece);
    text.resize(size + more);
    if (more == 0) return text;
  }
}

void read_documents(const InputFile& file, const Piece& piece, const std::string& text_field,
                    const std::function<void(const Document&)>& visit) {
  switch (file.format) {
    case InputFormat::kText: {
      const std::string text = read_text(file);
      const UserError problem("the text is not UTF-8", {}, file.path.string());
      Document document{.text = text, .identity = file.relative};
      if (text.empty()) document.state = Document::State::kEmpty;
      if (!is_valid_utf8(text)) {
        document.state = Document::State::kNotUtf8;
        document.problem = &problem;
      }
      return visit(document);
    }
    case InputFormat::kJsonLines:
      return JsonRecords(file, text_field).read_lines(piece, visit);
    case InputFormat::kJsonArray:
      return JsonRecords(file, text_field).read_array(visit);
    case InputFormat::kParquet:
      return read_parquet(file, static_cast<int64_t>(piece.begin), text_field, visit);
  }
}

}  // namespace dovetail::data
