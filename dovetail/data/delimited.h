#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/base/file.h"
#include "dovetail/data/row_decoder.h"

namespace dovetail {

struct DelimitedFormat {
  char delimiter = '\t';
  bool quotes = false;               ///< RFC 4180: a field may stand in quotes, a quote in it doubled
  std::vector<std::string> columns;  ///< empty: the first record names them
};

/// Whole records of a file that follow one another.
struct RecordRange {
  uint64_t begin = 0, end = 0;  ///< bytes
  int64_t first_row = 0;        ///< from 0, the header not counted
  int64_t rows = 0;
};

/// A text with a record a line and fields between delimiters, mapped into memory. Lines end in \n or \r\n; a byte order
/// mark is passed over. A field is quoted if it begins with a quote; a quoted field may hold line ends.
class DelimitedFile {
 public:
  /// Throws UserError if the file cannot be read or its header repeats a name.
  DelimitedFile(std::filesystem::path path, DelimitedFormat format);

  const std::vector<std::string>& columns() const { return format_.columns; }

  /// The records in ranges of about `bytes`. Throws UserError for a quote that is never closed: where the records after
  /// it begin cannot be known.
  std::vector<RecordRange> ranges(uint64_t bytes) const;
  /// The range cut in two, the first with `rows` records.
  std::pair<RecordRange, RecordRange> cut(const RecordRange& range, int64_t rows) const;

  /// `visit(row, cells, bad)` for each record: the cells of the `selected` columns (indices into `columns`), or why it
  /// has none. Rows count from 1. Safe from several threads.
  using Visit = std::function<void(int64_t row, std::span<const Cell> cells, const BadRow* bad)>;
  void read(const RecordRange& range, const std::vector<size_t>& selected, const Visit& visit) const;

 private:
  class Splitter;
  const char* record_end(const char* p) const;
  const char* quoted_record_end(const char* p) const;

  std::filesystem::path path_;
  DelimitedFormat format_;
  MappedFile file_;
  const char *data_ = nullptr, *begin_ = nullptr, *end_ = nullptr;  ///< `begin_`: after mark and header
};

}  // namespace dovetail
