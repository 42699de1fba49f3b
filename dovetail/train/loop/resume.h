#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <map>
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

/// Facts about its beginning that a run needs if it began from another run (run.start_from).
struct StartedFrom {
  /// Steps that the hashed tables had ended before the run's first step. Ages of keys count on.
  int64_t table_steps = 0;
  /// Parameters that came with this run, and the number of updates before their first one
  /// (Optimizer::set_beginnings).
  std::map<std::string, int64_t> updates_before;
};

/// Progress of a run. A checkpoint stores it in addition to weights and moments. The step gives the
/// position in the data. All randomness is a function of run.seed and the step, so no generator
/// state is stored.
struct RunState {
  int64_t step = 0;              ///< steps done
  int64_t updates = 0;           ///< steps that updated the weights: all but the skipped ones
  int64_t skipped_in_a_row = 0;  ///< number of consecutive skipped steps that end at `step`
  int64_t tokens = 0;  ///< tokens (recommender: samples) that the run has trained on so far
  std::optional<StepMetrics> last;            ///< metrics of step `step`
  std::optional<StepMetrics> last_evaluated;  ///< metrics of the newest step with a validation
  /// Mean and standard deviation of each dense column; empty for a GPT.
  std::vector<data::DenseScale> dense_scales;
  std::vector<int64_t> shares;  ///< micro-batches of each rank per step, if balance.mode = "auto"
  /// Steps at which a process resumed the run, this one included.
  std::vector<int64_t> resumed_from;
  StartedFrom started;  ///< empty unless run.start_from is set
};

/// Returns the `state` of a checkpoint (io::Snapshot). It includes the resolved config and the
/// tokenizer (null: no tokenizer), so a checkpoint is self-contained. `ranks` is the number of
/// ranks of the job.
nlohmann::json checkpoint_state(const RunState& state, const ResolvedRun& run,
                                const data::Tokenizer* tokenizer, int ranks);

/// Converts `scales` to the entry "dense_scales" of a checkpoint's state.
nlohmann::json to_json(const std::vector<data::DenseScale>& scales);
/// Returns the scales in the entry "dense_scales" of a checkpoint's state; none if it is absent
/// (GPT).
std::vector<data::DenseScale> dense_scales(const nlohmann::json& state);

/// Returns the RunState in a checkpoint's state. `step` is the step of the checkpoint. Keys that
/// are absent, as in imported weights, take their defaults.
RunState run_state(const nlohmann::json& state, int64_t step);
/// Returns the config in the state of a checkpoint, also of one that an earlier version wrote.
/// `name` is for error messages.
RunConfig stored_config(const nlohmann::json& state, const std::string& name);
/// Returns a choice of the run that wrote the state: "precision" ("bf16") or "attention" ("flash").
/// Nullopt if the run made no such choice, or if the weights are imported.
std::optional<std::string> stored_choice(const nlohmann::json& state, const char* key);

/// Checks that `run`, with `ranks` ranks, can resume from a checkpoint of step `step`. Throws
/// UserError with the differing keys if model, data, seed or batch differ. Returns warnings about
/// differing keys that are allowed: length, schedule, optimizer, clipping, micro-batches, ranks.
/// See docs/training.md.
std::vector<std::string> check_same_run(const nlohmann::json& state, const ResolvedRun& run,
                                        int64_t step, int ranks);

/// Loads the tensors of a checkpoint (`tensors`, on rank 0) into the optimizer of every rank, which
/// all have the whole model. `updates` is RunState::updates. All ranks call it together.
void load_on_all_ranks(Optimizer& optimizer, const std::map<std::string, at::Tensor>& tensors,
                       int64_t updates, comm::Group& group);

/// Copies the tensors of a checkpoint (`tensors`, on rank 0) into the optimizer and `model` of
/// every rank. Each rank gets only its part of experts that are spread over ranks (`parallel`) and
/// of sharded optimizer state. `updates` is RunState::updates. All ranks call it together.
void restore(Optimizer& optimizer, const models::GPT& model, const ExpertParallel& parallel,
             const std::map<std::string, at::Tensor>& tensors, int64_t updates, comm::Group& group);

}  // namespace dovetail::train
