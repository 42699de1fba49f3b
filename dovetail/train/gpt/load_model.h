#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "dovetail/data/text/tokenizer.h"
#include "dovetail/io/checkpoint.h"
#include "dovetail/train/config/run_config.h"
#include "dovetail/train/run/stored_run.h"

namespace dovetail::models {
class GPT;
}  // namespace dovetail::models

namespace dovetail::train {

/// Model of a GPT's checkpoint, ready to evaluate, generate or export. It is float32 on the CPU
/// (float64 if the run's recipe is fp64).
struct LoadedModel {
  std::shared_ptr<models::GPT> model;
  std::unique_ptr<data::Tokenizer> tokenizer;
  RunConfig config;                  ///< config of the run, with sizes resolved
  int64_t step = 0;                  ///< step of the checkpoint
  std::filesystem::path checkpoint;  ///< folder of the checkpoint
};

/// Makes the model from a checkpoint. Throws UserError for a recommender, or if the tensors do not
/// match the config.
LoadedModel load_model(const StoredRun& stored);

/// Returns a checkpoint of step 0 with the weights of `model` and no optimizer moments. It is used
/// for imported weights: a run can start from this checkpoint.
io::Snapshot initial_snapshot(models::GPT& model, const data::Tokenizer& tokenizer,
                              const RunConfig& config);

}  // namespace dovetail::train
