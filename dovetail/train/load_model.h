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

/// A checkpoint, and the config of the run that it is of.
struct StoredRun {
  Snapshot snapshot;
  RunConfig config;
  std::filesystem::path checkpoint;  ///< its own folder
};

/// `path` is a run's folder (its newest checkpoint that verifies), a checkpoint's, or that of an
/// exported recommender. Throws UserError when it is none of these, or when no checkpoint is good.
StoredRun read_stored_run(const std::filesystem::path& path);

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
/// That of read_stored_run.
LoadedModel load_model(const std::filesystem::path& run_or_checkpoint);

/// What a checkpoint stores of its model and tokenizer under `state`, so that it is self-contained.
nlohmann::json tokenizer_state(const Tokenizer& tokenizer);
std::unique_ptr<Tokenizer> tokenizer_from_state(const nlohmann::json& state);

/// A checkpoint of step 0 with the weights of `model` and no optimizer moments: where a run that
/// starts from imported weights begins.
Snapshot initial_snapshot(GPT& model, const Tokenizer& tokenizer, const RunConfig& config);

}  // namespace dovetail
