#include "dovetail/data/rows/delimited.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/data/rows/delimiter.h"

namespace dovetail::data {
namespace {

const char* find(const char* begin, const char* end, char wanted) {
  const void* found =
      begin == end ? nullptr : std::memchr(begin, wanted, static_cast<size_t>(end - begin));
  return found == nullptr ? end : static_cast<const char*>(found);
}

/// Returns the position after the quote that closes the field whose opening quote is at `p`.
/// Returns null if no quote closes it. `doubled` counts doubled quotes, which stand for one.
const char* behind_quotes(const char* p, const char* end, int64_t& doubled) {
  for (++p;; p += 2) {
    p = find(p, end, '"');
    if (p == end) return nullptr;
    if (p + 1 == end || p[1] != '"') return p + 1;
    ++doubled;
  }
}

/// Returns the end of a record's text, before its line end.
const char* text_end(const char* begin, const char* end) {
  if (end > begin && end[-1] == '\n') --end;
  if (end > begin && end[-1] == '\r') --end;
  return end;
}

/// Appends the text between quotes, with each doubled quote as one.
void append_unquoted(std::string_view text, std::string& to) {
  for (size_t i = 0; i < text.size(); ++i) {
    to.push_back(text[i]);
    if (text[i] == '"') ++i;
  }
}

}  // namespace

/// Splits records into cells. Holds the text of quoted fields, so each thread has its own.
class DelimitedFile::Splitter {
 public:
  Splitter(const DelimitedFormat& format, const std::vector<size_t>& selected)
      : format_(format),
        cell_of_(format.columns.size(), -1),
        cells_(selected.size()),
        texts_(selected.size()),
        unquoted_(selected.size()) {
    for (size_t i = 0; i < selected.size(); ++i) {
      cell_of_[selected[i]] = static_cast<int>(i);
      cells_[i].text = &texts_[i];
    }
  }

  std::span<const Cell> cells() const { return cells_; }

  /// Splits the record [p, end). Returns true if it has as many fields as there are columns and
  /// each is well formed.
  bool split(const char* p, const char* end, BadRow& bad) {
    const size_t width = cell_of_.size();
    size_t field = 0;
    for (;; ++field) {
      std::string_view text;
      const char* next = nullptr;
      if (format_.quotes && p != end && *p == '"') {
        next = quoted(p, end, field, text);
        if (next != end && *next != format_.delimiter)
          return refuse(bad, field, "text after the closing quote");
      } else {
        next = find(p, end, format_.delimiter);
        text = std::string_view(p, static_cast<size_t>(next - p));
        if (format_.quotes && text.find('"') != std::string_view::npos)
          return refuse(bad, field, "a quote inside a field that is not in quotes");
      }
      if (field < width && cell_of_[field] >= 0) set(static_cast<size_t>(cell_of_[field]), text);
      if (next == end) break;
      p = next + 1;
    }
    if (field + 1 == width) return true;
    bad.reason = fmt::format("{} fields, not {}", field + 1, width);
    return false;
  }

 private:
  void set(size_t cell, std::string_view text) {
    cells_[cell].kind = text.empty() ? Cell::Kind::kMissing : Cell::Kind::kText;
    texts_[cell] = text;
  }

  /// Sets `text` to the text between quotes, and returns the position after them. Records end
  /// outside of quotes, so the closing quote exists.
  const char* quoted(const char* p, const char* end, size_t field, std::string_view& text) {
    int64_t doubled = 0;
    const char* behind = behind_quotes(p, end, doubled);
    DOVETAIL_CHECK(behind != nullptr, "a record ends inside quotes");
    text = std::string_view(p + 1, static_cast<size_t>(behind - p - 2));
    const int cell = field < cell_of_.size() ? cell_of_[field] : -1;
    if (doubled == 0 || cell < 0) return behind;
    std::string& copy = unquoted_[static_cast<size_t>(cell)];
    copy.clear();
    append_unquoted(text, copy);
    text = copy;
    return behind;
  }

  bool refuse(BadRow& bad, size_t field, const char* reason) const {
    if (field < format_.columns.size()) bad.column = format_.columns[field];
    bad.reason = reason;
    return false;
  }

