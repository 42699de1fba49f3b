#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "dovetail/comm/group.h"
#include "dovetail/data/rows/row_batch.h"
#include "dovetail/embedding/ranks/distributed.h"
#include "dovetail/io/checkpoint.h"
#include "dovetail/train/embedding_tables/checkpoint.h"
#include "dovetail/train/embedding_tables/lookups.h"
#include "dovetail/train/loop/resume.h"
#include "dovetail/train/optimizer/optimizer.h"

namespace dovetail::train {

/// Begin of a recommender's run with the tables and dense weights of another run (run.start_from).
/// All are matched by name:
///
/// - A table of the same name is loaded. Its rows must still belong to the same ids.
/// - A dense parameter of the same name and shape is loaded if it reads the same inputs.
/// - A dense column keeps its mean and deviation.
/// - Everything else begins as in any new run.
///
/// The dense part is the model without its embedding tables.
class WarmStart {
 public:
  /// Matches the tables. `config` and `lookups` belong to the new run. `from` is the other run's
  /// checkpoint on rank 0, and null on other ranks. All ranks call it together. Throws UserError
  /// that names each table whose rows cannot be kept. Also throws it if no table has a known name.
  WarmStart(const RunConfig& config, const RecommenderLookups& lookups,
            const io::StoredCheckpoint* from, comm::Group& group);

  /// Returns the scale of each dense column (RowLoaderOptions::scales).
  std::vector<std::optional<data::DenseScale>> scales() const;

  /// Loads what matches. `from` and `group` as in the constructor. All ranks call it together.
  void load(Optimizer& optimizer, embedding::DistributedTables& tables,
            const io::StoredCheckpoint* from, comm::Group& group);

  /// Returns what the run stores about its beginning. Call it after `load`.
  const StartedFrom& started() const { return started_; }
  /// Returns the content of start.json (docs/recommenders.md). Call it on rank 0, after `load`.
  nlohmann::ordered_json record() const;
  /// Returns lines for the log that name what is new or left out. Call it on rank 0, after `load`.
  std::vector<std::string> lines() const;

 private:
  /// A table or parameter that is not loaded as it is, and the reason.
  struct Note {
    std::string name, why;
  };

  void match_tables(const RecommenderLookups& before, const RecommenderLookups& now);
  /// Loads the dense part on rank 0's optimizer. Returns its tensors.
  std::map<std::string, at::Tensor> dense_tensors(const Optimizer& optimizer,
                                                  const io::StoredCheckpoint& from);

  RunConfig config_, other_;
  RunState state_;  ///< state of the other run's checkpoint
  StoredTables stored_;
  StartedFrom started_;
  std::vector<std::string> loaded_tables_, new_tables_, unread_tables_;
  std::vector<Note> changed_tables_;  ///< loaded, but other rows or a new state
  std::vector<std::string> loaded_parameters_, unread_parameters_;
  std::vector<Note> new_parameters_;
};

}  // namespace dovetail::train
