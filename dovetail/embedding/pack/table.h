#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/embedding/pack/jagged.h"
#include "dovetail/embedding/pack/row_format.h"
#include "dovetail/embedding/pack/row_optimizer.h"

namespace dovetail::embedding {

/// Result of a lookup for a bag: the sum or the mean of its rows. With kNone, every id gets its own
/// row.
enum class Pooling { kSum, kMean, kNone };

/// Parses "sum", "mean" or "none". Throws UserError for another name.
Pooling parse_pooling(std::string_view name);

/// Part of a larger table. Row i is row first_row + i * row_step of the whole table. Column c is
/// its column first_column + c.
struct TableSlice {
  int64_t first_row = 0, row_step = 1, first_column = 0;
  int64_t whole_rows = 0;  ///< rows of the whole table; 0: as many as this table has
};

struct TableSpec {
  std::string name;
  int64_t rows = 0, dim = 0;
  Pooling pooling = Pooling::kSum;
  TableSlice slice = {};
  /// True for a table without a fixed vocabulary (hashed.h). Its ids are keys, and `rows` is the
  /// maximum number of rows.
  bool hashed = false;
  /// Hashed tables: maximum bytes of rows, state, key map, counts and candidates; 0: unlimited.
  int64_t max_bytes = 0;
  std::optional<OptimizerSpec> optimizer = {};  ///< replaces PackSpec::optimizer
};

/// Tables and the features that look into them. Describes a whole collection or one pack. A pack
/// has one lookup operation and one optimizer for all rows.
struct PackSpec {
  std::vector<TableSpec> tables;
  /// Table index of each feature. Several features may share a table.
  std::vector<int64_t> feature_table;
  OptimizerSpec optimizer;  ///< for tables without an optimizer of their own
  uint64_t seed = 0;
  /// First column of each feature's pooled rows in an output with `columns` columns. Other packs
  /// may share this output. Empty: features are side by side in an output of their own.
  std::vector<int64_t> feature_columns = {};
  int64_t columns = 0;
  RowDtype row_dtype = RowDtype::kFloat32;
};

/// Checks a spec. Throws UserError for
/// - duplicate names, sizes below 1, more than 2^31 rows in a table,
/// - features without a table, columns outside of the output,
/// - an optimizer's number out of its range,
/// - Pooling::kNone mixed with other poolings or with tables of different dims. An output has
///   either pooled rows, (samples, columns), or rows, (ids, dim).
void check_spec(const PackSpec& spec);

/// Returns the optimizer of a table.
const OptimizerSpec& optimizer_of(const PackSpec& spec, int64_t table);
/// Returns a table's learning rate if the general rate is `lr`. The ratio of the two rates in the
/// spec is kept.
double rate_of(const PackSpec& spec, int64_t table, double lr);
/// Returns the number of float32 state values for each row of a table.
int64_t state_per_row(const PackSpec& spec, int64_t table);

/// Allocates (elements) float32, uninitialised. CPU memory uses huge pages if the system provides
/// them. Rows are read in random order, and with 4 KiB pages each read would miss the TLB.
at::Tensor allocate(int64_t elements, at::Device device = at::kCPU);

/// Initial values of a table's rows, each with `dim` elements uniform in [-bound, bound). A value
/// is a function of (seed, name of the table, row, column) alone. For a slice, row and column are
/// positions in the whole table.
class InitialRows {
 public:
  InitialRows(uint64_t seed, std::string_view table, float bound, int64_t dim,
              const TableSlice& slice = {});
  /// Writes the `dim` elements of a row. For a hashed table, `row` is the key.
  void fill(uint64_t row, float* values) const;
  /// Writes a row in its stored format, rounded as in step 0 of `row_rounding`.
  void store(RowDtype dtype, uint64_t row, void* to) const;

