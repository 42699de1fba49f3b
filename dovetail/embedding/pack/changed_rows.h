#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace dovetail::embedding {

/// Mode of change tracking. With kTracked, tables record which rows changed since the last
/// checkpoint. Delta checkpoints, which hold only these rows, need it.
enum class Changes { kUntracked, kTracked };

/// Subset of a table's rows.
///   kAll      All rows.
///   kUpdated  Rows that an update or a loaded checkpoint has set. All other rows still have their
///             initial values.
///   kChanged  Rows that updates changed since the last call of the table's forget_changes.
enum class RowSet { kAll, kUpdated, kChanged };

/// Set of a table's rows, one bit for each row.
class ChangedRows {
 public:
  explicit ChangedRows(int64_t rows) : bits_(static_cast<size_t>((rows + 63) / 64)) {}

  /// Returns the bytes that a set for a table with `rows` rows takes.
  static int64_t bytes_for(int64_t rows) { return (rows + 63) / 64 * 8; }

  void mark(int64_t row) { bits_[static_cast<size_t>(row / 64)] |= uint64_t{1} << (row % 64); }
  void clear() { bits_.assign(bits_.size(), 0); }
  int64_t count() const;
  /// Returns the marked rows in [begin, end): (n) int64, ascending.
  at::Tensor within(int64_t begin, int64_t end) const;

 private:
  std::vector<uint64_t> bits_;
};

}  // namespace dovetail::embedding
