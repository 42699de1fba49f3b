#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/parallel.h"
#include "dovetail/data/cell_values.h"
#include "dovetail/data/delimited.h"
#include "dovetail/data/delimiter.h"
#include "dovetail/data/matrix_part.h"

namespace dovetail {
namespace {

constexpr uint64_t kPartBytes = uint64_t{4} << 20;

std::vector<std::string> numbered(size_t count) {
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) names.push_back(numbered_column(i));
  return names;
}

/// Column names: at least one field is neither a number, True or False, nor a word for a missing one.
bool is_header(const std::vector<std::string>& fields, char decimal) {
  return std::any_of(fields.begin(), fields.end(), [&](const std::string& field) {
    double value = 0;
    return !is_missing_word(field) && !is_number(field, decimal, value) && !is_number(field, ',', value) &&
           !is_truth(field, value);
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
  BlankSeparated(const std::filesystem::path& path, std::shared_ptr<const MappedInput> input, char decimal)
      : path_(path), input_(std::move(input)), text_(input_->bytes()) {
    for (size_t at = 0; at < text_.size();) {
      size_t end = std::min<size_t>(at + kPartBytes, text_.size());
      if (end < text_.size()) end = std::min(text_.find('\n', end), text_.size() - 1) + 1;
      ranges_.push_back({at, end});
      at = end;
    }
    count_lines();
    std::vector<std::string> fields = first_fields();
    has_header_ = is_header(fields, decimal);
    names_ = has_header_ ? std::move(fields) : numbered(fields.size());
  }

  const std::vector<std::string>& names() const { return names_; }
  static std::vector<size_t> index() { return {}; }
  int64_t num_parts() const { return std::ssize(ranges_); }

  void read(int64_t part, const MatrixColumns& columns, RowTaker& taker) const {
    std::vector<std::string_view> words;
    each_line(part, [&](int64_t number, std::string_view line) {
      if (has_header_ && number == first_line_) return true;
      taker.begin("line", number);
      words.clear();
      size_t next = 0;
      const size_t width = each_word(line, [&](size_t field, std::string_view word) {
        if (next == columns.read.size() || columns.read[next] != field) return;
        ++next;
        words.push_back(word);
      });
      if (width != names_.size()) {
        taker.end_bad(fmt::format("{} fields, not {}", width, names_.size()));
      } else {
        for (const std::string_view word : words) taker.add_text(word);
        taker.end();
      }
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
  std::shared_ptr<const MappedInput> input_;
  std::string_view text_;
  std::vector<Range> ranges_;
  std::vector<std::string> names_;
  int64_t first_line_ = 0;
  bool has_header_ = false;
};

/// Python and R quote the names of columns where they quote between tabs. Other programs write no quotes there.
bool begins_with_quotes(std::string_view text) {
  const std::string_view line = text.substr(0, text.find_first_of("\r\n"));
  return line.starts_with('"') && line.find("\"\t\"") != std::string_view::npos;
}

/// Text with a delimiter, whose header, if any, is found out.
class Delimited {
 public:
  Delimited(const std::filesystem::path& path, const std::shared_ptr<const MappedInput>& input, char delimiter,
            char decimal)
      : path_(path) {
    DelimitedFormat format{.delimiter = delimiter, .quotes = delimiter != '\t' || begins_with_quotes(input->bytes())};
    file_ = std::make_unique<DelimitedFile>(path, format, input);
    has_header_ = is_header(file_->columns(), decimal);
    if (!has_header_) {
      format.columns = numbered(file_->columns().size());
      file_ = std::make_unique<DelimitedFile>(path, format, input);
    }
    ranges_ = file_->ranges(kPartBytes);
  }

  const std::vector<std::string>& names() const { return file_->columns(); }
  /// The first columns, if a header names others but not these: pandas and R write row names so.
  std::vector<size_t> index() const {
    std::vector<size_t> unnamed;
    while (has_header_ && unnamed.size() < names().size() && names()[unnamed.size()].empty())
      unnamed.push_back(unnamed.size());
    return unnamed;
  }
  int64_t num_parts() const { return std::ssize(ranges_); }

  void read(int64_t part, const MatrixColumns& columns, RowTaker& taker) const {
    taker.line_of = [this](int64_t row) { return file_->line_of(row); };
    file_->read(ranges_[static_cast<size_t>(part)], columns.read,
                [&](int64_t row, std::span<const Cell> cells, const BadRow* bad) {
                  taker.begin("line", row);
                  if (bad != nullptr) return taker.end_bad(bad->reason);
                  for (const Cell& cell : cells)
                    taker.add_text(cell.kind == Cell::Kind::kText ? *cell.text : std::string_view());
                  taker.end();
                });
  }

 private:
  const std::filesystem::path& path_;
  std::unique_ptr<DelimitedFile> file_;
  std::vector<RecordRange> ranges_;
  bool has_header_ = false;
};

template <class File>
MatrixParts read_parts(const File& file, const std::filesystem::path& path, const MatrixOptions& options) {
  const std::vector<size_t> index = file.index();
  const MatrixColumns columns(file.names(), options, path, index);
  MatrixParts result(columns);
  note_index(columns, index, "without a name, an index of pandas or R,", result.notes);
  result.parts.resize(static_cast<size_t>(file.num_parts()));
  parallel_pieces(file.num_parts(), 1, [&](int64_t i, int64_t) {
    RowTaker taker(path, columns, options, result.parts[static_cast<size_t>(i)]);
    file.read(i, columns, taker);
  });
  return result;
}

}  // namespace

MatrixParts read_text_parts(const std::filesystem::path& path, InputHead head, const MatrixOptions& options) {
  const auto input = std::make_shared<const MappedInput>(path, std::move(head));
  require_table(input->bytes(), path);
  const std::string& extension = input->head().extension;
  const char expected = extension == ".csv" ? ',' : extension == ".tsv" ? '\t' : kBlanks;
  char delimiter = expected;
  const bool named = !options.delimiter.empty();
  if (named)
    delimiter = options.delimiter == "tab" ? '\t' : options.delimiter == "blank" ? kBlanks : options.delimiter[0];
  else
    delimiter = find_delimiter(input->bytes(), expected, options.decimal);
  MatrixParts parts = delimiter == kBlanks
                          ? read_parts(BlankSeparated(path, input, options.decimal), path, options)
                          : read_parts(Delimited(path, input, delimiter, options.decimal), path, options);
  if (!named && delimiter != expected)
    parts.notes.push_back(fmt::format("{} between fields, found in the first lines; --delimiter names another",
                                      delimiter_name(delimiter)));
  return parts;
}

}  // namespace dovetail
