#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/embedding/pack/jagged.h"
#include "dovetail/embedding/pack/row_format.h"
#include "dovetail/embedding/pack/row_optimizer.h"

namespace dovetail::embedding {

/// Result of a lookup for a bag: the sum or the mean of its rows. A bag has the ids of one feature
/// in one sample. With kNone, the result has the row of every id by itself.
enum class Pooling { kSum, kMean, kNone };

/// Parses "sum", "mean" or "none". Throws UserError for another name.
Pooling parse_pooling(std::string_view name);

/// Place of a table in a larger table that has been cut into parts. Row i of the part is row
/// first_row + i * row_step of the whole table. Column c of the part is column first_column + c of
/// the whole.
struct TableSlice {
  int64_t first_row = 0, row_step = 1, first_column = 0;
  int64_t whole_rows = 0;  ///< rows of the whole table; 0: as many as this part has
};

/// Embedding table of `rows` rows with `dim` elements each.
struct TableSpec {
  std::string name;
  int64_t rows = 0, dim = 0;
  Pooling pooling = Pooling::kSum;
  TableSlice slice = {};  ///< place of this table in a larger one
  /// True for a table without a fixed vocabulary (hashed.h). Its ids are keys, and `rows` is the
  /// maximum number of rows.
  bool hashed = false;
  /// Hashed tables: maximum bytes of rows, state, key map, counts and candidates; 0: unlimited.
  int64_t max_bytes = 0;
  std::optional<OptimizerSpec> optimizer = {};  ///< used instead of PackSpec::optimizer
  int64_t step_rows = 0;  ///< used instead of TierOptions::step_rows (tiered.h); 0: not set
  /// Initial values lie in [-initial_range, initial_range). Negative: 1 / sqrt(rows).
  double initial_range = -1;
};

/// Tables and the features (inputs with ids) that look into them. The tables are either a
/// collection or a pack. A collection is all tables of a model. A pack is the part of a collection
/// that is looked up by one operation and updated by one optimizer.
struct PackSpec {
  std::vector<TableSpec> tables;
  /// Table index of each feature. Several features may share a table.
  std::vector<int64_t> feature_table;
  OptimizerSpec optimizer;  ///< for tables without an optimizer of their own
  uint64_t seed = 0;        ///< determines initial values and rounding
  /// First column of each feature's pooled rows in an output with `columns` columns. Other packs
  /// may write other columns of this output. Empty: the output has only this pack's features, side
  /// by side.
  std::vector<int64_t> feature_columns = {};
  int64_t columns = 0;
  RowDtype row_dtype = RowDtype::kFloat32;  ///< format of the stored rows
};

/// Checks a spec. Throws UserError for
/// - duplicate names, sizes below 1, more than 2^31 rows in a table,
/// - features without a table, columns outside of the output,
/// - an optimizer's number out of its range,
/// - Pooling::kNone mixed with other poolings or with tables of different dims. An output has
///   either pooled rows, (samples, columns), or rows, (ids, dim).
void check_spec(const PackSpec& spec);

/// Returns the optimizer of a table: its own, or else the spec's.
const OptimizerSpec& optimizer_of(const PackSpec& spec, int64_t table);
/// Returns a table's learning rate when the general rate (PackSpec::optimizer's) becomes `lr`. The
/// table's rate keeps the ratio that it has to the general rate in `spec`. Throws UserError if the
/// general rate in `spec` is 0 and the table's rate is not.
double rate_of(const PackSpec& spec, int64_t table, double lr);
/// Returns the number of float32 state values for each row of a table.
int64_t state_per_row(const PackSpec& spec, int64_t table);

/// Returns a new tensor (elements) float32, uninitialised. CPU memory uses huge pages if the system
/// provides them. Rows are read in random order, and with 4 KiB pages each read would miss the TLB.
at::Tensor allocate(int64_t elements, at::Device device = at::kCPU);

/// Initial values of a table's rows, each with `dim` elements uniform in [-bound, bound). A value
/// is a function of (seed, name of the table, row, column) alone. For a slice, row and column are
/// positions in the whole table.
class InitialRows {
 public:
  InitialRows(uint64_t seed, std::string_view table, float bound, int64_t dim,
              const TableSlice& slice = {});
  /// Writes the `dim` initial values of a row. For a hashed table, `row` is the key.
  void fill(uint64_t row, float* values) const;
  /// Writes the initial values of a row in its stored format, rounded with `row_rounding` of step
  /// 0.
  void store(RowDtype dtype, uint64_t row, void* to) const;

