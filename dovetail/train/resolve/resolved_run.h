#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "dovetail/models/size.h"
#include "dovetail/train/config/run_config.h"
#include "dovetail/train/numerics/precision.h"

namespace dovetail {

/// What is known of the text before training: the prepared folders, or for a dry run without any,
/// what the config says.
struct DataSummary {
  std::vector<std::string> sha256;  ///< of each source's manifest, in the order of the config;
                                    ///< empty: nothing prepared yet
  std::string tokenizer_kind;
  int64_t tokenizer_vocab = 0;
  int64_t train_tokens = 0, validation_tokens = 0;  ///< of the first source
};

/// Everything that is decided before the first large allocation.
struct ResolvedRun {
  RunConfig config;  ///< sizes, run.folder and data.path filled in
  DataSummary data;
  at::Device device = at::kCPU;
  Precision precision;
  int threads = 1;           ///< of this rank
  int64_t micro_batch = 1;   ///< samples at once on this rank; of "auto" the least
  int64_t most_samples = 1;  ///< of a step that a rank may have
  ModelSize size;
  MemoryEstimate memory;         ///< of this rank
  uint64_t available_bytes = 0;  ///< of this machine, for all its ranks
  int local_ranks = 1;           ///< ranks on this machine
};

}  // namespace dovetail
