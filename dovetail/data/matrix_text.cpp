#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/parallel.h"
#include "dovetail/data/delimited.h"
#include "dovetail/data/matrix_part.h"

namespace dovetail {
namespace {

constexpr uint64_t kPartBytes = uint64_t{4} << 20;

std::vector<std::string> numbered(size_t count) {
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) names.push_back(numbered_column(i));
  return names;
}

/// Whether these are the names of columns: one of them at least is neither a number nor empty.
bool is_header(const std::vector<std::string>& fields) {
  return std::any_of(fields.begin(), fields.end(), [](const std::string& field) {
    double value = 0;
    return !field.empty() && !is_number(field, value);
  });
}

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v'; }

/// The words of a line, and how many there are.
template <class Visit>
size_t each_word(std::string_view line, const Visit& visit) {
  size_t count = 0;
  for (size_t i = 0; i < line.size();) {
    while (i < line.size() && is_blank(line[i])) ++i;
    const size_t begin = i;
    while (i < line.size() && !is_blank(line[i])) ++i;
    if (i > begin) visit(count++, line.substr(begin, i - begin));
  }
  return count;
}

/// Text with blanks between its fields, in ranges of whole lines.
class BlankSeparated {
 public:
  explicit BlankSeparated(const std::filesystem::path& path) : path_(path), file_(path) {
    text_ = {reinterpret_cast<const char*>(file_.bytes().data()), file_.bytes().size()};
    for (size_t at = 0; at < text_.size();) {
      size_t end = std::min<size_t>(at + kPartBytes, text_.size());
      if (end < text_.size()) end = std::min(text_.find('\n', end), text_.size() - 1) + 1;
      ranges_.push_back({at, end});
      at = end;
    }
    count_lines();
    std::vector<std::string> fields = first_fields();
    has_header_ = is_header(fields);
    names_ = has_header_ ? std::move(fields) : numbered(fields.size());
  }

  const std::vector<std::string>& names() const { return names_; }
  int64_t num_parts() const { return std::ssize(ranges_); }

  void read(int64_t part, const MatrixColumns& columns, RowTaker& taker) const {
    each_line(part, [&](int64_t number, std::string_view line) {
      if (has_header_ && number == first_line_) return true;
      taker.begin("line", number);
      size_t next = 0;
      const size_t width = each_word(line, [&](size_t field, std::string_view word) {
        if (next == columns.kept.size() || columns.kept[next] != field) return;
        // A row that is too short or too long is refused below, whatever it holds.
        ++next;
        taker.add_text(word);
      });
      if (width != names_.size())
        throw UserError(fmt::format("line {} has {} fields, not {}", number, width, names_.size()), {}, path_.string());
      taker.end();
      return true;
    });
  }

 private:
  struct Range {
    size_t begin, end;
    int64_t first_line = 0;  ///< from 1
  };

  /// Lines with something in them, until `visit` says no more.
  template <class Visit>
  void each_line(int64_t part, const Visit& visit) const {
    const Range& range = ranges_[static_cast<size_t>(part)];
    int64_t number = range.first_line;
    for (size_t at = range.begin; at < range.end; ++number) {
      const size_t end = std::min(text_.find('\n', at), range.end);
      const std::string_view line = text_.substr(at, end - at);
      at = end + 1;
      const auto first = std::find_if_not(line.begin(), line.end(), is_blank);
      if (first == line.end() || *first == '#') continue;
      if (!visit(number, line)) return;
    }
  }

  void count_lines() {
    parallel_pieces(num_parts(), 1, [this](int64_t i, int64_t) {
      Range& range = ranges_[static_cast<size_t>(i)];
      range.first_line = std::count(text_.begin() + static_cast<std::ptrdiff_t>(range.begin),
                                    text_.begin() + static_cast<std::ptrdiff_t>(range.end), '\n');
    });
    int64_t line = 1;
    for (Range& range : ranges_) line += std::exchange(range.first_line, line);
  }

