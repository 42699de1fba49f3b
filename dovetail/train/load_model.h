#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "dovetail/data/tokenizer.h"
#include "dovetail/io/checkpoint.h"
#include "dovetail/train/config.h"

namespace dovetail {

class GPT;

/// A checkpoint and the config of its run.
struct StoredRun {
  Snapshot snapshot;
  RunConfig config;
  std::filesystem::path checkpoint;  ///< folder of the checkpoint
};

/// Reads the checkpoint at `path`. `path` is a run's folder, a checkpoint's folder or the folder of
/// an exported recommender. In a run's folder it takes the newest checkpoint that verifies. Throws
/// UserError if `path` is none of these or no checkpoint verifies.
StoredRun read_stored_run(const std::filesystem::path& path);

/// Model of a checkpoint, ready to evaluate, generate or export. It is float32 on the CPU (float64
/// if the run's recipe is fp64).
struct LoadedModel {
  std::shared_ptr<GPT> model;
  std::unique_ptr<Tokenizer> tokenizer;
  RunConfig config;  ///< config of the run, with sizes resolved
  int64_t step = 0;
  std::filesystem::path checkpoint;  ///< folder of the checkpoint
};

/// Makes the model of a GPT's checkpoint. Throws UserError for a recommender, or if the tensors do
/// not match the config.
LoadedModel load_model(const StoredRun& stored);
/// Loads the model of the checkpoint that `read_stored_run` finds.
LoadedModel load_model(const std::filesystem::path& run_or_checkpoint);

/// Converts a tokenizer to and from the entry "tokenizer" of a checkpoint's `state`. It makes the
/// checkpoint self-contained.
nlohmann::json tokenizer_state(const Tokenizer& tokenizer);
std::unique_ptr<Tokenizer> tokenizer_from_state(const nlohmann::json& state);

/// Makes a checkpoint of step 0 with the weights of `model` and no optimizer moments. A run that
/// starts from imported weights begins there.
Snapshot initial_snapshot(GPT& model, const Tokenizer& tokenizer, const RunConfig& config);

}  // namespace dovetail
