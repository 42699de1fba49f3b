#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace dovetail::embedding {

/// Whether tables remember which rows changed since the last checkpoint, for a delta.
enum class Changes { kUntracked, kTracked };

/// Which rows of a table.
///   kUpdated  Rows that an update or a checkpoint has set; the others have their initial values.
///   kChanged  Rows that updates changed since forget_changes.
enum class RowSet { kAll, kUpdated, kChanged };

/// A set of a table's rows: a bit for each.
class ChangedRows {
 public:
  explicit ChangedRows(int64_t rows) : bits_(static_cast<size_t>((rows + 63) / 64)) {}

  static int64_t bytes_for(int64_t rows) { return (rows + 63) / 64 * 8; }

  void mark(int64_t row) { bits_[static_cast<size_t>(row / 64)] |= uint64_t{1} << (row % 64); }
  void clear() { bits_.assign(bits_.size(), 0); }
  int64_t count() const;
  /// (n) int64, ascending: those of rows [begin, end).
  at::Tensor within(int64_t begin, int64_t end) const;

 private:
  std::vector<uint64_t> bits_;
};

}  // namespace dovetail::embedding
