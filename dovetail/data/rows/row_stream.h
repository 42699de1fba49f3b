#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "dovetail/data/rows/row_batch.h"

namespace dovetail {

/// Which rows of the files: those that a run with this config trains on, those it holds out, or
/// all.
enum class RowSplit { kTrain, kValidation, kAll };

/// "train", "validation", "all". Throws UserError for another name.
RowSplit parse_row_split(const std::string& name);

/// One of `world` ranks that read the same rows.
struct RankPart {
  int rank = 0, world = 1;
};

/// Rows of a stream, in the order of the files.
struct StreamedRows {
  int64_t taken = 0;  ///< of the stream, by all ranks
  RowBatch batch;
  std::vector<int64_t> files;    ///< of each row, the index in RowStream::files
  std::vector<int64_t> numbers;  ///< and where it stands there, from 1
};

/// Rows read once, from the first to the last, with nothing measured on them: what is scored by a
/// model that was trained elsewhere. Memory: the blocks of a batch and `config.threads` ahead.
class RowStream {
 public:
  /// `scales` are the model's. Throws as RowReader does.
  RowStream(const RowsConfig& config, RowSplit split, const std::vector<DenseScale>& scales);
  ~RowStream();

  /// Takes the next `rows` rows that could be understood and have a label, fewer at the end, at
  /// last none, and gives this rank's: of n those in [n * rank / world, n * (rank + 1) / world).
  /// Throws UserError for the first bad row, or for one more than config.max_bad_rows, as
  /// configured.
  StreamedRows next(int64_t rows, RankPart part = {});

  const std::vector<std::filesystem::path>& files() const;
  int64_t num_bad() const;                    ///< left out so far
  int64_t num_unlabelled() const;             ///< left out so far
  std::vector<std::string> warnings() const;  ///< warnings of FloatIds for the rows so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dovetail
