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

struct DelimitedFormat {
  char delimiter = '\t';
  bool quotes = false;  ///< RFC 4180: a field may be enclosed in quotes; a quote in it is doubled
  std::vector<std::string> columns;  ///< empty: the first record names the columns
};

/// Consecutive whole records of a file.
struct RecordRange {
  uint64_t begin = 0, end = 0;  ///< offsets in bytes
  int64_t first_row = 0;        ///< index of the first record, from 0, without the header
  int64_t rows = 0;
};

/// Text with one record per line and a delimiter between fields, read by way of MappedInput.
///
/// - Lines end in \n or \r\n. Lines that hold only blanks are skipped and are not rows.
/// - A field is quoted if it begins with a quote. A quoted field may contain line ends.
/// - Two columns may have the same name.
/// - If rows have one field more than the header, the first column has no name.
/// - Lines before the header that begin with # and contain no delimiter are skipped.
class DelimitedFile {
 public:
  /// Throws UserError if the file cannot be read or is not text.
  DelimitedFile(std::filesystem::path path, DelimitedFormat format);
  DelimitedFile(std::filesystem::path path, DelimitedFormat format,
                std::shared_ptr<const MappedInput> input);

  const std::vector<std::string>& columns() const { return format_.columns; }

  /// Splits the records into ranges of about `bytes` bytes. Throws UserError for a quote that is
  /// never closed, since the beginnings of later records cannot be known.
  std::vector<RecordRange> ranges(uint64_t bytes) const;
  /// Returns the line of the file, from 1, where row `row` (from 1) begins. Reads all rows before
  /// it; meant for messages.
  int64_t line_of(int64_t row) const;
  /// Splits the range in two. The first part has `rows` records.
  std::pair<RecordRange, RecordRange> cut(const RecordRange& range, int64_t rows) const;

  /// Calls `visit(row, cells, bad)` for each record. `cells` holds the `selected` columns (indices
  /// into `columns()`); `bad` is null. For a bad record, `cells` is empty and `bad` gives the
  /// reason. Rows count from 1. Thread-safe.
  using Visit = std::function<void(int64_t row, std::span<const Cell> cells, const BadRow* bad)>;
  void read(const RecordRange& range, const std::vector<size_t>& selected,
            const Visit& visit) const;

 private:
  class Splitter;
  const char* record_end(const char* p) const;
  const char* quoted_record_end(const char* p) const;
  bool is_quoted(const char* p, const char* end) const;
  /// Returns the end of the field at `p`, in a record whose text ends at `end`. A quoted field ends
  /// after its closing quote; any other field ends at a delimiter or at `end`.
  const char* field_end(const char* p, const char* end) const;
  /// Skips a line sep=; of Excel. Skips lines that begin with # before the first line with a
  /// delimiter.
  const char* behind_preface(const char* p) const;
  /// Returns true if the first row has one field more than the header, as R writes row names.
  bool has_row_names() const;
  /// Returns the first line from `p` on that holds more than blanks.
  const char* behind_blank(const char* p) const;

  std::filesystem::path path_;
  DelimitedFormat format_;
  std::shared_ptr<const MappedInput> input_;
  /// `begin_` is the first record after the byte order mark and the header.
  const char *data_ = nullptr, *begin_ = nullptr, *end_ = nullptr;
};

}  // namespace dovetail::data
