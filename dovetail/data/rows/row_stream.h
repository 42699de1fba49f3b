#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "dovetail/data/rows/row_batch.h"

namespace dovetail::data {

/// Selection of rows to read from the files. The training and validation rows are the same as in a
/// training run with the same config.
enum class RowSplit { kTrain, kValidation, kAll };

/// Parses "train", "validation" or "all". Throws UserError for another name.
RowSplit parse_row_split(const std::string& name);

/// Position of one rank among the `world` ranks that divide the rows of a stream among them.
struct RankPart {
  int rank = 0, world = 1;
};

/// Batch of rows from a stream, in file order.
struct StreamedRows {
  int64_t taken = 0;  ///< number of rows that this call took from the stream for all ranks together
  RowBatch batch;     ///< this rank's rows among them
  std::vector<int64_t> files;    ///< for each row of `batch`: index of its file in RowStream::files
  std::vector<int64_t> numbers;  ///< for each row of `batch`: its number in the file, from 1
};

/// Reads rows once, in file order, without computing statistics over them. It serves to score rows
/// with a model that was trained elsewhere. Memory: the blocks with the rows of a batch, and
/// `config.threads` blocks ahead. (RowReader explains blocks.)
class RowStream {
 public:
  /// `scales` has the mean and deviation of each dense column that the model was trained with.
  /// Throws as RowReader does.
  RowStream(const RowsConfig& config, RowSplit split, const std::vector<DenseScale>& scales);
  ~RowStream();

  /// Takes the next `rows` rows that are valid and have a label. Near the end of the files it takes
  /// fewer, and finally none. If n rows are taken, this rank gets rows [n * rank / world, n * (rank
  /// + 1) / world) of them.
  ///
  /// With bad_row = "error", throws UserError for the first bad row. With "skip", throws UserError
  /// for more than config.max_bad_rows bad rows.
  StreamedRows next(int64_t rows, RankPart part = {});

  /// Returns the files from which blocks were read so far.
  const std::vector<std::filesystem::path>& files() const;
  int64_t num_bad() const;                    ///< bad rows left out so far
  int64_t num_unlabelled() const;             ///< rows without a label left out so far
  std::vector<std::string> warnings() const;  ///< float_id_warnings for the rows read so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dovetail::data
