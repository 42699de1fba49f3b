#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "dovetail/jobs/runtime.h"
#include "dovetail/models/size.h"
#include "dovetail/train/config/run_config.h"
#include "dovetail/train/numerics/precision.h"

namespace dovetail::train {

/// Facts about the training text. They are read from the folders of tokenized text
/// (data/text/prepare.h), one per source of [data]. In a dry run without these folders they come
/// from the config.
struct DataSummary {
  /// SHA-256 of each source's manifest.json, in the order of the config. Empty if nothing is
  /// prepared yet.
  std::vector<std::string> sha256;
  std::string tokenizer_kind;                       ///< bytes | bpe | sentencepiece
  int64_t tokenizer_vocab = 0;                      ///< number of tokens in its vocabulary
  int64_t train_tokens = 0, validation_tokens = 0;  ///< tokens in each split of the first source
};

/// Attention kernel of a run on a GPU.
struct AttentionKernel {
  std::string name;    ///< "flash" or "cudnn"; empty: there is no choice
  std::string reason;  ///< measured times, for the log; empty without a measurement
};

/// All decisions that are made before the first large allocation. resolve_run and
/// resolve_precision_and_size (resolve.h) fill it.
struct ResolvedRun {
  RunConfig config;              ///< config with sizes, run.folder and data.path filled in
  DataSummary data;              ///< empty for a recommender
  at::Device device = at::kCPU;  ///< device of the weights and the optimizer
  /// Executors that share each step, if run.device lists them. The first one is `device`.
  std::vector<jobs::ExecutorSpec> executors;
  Precision precision;
  AttentionKernel attention;  ///< set by resolve_attention; empty on the CPU
  int threads = 1;            ///< CPU threads of this rank
  /// Samples that this rank processes at a time. If train.micro_batch = "auto", this is the
  /// smallest size that may be chosen: recommender.grain.
  int64_t micro_batch = 1;
  /// Maximum samples of a rank in one step, for any shares that balance may choose
  /// (BatchShares::maximum_possible_samples).
  int64_t maximum_samples = 1;
  models::ModelSize size;                        ///< numbers of parameters and FLOPs
  models::MemoryEstimate memory;                 ///< estimated bytes of this rank's training
  models::MemoryEstimateOptions memory_options;  ///< options of `memory`; unused by recommenders
  /// Free bytes of memory, in total for all ranks of this machine. It is the GPU's memory if the
  /// run uses the GPU.
  uint64_t available_bytes = 0;
  int local_ranks = 1;  ///< number of ranks on this machine
  /// Number of ranks that write a checkpoint together, each an equal part. 0: this rank writes
  /// none.
  int checkpoint_ranks = 1;

  /// Returns true if checkpoints are copied and written beside training. Copies would not fit in a
  /// memory.budget for the CPU's memory.
  bool copies_for_checkpoints() const { return config.memory.budget.empty() || !device.is_cpu(); }
};

}  // namespace dovetail::train
