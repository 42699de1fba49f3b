#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/threads.h"
#include "dovetail/data/matrix/matrix_part.h"
#include "dovetail/data/rows/cell_values.h"
#include "dovetail/data/rows/delimited.h"
#include "dovetail/data/rows/delimiter.h"

namespace dovetail::data {
namespace {

constexpr uint64_t kPartBytes = uint64_t{4} << 20;

std::vector<std::string> numbered(size_t count) {
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) names.push_back(numbered_column(i));
  return names;
}

/// Returns true for the names that pandas gives to unnamed columns: 0, 1, 2 and so on. If pandas
/// wrote an index, an empty name precedes them.
bool are_numbered(const std::vector<std::string>& fields) {
  const size_t index = !fields.empty() && fields[0].empty() ? 1 : 0;
  if (fields.size() < 2) return false;
  for (size_t i = index; i < fields.size(); ++i)
    if (fields[i] != std::to_string(i - index)) return false;
  return true;
}

/// Returns true if the fields are column names. At least one field is then neither a number, True
/// or False, nor a word for a missing number. Names that are numbered as in pandas also count.
bool is_header(const std::vector<std::string>& fields, const MatrixOptions& options) {
  if (!options.header.empty()) return options.header == "yes";
  const char decimal = options.decimal;
  return are_numbered(fields) ||
         std::any_of(fields.begin(), fields.end(), [&](const std::string& field) {
           double value = 0;
           return !is_missing_word(field) && !is_number(field, decimal, value) &&
                  !is_number(field, ',', value) && !is_truth(field, value);
         });
}

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v'; }

/// Returns the end of the word that begins at `begin`. A word in quotes, as R writes it, ends at
/// the quote before a blank.
size_t word_end(std::string_view line, size_t begin) {
  if (line[begin] == '"')
    for (size_t i = begin + 1; (i = line.find('"', i)) != std::string_view::npos; ++i)
      if (i + 1 == line.size() || is_blank(line[i + 1])) return i + 1;
  size_t end = begin;
  while (end < line.size() && !is_blank(line[end])) ++end;
  return end;
}

/// Calls visit(number, word) for each word of a line, without quotes around it. Returns the number
/// of words.
template <class Visit>
size_t each_word(std::string_view line, const Visit& visit) {
  size_t count = 0;
  for (size_t i = 0; i < line.size();) {
    while (i < line.size() && is_blank(line[i])) ++i;
    if (i == line.size()) break;
    const size_t begin = i;
    i = word_end(line, begin);
    std::string_view word = line.substr(begin, i - begin);
    if (word.size() > 1 && word.front() == '"' && word.back() == '"')
      word = word.substr(1, word.size() - 2);
    visit(count++, word);
  }
  return count;
}

/// Text with blanks between its fields, in ranges of whole lines.
class BlankSeparated {
 public:
  BlankSeparated(const std::filesystem::path& path, std::shared_ptr<const MappedInput> input,
                 const MatrixOptions& options)
      : path_(path), input_(std::move(input)), text_(input_->bytes()) {
    for (size_t at = 0; at < text_.size();) {
      size_t end = std::min<size_t>(at + kPartBytes, text_.size());
      if (end < text_.size()) end = std::min(text_.find('\n', end), text_.size() - 1) + 1;
      ranges_.push_back({at, end});
      at = end;
    }
    count_lines();
    const auto [fields, second] = first_lines();
    has_header_ = is_header(fields, options);
    names_ = has_header_ ? fields : numbered(fields.size());
    // R writes no name for its column of row names.
    if (has_header_ && second == fields.size() + 1) names_.insert(names_.begin(), "");
  }

  const std::vector<std::string>& names() const { return names_; }
  bool has_header() const { return has_header_; }
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

  /// Calls `visit` for each line that is not blank or a comment, until it returns false.
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

  /// Returns the words of the first line with any, and the number of words of the next line.
  std::pair<std::vector<std::string>, size_t> first_lines() {
    std::vector<std::string> fields;
    size_t second = 0;
    for (int64_t part = 0; part < num_parts() && second == 0; ++part) {
      each_line(part, [&](int64_t number, std::string_view line) {
        if (fields.empty()) {
          first_line_ = number;
          each_word(line, [&](size_t, std::string_view word) { fields.emplace_back(word); });
          return true;
        }
        second = each_word(line, [](size_t, std::string_view) {});
        return false;
      });
    }
    if (fields.empty()) throw UserError("there are no rows", {}, path_.string());
    return {fields, second};
  }

