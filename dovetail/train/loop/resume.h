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

namespace dovetail {

/// Where a run stands: what a checkpoint stores beside weights and moments. The data position is
/// the step, and all randomness is keyed by run.seed and the step, so there is no generator state.
struct RunState {
  int64_t step = 0;     ///< steps done
  int64_t updates = 0;  ///< of which updated the weights
  int64_t skipped_in_a_row = 0;
  int64_t tokens = 0;                         ///< trained on so far
  std::optional<StepMetrics> last;            ///< of step `step`
  std::optional<StepMetrics> last_evaluated;  ///< the newest one with a validation
  std::vector<DenseScale> dense_scales;       ///< of a recommender's dense columns
  std::vector<int64_t> shares;                ///< balance.mode = "auto": micro-batches of each rank
  std::vector<int64_t>
      resumed_from;  ///< steps at which a process took the run up again, this one included
};

/// The `state` of a checkpoint of `run` (see Snapshot), with the resolved config and the tokenizer
/// (null: none), so that it is self-contained.
nlohmann::json checkpoint_state(const RunState& state, const ResolvedRun& run,
                                const Tokenizer* tokenizer, int ranks);

/// Its entry "dense_scales", and back; none in the state of a GPT.
nlohmann::json to_json(const std::vector<DenseScale>& scales);
std::vector<DenseScale> dense_scales(const nlohmann::json& state);

/// Reads the same; keys that imported weights do not have take their defaults.
RunState run_state(const nlohmann::json& state, int64_t step);
std::optional<std::string> stored_precision(const nlohmann::json& state);

/// Refuses (UserError naming the keys) a checkpoint of a run that would go on differently: model,
/// data, seed, batch; returns warnings for what may change on the way: length, schedule, optimizer,
/// clipping, micro-batches, ranks. See docs/training.md.
std::vector<std::string> check_same_run(const nlohmann::json& state, const ResolvedRun& run,
                                        int64_t step, int ranks);

/// Rank 0's `tensors` into every rank's optimizer and `model`. Experts may be spread (`parallel`),
/// or the optimizer's state be sharded.
void restore(Optimizer& optimizer, const GPT& model, const ExpertParallel& parallel,
             const std::map<std::string, at::Tensor>& tensors, int64_t updates, Group& group);

}  // namespace dovetail
