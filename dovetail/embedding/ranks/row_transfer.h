#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "dovetail/comm/all_to_all.h"
#include "dovetail/embedding/pack/lookup.h"
#include "dovetail/embedding/ranks/message.h"
#include "dovetail/embedding/ranks/table_placement.h"

namespace dovetail::embedding {

/// Messages of one pack with Transfer::kRows, on one rank. The rows themselves are in ShardedPack.
/// Messages of ids are on the CPU. Messages of rows and gradients are on the device of the rows.
///
/// In a step, a rank sends each distinct id of its samples once to the ranks that hold the row.
/// Each of these sends the row back once. The samples' rank pools the rows. In backward, it sums
/// the gradients of a row over its samples, and sends one sum for each row. So neither empty bags
/// nor repeated ids cost bytes.
///
/// Ids of a table are distinct over all features that look into it. Rows keep the order in which
/// they first occur, by (feature, sample, position). This order does not depend on micro-batches.
class RowTransfer {
 public:
  /// Rows that the samples of this rank read in one step.
  struct Step {
    /// The rank's samples, on the CPU. An id is the number of a row in `tables`.
    Jagged batch;
    /// For each table of the pack, number of rows of each rank, and their first row in `tables`.
    std::vector<std::vector<int64_t>> counts, first;
    /// For each table, number of its distinct rows.
    std::vector<int64_t> distinct;
    /// The distinct rows as tables of their own. Set by receive_rows or take_rows.
    std::optional<PackedTables> tables;
  };
  /// Ids from one rank, on the CPU. After ShardedPack::begin they are rows of the rank's tables.
  struct Received {
    /// One sample. The bag of a feature has the ids that occur in it and in no feature before.
    Jagged ids;
    /// Occurrences of each id in the samples of the rank that sent it, (N) int64. Undefined if they
    /// are not sent.
    at::Tensor occurrences;
  };
  /// Returns rows of a table with the given row numbers, (n, dim) float32. `table` is the table's
  /// number on this rank.
  using Gather = std::function<at::Tensor(int64_t table, const at::Tensor& rows)>;

  /// `counted`: ids travel with their occurrences. Hashed tables and tiers count them. `device` has
  /// the rows.
  RowTransfer(const PackSpec& spec, const TablePlacement& plan, const PlacedPack& pack,
              int64_t rank, const comm::Payloads& payloads, bool counted, at::Device device);

  /// Finds the distinct rows of a batch, which has the pack's features. `message` becomes the ids
  /// for each rank. They are int32 words, in this order:
  /// - the number of ids in each bag of Received::ids,
  /// - the ids as row numbers on that rank, or two words for a hashed key (lower half first),
  /// - the occurrences of each id, if they are sent.
  Step write_ids(const Jagged& batch, Message& message) const;
  /// Decodes the ids from each rank. `counts[r]` is the number of words from rank r.
  std::vector<Received> read_ids(const at::Tensor& words, const std::vector<int64_t>& counts) const;

  /// Returns the received ids of each of this rank's tables, (n) int64: one rank after the other.
  /// `ids` below are the result of this call, on the device on which the tables take ids.
  std::vector<at::Tensor> ids_of_tables(const std::vector<Received>& received) const;

  /// Returns the messages that send rows to the ranks that asked for them.
  Message write_rows(const std::vector<Received>& received, const std::vector<at::Tensor>& ids,
                     const Gather& gather) const;
  /// Returns how many elements of rows this rank gets from each rank.
  std::vector<int64_t> row_elements(const Step& step) const;
  /// Sets step.tables from the messages that all ranks made with write_rows.
  void receive_rows(const at::Tensor& elements, Step& step) const;
  /// Sets step.tables from this rank's own replica.
  void take_rows(const std::vector<Received>& received, const std::vector<at::Tensor>& ids,
                 const Gather& gather, Step& step) const;

  /// Returns messages with the gradient of each distinct row. `gradients` are the micro-batches of
  /// step.batch, on the device of the rows. A row's gradient is summed in the order (sample,
  /// feature, position).
  Message write_gradients(const Step& step, const std::vector<PooledGradient>& gradients) const;
  /// Returns how many elements of gradients this rank gets from each rank.
  std::vector<int64_t> gradient_elements(const std::vector<Received>& received) const;
  /// Returns the gradients from each rank. `elements` are the messages that all ranks made with
  /// write_gradients.
  std::vector<RowGradients> read_gradients(const at::Tensor& elements,
                                           const std::vector<Received>& received,
                                           const std::vector<at::Tensor>& ids) const;

 private:
  /// Part of a table that a rank holds.
  struct TablePart {
    int64_t table;  ///< number within the pack
    int64_t first_column, dim;
    std::vector<size_t> features;  ///< features of the table, as positions in Part::features
  };
  struct Part {
    std::vector<int64_t> features;  ///< numbers within the pack, ascending
    std::vector<TablePart> tables;
  };
  /// A distinct id of a table. `id`: row number or key on `rank`. With Sharding::kRowWise, only
  /// `rank` holds the row.
  struct Entry {
    int64_t id, rank;
    int32_t occurrences;
  };
  /// Distinct ids of each table, and the first and last + 1 of each feature.
  struct Entries {
    std::vector<std::vector<Entry>> of_table;
    std::vector<size_t> begin, end;
  };

  bool by_rows() const { return sharding_ == Sharding::kRowWise; }
  const Part& own_part() const { return parts_[static_cast<size_t>(rank_)]; }
  Entries find_distinct(const Jagged& batch, int64_t* numbers) const;
  void place_rows(const Entries& entries, int64_t* numbers, Step& step) const;
  Message write_entries(const Entries& entries) const;
  PackSpec spec_of(const Step& step) const;
  /// Sets step.tables. `rows` has one element for each table of each rank in [first_rank,
  /// end_rank).
  void assemble(Step& step, int64_t first_rank, int64_t end_rank,
                const std::vector<at::Tensor>& rows) const;
  /// Returns the number of a table's ids from each rank.
  static std::vector<int64_t> counts_of(const std::vector<Received>& received,
                                        const TablePart& part);

  Sharding sharding_;
  bool hashed_, counted_;
  int64_t ranks_, rank_, id_words_;
  comm::Payloads payloads_;
  at::Device device_;
  std::vector<std::vector<int64_t>> table_features_;  ///< features of each table of the pack
  std::vector<int64_t> table_rank_;                   ///< for kTableWise: rank of each table
  std::vector<Part> parts_;                           ///< part of each rank
  PackSpec spec_;  ///< pack of the distinct rows; its tables have no rows yet
};

}  // namespace dovetail::embedding
