#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "dovetail/data/text/tokenizer.h"
#include "dovetail/io/checkpoint.h"
#include "dovetail/train/config/run_config.h"
#include "dovetail/train/numerics/model_precision.h"
#include "dovetail/train/run/stored_run.h"

namespace dovetail::models {
class GPT;
}  // namespace dovetail::models

namespace dovetail::train {

/// Model of a GPT's checkpoint on the CPU, ready to evaluate, generate or export.
struct LoadedModel {
  std::shared_ptr<models::GPT> model;
  std::unique_ptr<data::Tokenizer> tokenizer;
  RunConfig config;                  ///< config of the run, with sizes resolved
  int64_t step = 0;                  ///< step of the checkpoint
  std::filesystem::path checkpoint;  ///< folder of the checkpoint
  PrecisionSummary precision;        ///< number formats in which the model computes
  /// Samples that a rank of the run computed at a time. A scale of a whole tensor depends on it.
  int64_t micro_batch = 1;
};

/// Makes the model from a checkpoint. `precision` is a value of --precision
/// (choose_used_precision). Empty: as the run trained. Validation then gives the losses that the
/// run reported. Throws UserError
///
/// - for a recommender,
/// - if the tensors do not match the config,
/// - if the model cannot compute in `precision`. Example: delayed scaling reads the largest
///   magnitudes of earlier steps, but the run did not store them.
LoadedModel load_model(const StoredRun& stored, const std::string& precision = "");

/// Returns a checkpoint of step 0 with the weights of `model` and no optimizer moments. It is used
/// for imported weights: a run can start from this checkpoint.
io::Snapshot initial_snapshot(models::GPT& model, const data::Tokenizer& tokenizer,
                              const RunConfig& config);

}  // namespace dovetail::train
