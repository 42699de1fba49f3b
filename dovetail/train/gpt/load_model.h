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

namespace dovetail {

class GPT;

/// A model out of a checkpoint, ready to evaluate, generate or export: float32 (float64 for a run
/// of recipe fp64) on the CPU.
struct LoadedModel {
  std::shared_ptr<GPT> model;
  std::unique_ptr<Tokenizer> tokenizer;
  RunConfig config;  ///< as the run was trained, sizes resolved
  int64_t step = 0;
  std::filesystem::path checkpoint;  ///< the checkpoint's own folder
};

/// Throws UserError when it is of a recommender, or when the tensors are not those of the config.
LoadedModel load_model(const StoredRun& stored);

/// A checkpoint of step 0 with the weights of `model` and no optimizer moments: where a run that
/// starts from imported weights begins.
Snapshot initial_snapshot(GPT& model, const Tokenizer& tokenizer, const RunConfig& config);

}  // namespace dovetail
