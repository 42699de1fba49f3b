#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dovetail/data/rows/row_batch.h"
#include "dovetail/data/text/tokenizer.h"
#include "dovetail/io/checkpoint.h"
#include "dovetail/train/metrics/metrics.h"
#include "dovetail/train/optimizer/optimizer.h"
#include "dovetail/train/ranks/expert_parallel.h"
#include "dovetail/train/resolve/resolved_run.h"

namespace dovetail::train {

/// Progress of a run, which a checkpoint stores in addition to weights and moments. The data
/// position is the step. All randomness is keyed by run.seed and the step, so no generator state is
/// stored.
struct RunState {
  int64_t step = 0;     ///< steps done
  int64_t updates = 0;  ///< steps that updated the weights
  int64_t skipped_in_a_row = 0;
  int64_t tokens = 0;                          ///< tokens trained on so far
  std::optional<StepMetrics> last;             ///< metrics of step `step`
  std::optional<StepMetrics> last_evaluated;   ///< metrics of the newest step with a validation
  std::vector<data::DenseScale> dense_scales;  ///< scales of a recommender's dense columns
  std::vector<int64_t> shares;  ///< micro-batches of each rank, if balance.mode = "auto"
  /// Steps at which a process resumed the run, including this process.
  std::vector<int64_t> resumed_from;
};

/// Returns the `state` of a checkpoint of `run` (see Snapshot). It includes the resolved config and
/// the tokenizer (null: no tokenizer). So a checkpoint is self-contained.
nlohmann::json checkpoint_state(const RunState& state, const ResolvedRun& run,
                                const data::Tokenizer* tokenizer, int ranks);

/// Converts scales to the entry "dense_scales" of a state, and back. Returns no scales for the
/// state of a GPT.
nlohmann::json to_json(const std::vector<data::DenseScale>& scales);
std::vector<data::DenseScale> dense_scales(const nlohmann::json& state);

/// Reads the result of checkpoint_state. Keys that imported weights do not have take their
/// defaults.
RunState run_state(const nlohmann::json& state, int64_t step);
std::optional<std::string> stored_precision(const nlohmann::json& state);

/// Checks that `run` can resume from a checkpoint. Throws UserError with the differing keys if
/// model, data, seed or batch differ. Returns warnings about keys that may differ: length,
/// schedule, optimizer, clipping, micro-batches, ranks. See docs/training.md.
std::vector<std::string> check_same_run(const nlohmann::json& state, const ResolvedRun& run,
                                        int64_t step, int ranks);

/// Copies rank 0's `tensors` into the optimizer and `model` of every rank. Experts may be spread
/// over ranks (`parallel`), or the optimizer's state may be sharded.
void restore(Optimizer& optimizer, const models::GPT& model, const ExpertParallel& parallel,
             const std::map<std::string, at::Tensor>& tensors, int64_t updates, comm::Group& group);

}  // namespace dovetail::train