 private:
  uint64_t key_, rounding_key_;
  float bound_;
  int64_t dim_;
  TableSlice slice_;
};

/// Returns 1 / sqrt(rows): bound of the initial values, as in DLRM's reference code (arXiv
/// 1906.00091).
float initial_bound(int64_t rows);

/// Returns the initial values of a table. The bound is the initial_bound of the whole table.
InitialRows initial_rows(uint64_t seed, const TableSpec& table);

/// Returns the random words that round a table's rows in a step. Words are a function of (seed,
/// name of the table, step, row, column). For a slice, row and column are positions in the whole
/// table.
RowRounding row_rounding(uint64_t seed, std::string_view table, const TableSlice& slice,
                         int64_t step);

/// Table of a feature, and the place of its pooled rows in the output.
struct FeatureLayout {
  int64_t table;
  int64_t column;  ///< first column in the pooled output
};

/// Rows and optimizer state of all tables in a pack. Rows are in one storage in the spec's
/// row_dtype, float32 state is in another. The rows of a table are consecutive. Each table begins
/// at a cache line.
///
/// Rows start with the values of initial_rows, state starts with zeros. With kUnset, both are
/// undefined: the caller moves rows in. On a GPU, rows have at most 1024 elements in FP32 or BF16.
/// They are always pooled there, and batches and gradients must be on the same GPU.
class PackedTables {
 public:
  enum class Initial { kDrawn, kUnset };

  /// Throws UserError like check_spec, for tables with different optimizers and for specs that the
  /// device does not support.
  explicit PackedTables(PackSpec spec, Initial initial = Initial::kDrawn,
                        at::Device device = at::kCPU);

  const PackSpec& spec() const { return spec_; }
  at::Device device() const { return weights_.device(); }
  const std::vector<FeatureLayout>& features() const { return features_; }
  /// Number of rows of each feature's table, in the form that check_jagged takes.
  const std::vector<int64_t>& feature_rows() const { return feature_rows_; }
  /// Returns the features that look into a table, ascending.
  const std::vector<int64_t>& features_of(int64_t table) const {
    return table_features_[static_cast<size_t>(table)];
  }
  /// Number of output columns. With pooling, the sum of the features' dims, or the spec's `columns`
  /// if set. Without pooling, the dim.
  int64_t columns() const { return columns_; }
  /// Returns true if the tables have Pooling::kNone.
  bool unpooled() const {
    return !spec_.tables.empty() && spec_.tables.front().pooling == Pooling::kNone;
  }

  /// Values of a table, (rows, dim) float32. A view if rows are stored as float32, otherwise a
  /// decoded copy.
  at::Tensor weight(int64_t table) const;
  /// View of a table's stored rows, (rows, stored_width) of stored_type.
  at::Tensor stored(int64_t table) const;
  /// Returns the address of a table's first row. Rows are row_bytes apart.
  char* row_data(int64_t table) const;
  /// Returns the random words with which `update` rounds the rows of its next step.
  RowRounding rounding(int64_t table) const;
  /// Sets the table row that each slot holds, if rows are moved in from elsewhere. Rounding depends
  /// on it. `row_of` must keep its address and stay valid.
  void set_rows_held(int64_t table, const uint32_t* row_of) {
    rows_held_[static_cast<size_t>(table)] = row_of;
  }
  /// Views of a table's state, by the names in optimizer.h. (rows) for kRowWiseAdagrad, otherwise
  /// (rows, dim).
  std::vector<std::pair<std::string, at::Tensor>> state(int64_t table) const;
  /// All state of a table, (rows, state_per_row). For kAdam, a row has m first, then v.
  at::Tensor packed_state(int64_t table) const;

  void set_lr(double lr);
  /// Number of updates so far: t of kAdam. Checkpoints save it with rows and state.
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }

 private:
  void initialize(int64_t table) const;

  PackSpec spec_;
  std::vector<FeatureLayout> features_;
  std::vector<int64_t> feature_rows_;
  std::vector<std::vector<int64_t>> table_features_;
  // First byte of each table's rows, and first element of each table's state.
  std::vector<int64_t> weight_begin_, state_begin_;
  std::vector<const uint32_t*> rows_held_;
  at::Tensor weights_, state_;
  int64_t columns_ = 0, steps_ = 0;
};

}  // namespace dovetail::embedding
