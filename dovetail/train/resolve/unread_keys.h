#pragma once

#include <string>

#include "dovetail/train/config/run_config.h"

namespace dovetail::train {

/// Throws UserError for a key of a section that the trained model does not read. A GPT does not
/// read [rows]; a recommender does not read [model].
void check_sections(const RunConfig& config);

/// Throws UserError for a key that has no effect because of a key in another section. Keys with
/// their defaults pass, since nobody asked for them. A value that holds anyway passes, too, such as
/// log.experts_every = 0 (never) without experts.
void check_effects(const RunConfig& config);

/// Resets keys that nothing reads to their defaults. Earlier versions accepted these keys and
/// stored them in a config.
void forget_unread_keys(RunConfig& stored);

/// Returns a warning if model.ffn_width is set but the model has no dense feed-forward; otherwise
/// empty. The key stays valid, because the same config may be trained with and without experts.
std::string unread_ffn_width(const models::ModelConfig& resolved);

/// Throws UserError for keys of evaluations in a run without a validation split. `why` is the
/// reason, for the error.
void check_nothing_held_out(const EvalSection& eval, const std::string& why);

/// Returns the given keys that only matter if ranks exchange data: "comm.timeout_s,
/// embedding.exchange". A run on one rank reads none of them.
std::string keys_of_several_ranks(const RunConfig& config);

}  // namespace dovetail::train
