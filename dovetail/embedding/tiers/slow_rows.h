#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "dovetail/embedding/pack/table.h"

namespace dovetail::embedding {

/// Slow tier of a table (tiered.h), in a file or in RAM. Each row has one record: the stored row
/// and its optimizer state. A record that was never written takes no space, and reads as the row's
/// initial value with zero state. The file has no name in its folder, so it disappears when the
/// process ends, even after a crash.
///
/// Different threads may access different rows at the same time.
class SlowRows {
 public:
  struct Options {
    std::string table;  ///< name of the table, for error messages
    /// Number of rows of the table, of elements per row, and of optimizer state floats per row.
    int64_t rows = 0, dim = 0, state_width = 0;
    RowDtype dtype = RowDtype::kFloat32;
    std::filesystem::path folder;  ///< folder of the file; empty: the records are in RAM
    /// Returns the key of a row of a hashed table, which determines the row's initial value. Empty:
    /// the row number does.
    std::function<uint64_t(int64_t row)> key_of = {};
  };

  /// Throws UserError if no file can be created in the folder. For records in RAM, throws it if no
  /// address space can be reserved.
  SlowRows(const Options& options, const InitialRows& initial);
  ~SlowRows();
  SlowRows(const SlowRows&) = delete;
  SlowRows& operator=(const SlowRows&) = delete;

  /// Returns the bytes of RAM that SlowRows takes for a table of `rows` rows, without the records.
  static int64_t bytes_for(int64_t rows) { return (rows + 63) / 64 * 8; }

  /// Asks the system to load a record's pages from the disk, for a later `read` or `write`. Does
  /// not wait. A write needs the pages too, since it changes only a part of a page.
  void advise(int64_t row) const;
  /// Reads the record of a row into `stored` (bytes of a stored row) and `state` (state_width).
  /// Throws UserError if the system reports an error.
  void read(int64_t row, void* stored, float* state);
  /// Writes the record of a row from `stored` and `state`. Throws UserError if the system reports
  /// an error.
  void write(int64_t row, const void* stored, const float* state);
  /// Forgets the record of a row, as if it was never written.
  void forget(int64_t row);
  /// Reads rows [begin, begin + count). Their stored rows go to `stored` (count, row_bytes), their
  /// state to `state` (count, state_width). Uses as few system calls as possible.
  void read_range(int64_t begin, int64_t count, char* stored, float* state) const;
  /// Inverse of read_range, with as few system calls as possible.
  void write_range(int64_t begin, int64_t count, const char* stored, const float* state);

  /// Returns the number of calls of `read` for a record that had been written.
  int64_t rows_read() const { return rows_read_; }
  /// Returns the number of calls of `read` for a record that was never written.
  int64_t rows_initialized() const { return initialized_; }
  /// Returns the number of records that `write` and `write_range` have written.
  int64_t rows_written() const { return rows_written_; }
  /// Returns the bytes of one record.
  int64_t record_bytes() const { return record_bytes_; }

 private:
  bool written(int64_t row) const;
  void initialize(int64_t row, void* stored, float* state) const;
  [[noreturn]] void fail(const char* what, int64_t row, int error) const;
  void read_bytes(int64_t row, char* to, int64_t bytes) const;
  void write_bytes(int64_t row, const char* from, int64_t bytes) const;
  void mark_written(int64_t row);

  Options options_;
  InitialRows initial_;
  int64_t row_bytes_, record_bytes_;
  int fd_ = -1;
  char* memory_ = nullptr;
  std::vector<uint64_t> written_;  // bitmap of the rows whose record was written
  std::atomic<int64_t> rows_read_ = 0, initialized_ = 0, rows_written_ = 0;
};

}  // namespace dovetail::embedding