  const DelimitedFormat& format_;
  std::vector<int> cell_of_;  ///< cell of each field; -1: not selected
  std::vector<Cell> cells_;
  std::vector<std::string_view> texts_;  ///< texts of the cells
  std::vector<std::string> unquoted_;
};

DelimitedFile::DelimitedFile(std::filesystem::path path, DelimitedFormat format)
    : DelimitedFile(path, std::move(format), std::make_shared<MappedInput>(path)) {}

DelimitedFile::DelimitedFile(std::filesystem::path path, DelimitedFormat format,
                             std::shared_ptr<const MappedInput> input)
    : path_(std::move(path)), format_(std::move(format)), input_(std::move(input)) {
  require_text(input_->head(), path_, "text with a delimiter");
  data_ = input_->bytes().data();
  end_ = data_ + input_->bytes().size();
  begin_ = behind_preface(behind_blank(data_));
  if (!format_.columns.empty()) return;
  if (begin_ == end_)
    throw UserError("there are no rows, and no header that names columns", {}, path_.string());
  const char* end = record_end(begin_);
  if (end == nullptr) throw UserError("a quote of the header is never closed", {}, path_.string());
  // Reads the names like a record, but with as many fields as there are.
  const char* last = text_end(begin_, end);
  const char* p = begin_;
  while (true) {
    const bool quoted = is_quoted(p, last);
    const char* next = field_end(p, last);
    if (quoted && next != last && *next != format_.delimiter)
      throw UserError(fmt::format("name {} of the header has text after its closing quote",
                                  format_.columns.size() + 1),
                      "write a quote inside a name as two", path_.string());
    std::string& name = format_.columns.emplace_back();
    if (quoted)
      append_unquoted({p + 1, next - 1}, name);
    else
      name.assign(p, next);
    if (next == last) break;
    p = next + 1;
  }
  begin_ = behind_blank(end);
  if (has_row_names()) format_.columns.insert(format_.columns.begin(), "");
}

bool DelimitedFile::is_quoted(const char* p, const char* end) const {
  return format_.quotes && p != end && *p == '"';
}

const char* DelimitedFile::field_end(const char* p, const char* end) const {
  int64_t doubled = 0;
  return is_quoted(p, end) ? behind_quotes(p, end, doubled) : find(p, end, format_.delimiter);
}

const char* DelimitedFile::behind_preface(const char* p) const {
  const auto line_at = [&](const char* begin) {
    return std::string_view(begin, static_cast<size_t>(find(begin, end_, '\n') - begin));
  };
  const auto next_line = [&](const char* begin) {
    const char* end = find(begin, end_, '\n');
    return behind_blank(end == end_ ? end : end + 1);
  };
  const auto is_cut = [&](const char* begin) {
    return line_at(begin).find(format_.delimiter) != std::string_view::npos;
  };
  if (named_delimiter(line_at(p)) != 0) p = next_line(p);
  const char* at = p;
  while (at != end_ && *at == '#' && !is_cut(at)) at = next_line(at);
  // A single column may have a name that begins with #.
  return at != end_ && is_cut(at) ? at : p;
}

bool DelimitedFile::has_row_names() const {
  const char* end = begin_ == end_ ? nullptr : record_end(begin_);
  if (end == nullptr) return false;
  end = text_end(begin_, end);
  // A delimiter at the end of each line does not make a column of row names.
  if (end == begin_ || end[-1] == format_.delimiter) return false;
  size_t fields = 1;
  for (const char* p = begin_; (p = field_end(p, end)) != end; ++p, ++fields)
    if (*p != format_.delimiter) return false;
  return fields == format_.columns.size() + 1;
}

const char* DelimitedFile::behind_blank(const char* p) const {
  while (p != end_) {
    const char* at = p;
    while (at != end_ && (*at == ' ' || *at == '\r' || (*at == '\t' && format_.delimiter != '\t')))
      ++at;
    if (at == end_) return at;
    if (*at != '\n') return p;
    p = at + 1;
  }
  return p;
}

int64_t DelimitedFile::line_of(int64_t row) const {
  const char* p = begin_;
  for (int64_t i = 1; i < row; ++i) p = behind_blank(record_end(p));
  return 1 + std::count(data_, p, '\n');
}

const char* DelimitedFile::record_end(const char* p) const {
  const char* end = find(p, end_, '\n');
  if (end != end_) ++end;
  if (!format_.quotes || find(p, end, '"') == end) return end;
  return quoted_record_end(p);
}

const char* DelimitedFile::quoted_record_end(const char* p) const {
  while (true) {
    if (p != end_ && *p == '"') {
      int64_t doubled = 0;
      p = behind_quotes(p, end_, doubled);
      if (p == nullptr) return nullptr;
    }
    while (p != end_ && *p != format_.delimiter && *p != '\n') ++p;
    if (p == end_) return p;
    if (*p++ == '\n') return p;
  }
}

std::vector<RecordRange> DelimitedFile::ranges(uint64_t bytes) const {
  std::vector<RecordRange> found;
  int64_t row = 0;
  for (const char* p = begin_; p != end_;) {
    RecordRange range{static_cast<uint64_t>(p - data_), 0, row, 0};
    const char* const enough = p + std::min<uint64_t>(bytes, static_cast<uint64_t>(end_ - p));
    do {
      const char* end = record_end(p);
      if (end == nullptr)
        throw UserError("a quote is never closed, so that the rows after it cannot be told apart",
                        "close it, or write a quote inside a field as two",
                        fmt::format("{}: row {}", path_.string(), row + 1));
      p = behind_blank(end);
      ++row;
    } while (p < enough);
    range.end = static_cast<uint64_t>(p - data_);
    range.rows = row - range.first_row;
    found.push_back(range);
  }
  return found;
}

std::pair<RecordRange, RecordRange> DelimitedFile::cut(const RecordRange& range,
                                                       int64_t rows) const {
  const char* p = data_ + range.begin;
  for (int64_t i = 0; i < rows; ++i) p = behind_blank(record_end(p));
  const auto at = static_cast<uint64_t>(p - data_);
  return {RecordRange{range.begin, at, range.first_row, rows},
          RecordRange{at, range.end, range.first_row + rows, range.rows - rows}};
}

void DelimitedFile::read(const RecordRange& range, const std::vector<size_t>& selected,
                         const Visit& visit) const {
  Splitter splitter(format_, selected);
  int64_t row = range.first_row;
  for (const char* p = data_ + range.begin; p != data_ + range.end;) {
    const char* const next = record_end(p);
    const char* const end = text_end(p, next);
    BadRow bad{++row, {}, {}};
    const bool good = splitter.split(p, end, bad);
    visit(row, good ? splitter.cells() : std::span<const Cell>(), good ? nullptr : &bad);
    p = behind_blank(next);
  }
}

}  // namespace dovetail::data
