#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dovetail/comm/group.h"
#include "dovetail/models/size.h"
#include "dovetail/train/config.h"
#include "dovetail/train/precision.h"
#include "dovetail/train/trainer.h"

namespace dovetail {

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
  ModelSize size;
  MemoryEstimate memory;         ///< estimate for this rank
  uint64_t available_bytes = 0;  ///< available on this machine, for all its ranks
  int local_ranks = 1;           ///< ranks on this machine
};

/// Decides device, threads (set for the calling thread), data and model sizes. The precision is
/// decided later, because a resumed run keeps its precision. Prepares the text on rank 0 if the
/// config names any, except in a dry run. All ranks call this together.
ResolvedRun resolve_run(const RunConfig& config, Group& group, const TrainOptions& options);

/// Decides precision, compute cost and memory estimate of `run`. `kept_precision` is the precision
/// of the run that is resumed, if any.
void resolve_precision_and_size(ResolvedRun& run, Group& group,
                                const std::optional<std::string>& kept_precision);

/// Returns the number of tokens that an expert multiplies at a time if the load is even; 0 without
/// experts.
double tokens_of_an_expert(const RunConfig& config, int64_t micro_batch);
/// Returns the number of tokens below which an expert's product is bound by memory. Then reading
/// the weights takes longer than multiplying by them. n tokens take 2 n FLOPs for each weight of
/// `element` bytes.
double tokens_that_hide_weights(double flops, double bytes_per_s, int64_t element);

/// Returns the maximum bytes that training takes on this rank. If the run saves between steps, the
/// copy for the checkpoint adds to a step's peak.
int64_t most_memory(const ResolvedRun& run);

/// Returns the summary for the log. Memory counts all ranks of this machine. Example:
///
/// "gpt 3.2 M parameters · bpe 2048 · context 256 · fp32 (bf16 probed: ...) · 19 MFLOP/token ·
/// needs 0.4 GB more of 23 GB available (up to 0.5 GB while a checkpoint is written) · text sha256
/// 5c1e..."
std::string summary_line(const ResolvedRun& run);

}  // namespace dovetail
