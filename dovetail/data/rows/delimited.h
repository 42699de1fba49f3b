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

namespace dovetail {

struct DelimitedFormat {
  char delimiter = '\t';
  bool quotes = false;  ///< RFC 4180: a field may stand in quotes, a quote in it doubled
  std::vector<std::string> columns;  ///< empty: the first record names them
};

/// Whole records of a file that follow one another.
struct RecordRange {
  uint64_t begin = 0, end = 0;  ///< bytes
  int64_t first_row = 0;        ///< from 0, the header not counted
  int64_t rows = 0;
};

/// A text with a record a line and fields between delimiters, as MappedInput has it. Lines end in
/// \n or \r\n; lines with nothing but blanks are passed over and are no rows. A field is quoted if
/// it begins with a quote; a quoted field may hold line ends. Two columns may have one name. Where
/// rows have one field more than the header, the first column has no name. Lines that begin with #
/// before the header, without a delimiter in them, are passed over.
class DelimitedFile {
 public:
  /// Throws UserError if the file cannot be read or is no text.
  DelimitedFile(std::filesystem::path path, DelimitedFormat format);
  DelimitedFile(std::filesystem::path path, DelimitedFormat format,
                std::shared_ptr<const MappedInput> input);

  const std::vector<std::string>& columns() const { return format_.columns; }

  /// The records in ranges of about `bytes`. Throws UserError for a quote that is never closed:
  /// where the records after it begin cannot be known.
  std::vector<RecordRange> ranges(uint64_t bytes) const;
  /// Line of the file, from 1, where row `row` (from 1) begins. Reads all rows before it: for
  /// messages.
  int64_t line_of(int64_t row) const;
  /// The range cut in two, the first with `rows` records.
  std::pair<RecordRange, RecordRange> cut(const RecordRange& range, int64_t rows) const;

  /// `visit(row, cells, bad)` for each record: the cells of the `selected` columns (indices into
  /// `columns`), or why it has none. Rows count from 1. Safe from several threads.
  using Visit = std::function<void(int64_t row, std::span<const Cell> cells, const BadRow* bad)>;
  void read(const RecordRange& range, const std::vector<size_t>& selected,
            const Visit& visit) const;

 private:
  class Splitter;
  const char* record_end(const char* p) const;
  const char* quoted_record_end(const char* p) const;
  bool is_quoted(const char* p, const char* end) const;
  /// End of the field at `p` of a record whose text ends at `end`: behind its closing quote, or a
  /// delimiter or `end`.
  const char* field_end(const char* p, const char* end) const;
  /// Passes over a line sep=; of Excel, and over lines that begin with # before the first line with
  /// a delimiter.
  const char* behind_preface(const char* p) const;
  /// True if the first row has one field more than the header, as R writes row names.
  bool has_row_names() const;
  /// The first line from `p` on with more than blanks.
  const char* behind_blank(const char* p) const;

  std::filesystem::path path_;
  DelimitedFormat format_;
  std::shared_ptr<const MappedInput> input_;
  const char *data_ = nullptr, *begin_ = nullptr,
             *end_ = nullptr;  ///< `begin_`: after mark and header
};

}  // namespace dovetail
