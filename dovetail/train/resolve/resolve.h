#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "dovetail/comm/group.h"
#include "dovetail/train/config/options.h"
#include "dovetail/train/config/run_config.h"
#include "dovetail/train/resolve/resolved_run.h"

namespace dovetail::train {

/// Decides device, threads (set for the calling thread), data and model sizes. The precision is
/// decided later, because a resumed run keeps its precision. Prepares the text on rank 0 if the
/// config names any, except in a dry run. All ranks call this together.
ResolvedRun resolve_run(const RunConfig& config, comm::Group& group, const TrainOptions& options);

/// Decides precision, compute cost and memory estimate of `run`. `kept_precision` is the precision
/// of the run that is resumed, if any.
void resolve_precision_and_size(ResolvedRun& run, comm::Group& group,
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

}  // namespace dovetail::train
