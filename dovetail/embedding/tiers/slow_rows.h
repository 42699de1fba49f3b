#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "dovetail/embedding/pack/table.h"

namespace dovetail::embedding {

/// The slow tier of a table: records of a stored row and its optimizer's state, in a file or in
/// RAM. A record that was never written is the row's initial value with a state of zero, and takes
/// no room. The file has no name, so that nothing is left of it when the process ends, however it
/// ends.
///
/// Calls for different rows may come from different threads.
class SlowRows {
 public:
  struct Options {
    std::string table;  ///< its name, for messages
    int64_t rows = 0, dim = 0, state_width = 0;
    RowDtype dtype = RowDtype::kFloat32;
    std::filesystem::path folder;  ///< empty: RAM
  };

  /// Throws UserError when there can be no file in the folder.
  SlowRows(const Options& options, const InitialRows& initial);
  ~SlowRows();
  SlowRows(const SlowRows&) = delete;
  SlowRows& operator=(const SlowRows&) = delete;

  /// What it takes beside the records themselves.
  static int64_t bytes_for(int64_t rows) { return (rows + 63) / 64 * 8; }

  /// Begins to read what a record's read or write will need from the disk, without waiting for it:
  /// a write changes a part of a page.
  void advise(int64_t row) const;
  /// Throws UserError, as write does, when the system cannot.
  void read(int64_t row, void* stored, float* state);
  void write(int64_t row, const void* stored, const float* state);
  /// (count, row_bytes) and (count, state_width) of rows [begin, begin + count), in as few reads as
  /// there can be.
  void read_range(int64_t begin, int64_t count, char* stored, float* state) const;
  /// Writes the same, in as few writes as there can be.
  void write_range(int64_t begin, int64_t count, const char* stored, const float* state);

  int64_t rows_read() const { return rows_read_; }           ///< records
  int64_t rows_initialized() const { return initialized_; }  ///< reads of what was never written
  int64_t rows_written() const { return rows_written_; }
  int64_t record_bytes() const { return record_bytes_; }

 private:
  bool written(int64_t row) const;
  [[noreturn]] void fail(const char* what, int64_t row, int error) const;
  void read_bytes(int64_t row, char* to, int64_t bytes) const;
  void write_bytes(int64_t row, const char* from, int64_t bytes) const;
  void mark_written(int64_t row);

  Options options_;
  InitialRows initial_;
  int64_t row_bytes_, record_bytes_;
  int fd_ = -1;
  char* memory_ = nullptr;
  std::vector<uint64_t> written_;
  std::atomic<int64_t> rows_read_ = 0, initialized_ = 0, rows_written_ = 0;
};

}  // namespace dovetail::embedding