  const std::filesystem::path& path_;
  std::shared_ptr<const MappedInput> input_;
  std::string_view text_;
  std::vector<Range> ranges_;
  std::vector<std::string> names_;
  int64_t first_line_ = 0;
  bool has_header_ = false;
};

/// Text with a delimiter. Detects if there is a header.
class Delimited {
 public:
  Delimited(const std::filesystem::path& path, const std::shared_ptr<const MappedInput>& input,
            char delimiter, const MatrixOptions& options)
      : path_(path) {
    DelimitedFormat format{.delimiter = delimiter,
                           .quotes = delimiter != '\t' || has_quotes_between_tabs(input->bytes())};
    file_ = std::make_unique<DelimitedFile>(path, format, input);
    has_header_ = is_header(file_->columns(), options);
    if (!has_header_) {
      format.columns = numbered(file_->columns().size());
      file_ = std::make_unique<DelimitedFile>(path, format, input);
    }
    ranges_ = file_->ranges(kPartBytes);
  }

  const std::vector<std::string>& names() const { return file_->columns(); }
  bool has_header() const { return has_header_; }
  int64_t num_parts() const { return std::ssize(ranges_); }

  void read(int64_t part, const MatrixColumns& columns, RowTaker& taker) const {
    taker.line_of = [this](int64_t row) { return file_->line_of(row); };
    file_->read(
        ranges_[static_cast<size_t>(part)], columns.read,
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

/// Returns the leading columns without a name, if a header names others. pandas and R write row
/// names in this form.
template <class File>
std::vector<size_t> index_of(const File& file) {
  std::vector<size_t> unnamed;
  while (file.has_header() && unnamed.size() < file.names().size() &&
         file.names()[unnamed.size()].empty())
    unnamed.push_back(unnamed.size());
  return unnamed;
}

template <class File>
MatrixParts read_parts(const File& file, const std::filesystem::path& path,
                       const MatrixOptions& options) {
  const std::vector<size_t> index = index_of(file);
  const MatrixColumns columns(file.names(), options, path, index);
  MatrixParts result(columns);
  note_index(columns, index, "without a name, an index of pandas or R,", result.notes);
  if (options.header.empty() && !file.has_header())
    result.notes.emplace_back(
        "the first line is a row, since all of it are numbers; --header yes makes it names");
  if (options.header.empty() && file.has_header() && are_numbered(file.names()))
    result.notes.emplace_back(
        "the first line numbers the columns, as pandas does; --header no makes it a row");
  result.parts.resize(static_cast<size_t>(file.num_parts()));
  parallel_pieces(file.num_parts(), 1, [&](int64_t i, int64_t) {
    RowTaker taker(path, columns, options, result.parts[static_cast<size_t>(i)]);
    file.read(i, columns, taker);
  });
  return result;
}

}  // namespace

MatrixParts read_text_parts(const std::filesystem::path& path, InputHead head,
                            const MatrixOptions& options) {
  const auto input = std::make_shared<const MappedInput>(path, std::move(head));
  require_table(input->bytes(), path);
  const std::string& extension = input->head().extension;
  const char expected = extension == ".csv" ? ',' : extension == ".tsv" ? '\t' : kBlanks;
  char delimiter = expected;
  const bool named = !options.delimiter.empty();
  if (named)
    delimiter = options.delimiter == "tab"     ? '\t'
                : options.delimiter == "blank" ? kBlanks
                                               : options.delimiter[0];
  else
    delimiter = find_delimiter(input->bytes(), expected, options.decimal);
  MatrixParts parts = delimiter == kBlanks
                          ? read_parts(BlankSeparated(path, input, options), path, options)
                          : read_parts(Delimited(path, input, delimiter, options), path, options);
  if (!named && delimiter != expected)
    parts.notes.push_back(
        fmt::format("{} between fields, found in the first lines; --delimiter names another",
                    delimiter_name(delimiter)));
  return parts;
}

}  // namespace dovetail::data
