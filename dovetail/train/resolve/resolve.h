#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "dovetail/comm/group.h"
#include "dovetail/train/config/options.h"
#include "dovetail/train/config/run_config.h"
#include "dovetail/train/resolve/resolved_run.h"

namespace dovetail::train {

/// Makes the decisions of a ResolvedRun about device, threads, data and model sizes. Sets the
/// number of CPU threads of the calling thread. Call resolve_precision_and_size next. It is a
/// separate function since a resumed run keeps its precision.
///
/// If the config names text, rank 0 tokenizes it into the prepared folder (data/text/prepare.h),
/// except in a dry run. All ranks call this together.
ResolvedRun resolve_run(const RunConfig& config, comm::Group& group, const TrainOptions& options);

/// Sets `precision`, `size` (parameters, FLOPs) and `memory` (estimated bytes) of `run`.
/// `kept_precision`: precision of the run that is resumed; nullopt for a new run. All ranks call
/// this together.
void resolve_precision_and_size(ResolvedRun& run, comm::Group& group,
                                const std::optional<std::string>& kept_precision);

/// Returns the number of tokens in one matrix product of an expert if all experts get equally many
/// tokens. It is micro_batch * model.context * k * parallel.expert / (E * parallel.overlap) with E
/// experts, k of them per token. Overlap "auto" counts as 1. Returns 0 without experts.
double tokens_of_an_expert(const RunConfig& config, int64_t micro_batch);
/// Returns the number n of tokens for which an expert takes as long to multiply its weights as to
/// read them. With fewer tokens the product is bound by memory. A weight of `element` bytes takes 2
/// n FLOPs, so n = flops / bytes_per_s * element / 2. Here `flops` is the speed of products in
/// FLOP/s, and `bytes_per_s` the speed of reading memory.
double tokens_that_hide_weights(double flops, double bytes_per_s, int64_t element);

/// Returns the estimated maximum bytes that training takes on this rank. If the run saves
/// checkpoints between steps, this includes the copy that is written to a checkpoint during a step.
int64_t maximum_memory(const ResolvedRun& run);

/// Returns the estimated bytes that training takes on this rank with micro-batches of `micro_batch`
/// samples. Requires resolve_precision_and_size. The run trains a GPT.
models::MemoryEstimate memory_with(const ResolvedRun& run, int64_t micro_batch);

/// Returns a line for the log that describes the run. Bytes in it are sums over all ranks of this
/// machine. Example:
///
/// "gpt 3.2 M parameters · bpe 2048 · context 256 · fp32 (bf16 probed: ...) · 19 MFLOP/token ·
/// needs 0.4 GB more of 23 GB available (up to 0.5 GB while a checkpoint is written) · data sha256
/// 5c1e..."
std::string summary_line(const ResolvedRun& run);

}  // namespace dovetail::train
