#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "dovetail/data/rows/row_batch.h"

namespace dovetail::data {

/// Rows of the files to read: training rows, validation rows or all. A run with the same config
/// trains on the training rows and evaluates on the validation rows.
enum class RowSplit { kTrain, kValidation, kAll };

/// Parses "train", "validation" or "all". Throws UserError for another name.
RowSplit parse_row_split(const std::string& name);

/// One of `world` ranks that divide the rows of a stream among them.
struct RankPart {
  int rank = 0, world = 1;
};

/// Batch of rows from a stream, in file order.
struct StreamedRows {
  int64_t taken = 0;  ///< rows that all ranks together took from the stream
  RowBatch batch;
  std::vector<int64_t> files;    ///< index of each row's file in RowStream::files
  std::vector<int64_t> numbers;  ///< number of each row in its file, from 1
};

/// Reads rows once, in file order, without computing statistics over them. Used to score rows with
/// a model that was trained elsewhere. Memory: the blocks of a batch and `config.threads` blocks
/// ahead.
class RowStream {
 public:
  /// `scales` are the scales of the model. Throws as RowReader does.
  RowStream(const RowsConfig& config, RowSplit split, const std::vector<DenseScale>& scales);
  ~RowStream();

  /// Takes the next `rows` rows that are valid and have a label. There are fewer rows at the end,
  /// and finally none. Of n rows taken, this rank gets rows [n * rank / world, n * (rank + 1) /
  /// world). Throws UserError for the first bad row if bad_row = "error". With "skip", throws
  /// UserError for more than config.max_bad_rows bad rows.
  StreamedRows next(int64_t rows, RankPart part = {});

  const std::vector<std::filesystem::path>& files() const;
  int64_t num_bad() const;                    ///< bad rows left out so far
  int64_t num_unlabelled() const;             ///< rows without a label left out so far
  std::vector<std::string> warnings() const;  ///< float_id_warnings for the rows read so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dovetail::data