  std::vector<std::string> first_fields() {
    std::vector<std::string> fields;
    for (int64_t part = 0; part < num_parts() && fields.empty(); ++part) {
      each_line(part, [&](int64_t number, std::string_view line) {
        first_line_ = number;
        each_word(line, [&](size_t, std::string_view word) { fields.emplace_back(word); });
        return false;
      });
    }
    if (fields.empty()) throw UserError("there are no rows", {}, path_.string());
    return fields;
  }

  const std::filesystem::path& path_;
  MappedFile file_;
  std::string_view text_;
  std::vector<Range> ranges_;
  std::vector<std::string> names_;
  int64_t first_line_ = 0;
  bool has_header_ = false;
};

/// Text with a delimiter, whose header, if any, is found out.
class Delimited {
 public:
  Delimited(const std::filesystem::path& path, char delimiter) : path_(path) {
    const DelimitedFormat format{.delimiter = delimiter, .quotes = delimiter == ','};
    std::vector<std::string> fields = first_fields(format);
    has_header_ = is_header(fields);
    DelimitedFormat named = format;
    if (!has_header_) named.columns = numbered(fields.size());
    file_ = std::make_unique<DelimitedFile>(path, named);
    ranges_ = file_->ranges(kPartBytes);
  }

  const std::vector<std::string>& names() const { return file_->columns(); }
  int64_t num_parts() const { return std::ssize(ranges_); }

  void read(int64_t part, const MatrixColumns& columns, RowTaker& taker) const {
    file_->read(ranges_[static_cast<size_t>(part)], columns.kept,
                [&](int64_t row, std::span<const Cell> cells, const BadRow* bad) {
                  const int64_t line = row + (has_header_ ? 1 : 0);
                  if (bad) throw UserError(fmt::format("line {}: {}", line, bad->reason), {}, path_.string());
                  taker.begin("line", line);
                  for (const Cell& cell : cells)
                    taker.add_text(cell.kind == Cell::Kind::kText ? *cell.text : std::string_view());
                  taker.end();
                });
  }

 private:
  /// Of the first record, without the quotes around them.
  std::vector<std::string> first_fields(const DelimitedFormat& format) const {
    const std::string text = first_line();
    std::vector<std::string> fields;
    bool quoted = false;
    fields.emplace_back();
    for (const char c : text) {
      if (format.quotes && c == '"') {
        quoted = !quoted;
      } else if (c == format.delimiter && !quoted) {
        fields.emplace_back();
      } else {
        fields.back().push_back(c);
      }
    }
    return fields;
  }

  std::string first_line() const {
    const MappedFile file(path_);
    std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
    if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
    if (text.empty()) throw UserError("there are no rows", {}, path_.string());
    text = text.substr(0, text.find('\n'));
    if (text.ends_with('\r')) text.remove_suffix(1);
    return std::string(text);
  }

  const std::filesystem::path& path_;
  std::unique_ptr<DelimitedFile> file_;
  std::vector<RecordRange> ranges_;
  bool has_header_ = false;
};

template <class File>
std::vector<MatrixPart> read_parts(const File& file, const std::filesystem::path& path, const MatrixOptions& options,
                                   std::vector<std::string>& names) {
  const MatrixColumns columns(file.names(), options.drop_columns, path);
  for (const size_t column : columns.kept) names.push_back(columns.names[column]);
  std::vector<MatrixPart> parts(static_cast<size_t>(file.num_parts()));
  parallel_pieces(file.num_parts(), 1, [&](int64_t i, int64_t) {
    RowTaker taker(path, columns, options.bad_values, parts[static_cast<size_t>(i)]);
    file.read(i, columns, taker);
  });
  return parts;
}

}  // namespace

std::vector<MatrixPart> read_text_parts(const std::filesystem::path& path, char delimiter, const MatrixOptions& options,
                                        std::vector<std::string>& columns) {
  if (delimiter == '\0') return read_parts(BlankSeparated(path), path, options, columns);
  return read_parts(Delimited(path, delimiter), path, options, columns);
}

}  // namespace dovetail
