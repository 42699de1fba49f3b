#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/data/files/open_input.h"
#include "dovetail/data/rows/row_decoder.h"

namespace dovetail::data {

/// Format of a text file with delimiters, such as CSV or TSV.
struct DelimitedFormat {
  char delimiter = '\t';
  bool quotes = false;  ///< RFC 4180: a field may be enclosed in quotes; a quote in it is doubled
  /// Names of the columns. Empty: the first record of the file is a header with the names.
  std::vector<std::string> columns;
};

/// Range of consecutive whole records of a file. A record is a row of the table as text.
struct RecordRange {
  uint64_t begin = 0, end = 0;  ///< byte range in MappedInput::bytes
  int64_t first_row = 0;        ///< index of the first record, from 0; the header does not count
  int64_t rows = 0;             ///< number of records
};

/// Text file with a record (row) per line and a delimiter between the fields of a record. It may be
/// compressed or UTF-16, since it is read as a MappedInput.
///
/// - Lines end in \n or \r\n. Lines that hold only blanks are skipped and are not rows.
/// - With `quotes`, a field that begins with a quote is quoted. It may contain line ends.
/// - Two columns may have the same name.
/// - If the first row has one field more than the header, the name of the first column is empty.
/// - Lines before the header that begin with # and contain no delimiter are skipped.
class DelimitedFile {
 public:
  /// Throws UserError if the file cannot be read or is not text.
  DelimitedFile(std::filesystem::path path, DelimitedFormat format);
  /// Same, for a file that is already open as `input`. `path` stands for the file in errors.
  DelimitedFile(std::filesystem::path path, DelimitedFormat format,
                std::shared_ptr<const MappedInput> input);

  /// Returns the names of the columns, from the header or from DelimitedFormat::columns.
  const std::vector<std::string>& columns() const { return format_.columns; }

  /// Splits all records of the file into ranges of about `bytes` bytes. Throws UserError if a quote
  /// is never closed: it is then unknown where the later records begin.
  std::vector<RecordRange> ranges(uint64_t bytes) const;
  /// Returns the line number, from 1, at which row `row` (from 1) begins. Scans all rows before it,
  /// so use it only for messages.
  int64_t line_of(int64_t row) const;
  /// Splits `range` in two. The first of the two has `rows` records, and the second has the rest.
  std::pair<RecordRange, RecordRange> cut(const RecordRange& range, int64_t rows) const;

  /// Calls `visit(row, cells, bad)` for each record of `range`. `row` counts from 1 in the file.
  /// `cells` has one cell per column of `selected`, in that order; `selected` has indices into
  /// `columns()`. For a good record, `bad` is null. A record is bad if its number of fields or its
  /// quotes are wrong. For a bad record, `cells` is empty and `bad` has the reason. Thread-safe.
  using Visit = std::function<void(int64_t row, std::span<const Cell> cells, const BadRow* bad)>;
  void read(const RecordRange& range, const std::vector<size_t>& selected,
            const Visit& visit) const;

 private:
  class Splitter;
  /// Returns the end of the record at `p`, after its line end. Null if a quote is never closed.
  const char* record_end(const char* p) const;
  const char* quoted_record_end(const char* p) const;
  /// Returns true if the field at `p` is quoted. `end` is the end of the record's text.
  bool is_quoted(const char* p, const char* end) const;
  /// Returns the end of the field at `p`, in a record whose text ends at `end`. A quoted field ends
  /// after its closing quote; any other field ends at a delimiter or at `end`.
  const char* field_end(const char* p, const char* end) const;
  /// Returns the beginning of the header. Skips a line such as "sep=;", by which Excel names the
  /// delimiter. Then skips lines that begin with # and have no delimiter.
  const char* behind_preface(const char* p) const;
  /// Returns true if the first row has one field more than the header. R writes tables with row
  /// names in this form.
  bool has_row_names() const;
  /// Returns the beginning of the first line from `p` on that holds more than blanks.
  const char* behind_blank(const char* p) const;

  std::filesystem::path path_;
  DelimitedFormat format_;
  std::shared_ptr<const MappedInput> input_;
  /// `data_` and `end_` bound the text; `begin_` is the first record after the header.
  const char *data_ = nullptr, *begin_ = nullptr, *end_ = nullptr;
};

}  // namespace dovetail::data
