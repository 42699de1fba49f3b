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

/// What a lookup makes of the rows of a bag: their sum or mean, or nothing (kNone): the row of
/// every id, by itself.
enum class Pooling { kSum, kMean, kNone };

/// "sum", "mean", "none". Throws UserError for another name.
Pooling parse_pooling(std::string_view name);

/// Which part of a larger table a table is: its row i is the whole's first_row + i * row_step, its
/// column c the whole's first_column + c.
struct TableSlice {
  int64_t first_row = 0, row_step = 1, first_column = 0;
  int64_t whole_rows = 0;  ///< 0: as many as the table has
};

struct TableSpec {
  std::string name;
  int64_t rows = 0, dim = 0;
  Pooling pooling = Pooling::kSum;
  TableSlice slice = {};
  bool hashed = false;    ///< without a fixed vocabulary (hashed.h): ids are keys, `rows` the most
                          ///< that there may be
  int64_t max_bytes = 0;  ///< of a hashed one: memory of all that belongs to it; 0: any
  std::optional<OptimizerSpec> optimizer = {};  ///< in place of the general one
};

/// Tables and the features that look into them: of a whole collection, or of a pack, whose lookups
/// are one operation and whose rows have one optimizer.
struct PackSpec {
  std::vector<TableSpec> tables;
  std::vector<int64_t>
      feature_table;        ///< of each feature, the index of its table; several may share one
  OptimizerSpec optimizer;  ///< of the tables that have none of their own
  uint64_t seed = 0;
  /// Where each feature's pooled rows begin in an output of `columns`, which other packs may share;
  /// empty: side by side in an output of their own.
  std::vector<int64_t> feature_columns = {};
  int64_t columns = 0;
  RowDtype row_dtype = RowDtype::kFloat32;
};

/// Throws UserError for names that are not unique, sizes below 1, more than 2^31 rows in a table,
/// features without a table, columns that lie outside of the output, an optimizer's number out of
/// its range, and Pooling::kNone beside other poolings or of several dimensions: an output is
/// (samples, columns) of pooled rows or (ids, dim) of rows.
void check_spec(const PackSpec& spec);

/// The optimizer of a table.
const OptimizerSpec& optimizer_of(const PackSpec& spec, int64_t table);
/// Its rate when the general one has become `lr`: the ratio of the spec's rates stays.
double rate_of(const PackSpec& spec, int64_t table, double lr);
/// The float32 numbers of state that its rows have.
int64_t state_per_row(const PackSpec& spec, int64_t table);

/// (elements) float32, uninitialised, on the CPU on huge pages where the system gives them: rows
/// are read in no order, each of them a miss of the TLB with pages of 4 KiB.
at::Tensor allocate(int64_t elements, at::Device device = at::kCPU);

/// The initial values of a table's rows: uniform in [-bound, bound), of dim elements, and a
/// function of (seed, name of the table, row, column) alone, row and column of the whole table
/// where a slice is held.
class InitialRows {
 public:
  InitialRows(uint64_t seed, std::string_view table, float bound, int64_t dim,
              const TableSlice& slice = {});
  /// Writes the dim elements of a row; of tables without a fixed vocabulary, the row is the key.
  void fill(uint64_t row, float* values) const;
  /// Writes a row as it is stored, rounded as `row_rounding` has it for step 0.
  void store(RowDtype dtype, uint64_t row, void* to) const;

 private:
  uint64_t key_, rounding_key_;
  float bound_;
  int64_t dim_;
  TableSlice slice_;
};

/// 1 / sqrt(rows), the bound of the initial values of a table of so many rows, as in the reference
/// code of DLRM (arXiv 1906.00091).
float initial_bound(int64_t rows);

/// Those of a table, within initial_bound of the whole.
InitialRows initial_rows(uint64_t seed, const TableSpec& table);

/// How the rows of a table are rounded in a step: the words are a function of (seed, name of the
/// table, step, row, column), row and column of the whole table where a slice is held.
RowRounding row_rounding(uint64_t seed, std::string_view table, const TableSlice& slice,
                         int64_t step);

/// Where a feature's rows lie in a pack and where its pooled rows go.
struct FeatureLayout {
  int64_t table;
  int64_t column;  ///< the first of its columns in the pooled output
};

/// The rows of all tables of a pack in one storage, in the spec's row_dtype, their optimizer's
/// state, float32, in another. A table's rows follow one another; tables begin at a cache line.
///
/// Initial values are those of initial_rows; state begins at zero. kUnset leaves both undefined,
/// for rows that are moved in from elsewhere. Tables on a GPU have rows of 1024 elements at most,
/// in FP32 or BF16, and pool them; a batch and its gradient lie there too.
class PackedTables {
 public:
  enum class Initial { kDrawn, kUnset };

  /// Throws UserError as check_spec, for several optimizers and for what the device cannot have.
  explicit PackedTables(PackSpec spec, Initial initial = Initial::kDrawn,
                        at::Device device = at::kCPU);

  const PackSpec& spec() const { return spec_; }
  at::Device device() const { return weights_.device(); }
  const std::vector<FeatureLayout>& features() const { return features_; }
  /// The rows of each feature's table, as check_jagged takes them.
  const std::vector<int64_t>& feature_rows() const { return feature_rows_; }
  /// The features of a table, ascending.
  const std::vector<int64_t>& features_of(int64_t table) const {
    return table_features_[static_cast<size_t>(table)];
  }
  /// The columns of the pooled output: the sum of the features' dims, or what the spec says.
  /// Without pooling: the dim.
  int64_t columns() const { return columns_; }
  /// Whether the tables are of Pooling::kNone.
  bool unpooled() const {
    return !spec_.tables.empty() && spec_.tables.front().pooling == Pooling::kNone;
  }

  /// (rows, dim) float32: a view of the table's rows where they are stored so, else a copy of what
  /// they stand for.
  at::Tensor weight(int64_t table) const;
  /// (rows, stored_width) of stored_type: a view of the table's rows.
  at::Tensor stored(int64_t table) const;
  /// Its first row, of row_bytes.
  char* row_data(int64_t table) const;
  /// How `update` rounds the rows of its next step.
  RowRounding rounding(int64_t table) const;
  /// For rows that are moved in from elsewhere: `row_of` has for each row the one of the table that
  /// it holds, by which it is rounded. It must stay where it is.
  void set_rows_held(int64_t table, const uint32_t* row_of) {
    rows_held_[static_cast<size_t>(table)] = row_of;
  }
  /// The table's state by the names of optimizer.h, views: (rows) for kRowWiseAdagrad, else (rows,
  /// dim).
  std::vector<std::pair<std::string, at::Tensor>> state(int64_t table) const;
  /// (rows, state_per_row): all of it, a row's m and then its v for kAdam.
  at::Tensor packed_state(int64_t table) const;

  void set_lr(double lr);
  /// Updates so far: t of kAdam. A checkpoint keeps it beside rows and state.
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }

 private:
  void initialize(int64_t table) const;

  PackSpec spec_;
  std::vector<FeatureLayout> features_;
  std::vector<int64_t> feature_rows_;
  std::vector<std::vector<int64_t>> table_features_;
  std::vector<int64_t> weight_begin_, state_begin_;  // in bytes and in elements, one for each table
  std::vector<const uint32_t*> rows_held_;
  at::Tensor weights_, state_;
  int64_t columns_ = 0, steps_ = 0;
};

}  // namespace dovetail::embedding
