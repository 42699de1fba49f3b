#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "dovetail/comm/group.h"
#include "dovetail/train/config/options.h"
#include "dovetail/train/config/run_config.h"
#include "dovetail/train/resolve/resolved_run.h"

namespace dovetail {

/// Device, threads (set for the calling thread), data and model sizes; everything but the
/// precision, which a resumed run has decided already. Prepares the text on rank 0 if the config
/// names any, except in a dry run. All ranks together.
ResolvedRun resolve_run(const RunConfig& config, Group& group, const TrainOptions& options);

/// Precision, cost and memory.
void resolve_precision_and_size(ResolvedRun& run, Group& group,
                                const std::optional<std::string>& kept_precision);

/// Tokens that an expert multiplies at a time where the load is even; 0: no experts.
double tokens_of_an_expert(const RunConfig& config, int64_t micro_batch);
/// Those below which its product takes longer to read the weights than to multiply by them: n
/// tokens are 2 n FLOPs for each weight of `element` bytes.
double tokens_that_hide_weights(double flops, double bytes_per_s, int64_t element);

/// Maximum bytes that training takes on this rank. A run that saves between steps adds a copy to a
/// step's peak.
int64_t most_memory(const ResolvedRun& run);

/// "gpt 3.2 M parameters · bpe 2048 · context 256 · fp32 (bf16 probed: ...) · 19 MFLOP/token ·
/// needs 0.4 GB more of 23 GB available (up to 0.5 GB while a checkpoint is written) · text sha256
/// 5c1e...". Memory counts all ranks of this machine.
std::string summary_line(const ResolvedRun& run);

}  // namespace dovetail
