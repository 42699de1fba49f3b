#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "dovetail/models/size.h"
#include "dovetail/train/config/run_config.h"
#include "dovetail/train/numerics/precision.h"

namespace dovetail::train {

/// Facts about the text before training. They come from the prepared folders. In a dry run without
/// prepared folders they come from the config.
struct DataSummary {
  /// SHA-256 of each source's manifest, in the order of the config; empty if nothing is prepared
  /// yet.
  std::vector<std::string> sha256;
  std::string tokenizer_kind;
  int64_t tokenizer_vocab = 0;
  int64_t train_tokens = 0, validation_tokens = 0;  ///< tokens of the first source
};

/// All decisions that are made before the first large allocation.
struct ResolvedRun {
  RunConfig config;  ///< with sizes, run.folder and data.path filled in
  DataSummary data;
  at::Device device = at::kCPU;
  Precision precision;
  int threads = 1;  ///< threads of this rank
  /// Samples at once on this rank; the minimum if train.micro_batch = "auto".
  int64_t micro_batch = 1;
  /// Maximum samples per step that a rank may ever have.
  int64_t most_samples = 1;
  models::ModelSize size;
  models::MemoryEstimate memory;  ///< estimate for this rank
  uint64_t available_bytes = 0;   ///< available on this machine, for all its ranks
  int local_ranks = 1;            ///< ranks on this machine
};

}  // namespace dovetail::train