 private:
  uint64_t key_, rounding_key_;
  float bound_;
  int64_t dim_;
  TableSlice slice_;
};

/// Returns the bound of the initial values of a table: TableSpec::initial_range. If that is not
/// set, it is 1 / sqrt(rows of the whole table), as in DLRM's reference code (arXiv 1906.00091).
float initial_bound(const TableSpec& table);

/// Returns the initial values of a table. Their bound is initial_bound(table).
InitialRows initial_rows(uint64_t seed, const TableSpec& table);

/// Returns the source of the random words that round a table's rows in a step. Words are a function
/// of (seed, name of the table, step, row, column). For a slice, row and column are positions in
/// the whole table.
RowRounding row_rounding(uint64_t seed, std::string_view table, const TableSlice& slice,
                         int64_t step);

/// Returns the number by which the row of a hashed table's key is rounded, in place of a row
/// number. It is a hash, since a key has more than 32 bits.
uint32_t rounding_row(uint64_t key);

/// Table of a feature, and the place of its pooled rows in the output.
struct FeatureLayout {
  int64_t table;   ///< index of the table
  int64_t column;  ///< first column in the pooled output
};

struct GpuLayout;

/// Returns the parts of optimizer state by name. They are views of `state` (rows, state_per_row).
/// kMomentum has "u", the Adagrads "s", the Adams "m" and "v", kFtrl "z" and "n". A part is
/// (rows, dim), or (rows) if it is one number a row.
std::vector<std::pair<std::string, at::Tensor>> named_state(OptimizerKind kind,
                                                            const at::Tensor& state);

/// Rows and optimizer state of all tables in a pack. One memory block has the rows of all tables,
/// in the spec's row_dtype. Another has their float32 state. The rows of a table are consecutive.
/// Each table begins at a cache line.
///
/// With Initial::kDrawn, rows start with the values of initial_rows, and state starts with zeros.
/// With kUnset, both are undefined, and the caller writes rows before their first use. Tables on a
/// GPU must have FP32 or BF16 rows of at most 1024 elements, and no Pooling::kNone. Their batches
/// and gradients must be on the same GPU.
class PackedTables {
 public:
  enum class Initial { kDrawn, kUnset };

  /// Throws UserError like check_spec. Also throws it for tables with different optimizers and for
  /// specs that the device does not support.
  explicit PackedTables(PackSpec spec, Initial initial = Initial::kDrawn,
                        at::Device device = at::kCPU);
  /// Makes tables for lookups alone from rows in the caller's memory. `stored[t]` are the rows of
  /// table t in the form that stored(t) returns, contiguous, all on one device. There is no
  /// optimizer state. Throws UserError for other shapes, dtypes and devices.
  PackedTables(PackSpec spec, std::vector<at::Tensor> stored);

  const PackSpec& spec() const { return spec_; }
  at::Device device() const { return device_; }
  const std::vector<FeatureLayout>& features() const { return features_; }
  /// Number of rows of each feature's table, for check_jagged.
  const std::vector<int64_t>& feature_rows() const { return feature_rows_; }
  /// Returns the features that look into a table, ascending.
  const std::vector<int64_t>& features_of(int64_t table) const {
    return table_features_[static_cast<size_t>(table)];
  }
  /// Number of columns of a lookup's result. With pooling, it is the sum of the features' dims, or
  /// the spec's `columns` if feature_columns is set. Without pooling (kNone), it is the dim of a
  /// row.
  int64_t columns() const { return columns_; }
  /// Returns true if the tables have Pooling::kNone.
  bool unpooled() const {
    return !spec_.tables.empty() && spec_.tables.front().pooling == Pooling::kNone;
  }

  /// Returns the values of a table, (rows, dim) float32: a view if rows are stored as float32,
  /// otherwise a decoded copy.
  at::Tensor weight(int64_t table) const;
  /// Returns a view of a table's stored rows, (rows, stored_width) of stored_type (row_format.h).
  const at::Tensor& stored(int64_t table) const { return stored_.at(static_cast<size_t>(table)); }
  /// Returns the address of a table's first row. Rows are row_bytes apart.
  char* row_data(int64_t table) const;
  /// Returns the source of the random words with which the next `update` rounds a table's rows.
  RowRounding rounding(int64_t table) const;
  /// Declares that the rows of this table are slots: places that hold rows of a larger table,
  /// different ones over time. `row_of[i]` is the number of the row that slot i holds. The row's
  /// stochastic rounding depends on this number. Each update reads the array, so it must stay valid
  /// at this address, in the tables' memory. Call it before the first lookup.
  void set_rows_held(int64_t table, const uint32_t* row_of) {
    rows_held_[static_cast<size_t>(table)] = row_of;
  }
  /// Returns named_state of a table.
  std::vector<std::pair<std::string, at::Tensor>> state(int64_t table) const;
  /// Returns a view of all state of a table, (rows, state_per_row). For kAdam, a row has m first,
  /// then v.
  at::Tensor packed_state(int64_t table) const;

  /// Sets the learning rate of all tables.
  void set_lr(double lr);
  /// Number of updates so far: t of kAdam. Checkpoints save it with rows and state.
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }

  /// Layout of the tables in GPU memory (lookup_cuda.cpp), made by the first lookup.
  std::shared_ptr<const GpuLayout>& gpu_layout() const { return gpu_layout_; }

 private:
  PackedTables(PackSpec spec, at::Device device);
  void initialize(int64_t table) const;

  PackSpec spec_;
  at::Device device_;
  std::vector<FeatureLayout> features_;
  std::vector<int64_t> feature_rows_;
  std::vector<std::vector<int64_t>> table_features_;
  std::vector<int64_t> state_begin_;  ///< first element of each table's state in state_
  std::vector<const uint32_t*> rows_held_;
  std::vector<at::Tensor> stored_;  ///< rows of each table
  at::Tensor state_;
  int64_t columns_ = 0, steps_ = 0;
  mutable std::shared_ptr<const GpuLayout> gpu_layout_;
};

}  // namespace dovetail::embedding
