#pragma once

#include <string>

#include "dovetail/train/config/run_config.h"

namespace dovetail::train {

/// Throws UserError for a key that differs from its default although the trained model does not
/// read it. A GPT does not read [rows]; a recommender does not read [model].
void check_sections(const RunConfig& config);

/// Throws UserError for a key that has no effect because of a key in another section. A key with
/// its default value is accepted, since nobody asked for it. A value that states what happens
/// anyway is accepted, too. Example: log.experts_every = 0 (never) without experts.
void check_effects(const RunConfig& config);

/// Resets keys of a checkpoint's config that nothing reads to their defaults. Earlier versions of
/// the program accepted these keys and stored them; this version refuses them.
void forget_unread_keys(RunConfig& stored);

/// Returns a warning if model.ffn_width is set but every block has experts, which do not read it.
/// Otherwise returns an empty string. The key stays valid, because the same config may be trained
/// with and without experts.
std::string unread_ffn_width(const models::ModelConfig& resolved);

/// Throws UserError if a key of [eval] is set in a run without a validation split, where it has no
/// effect. The error gives `why` as the reason for the missing split.
void check_nothing_held_out(const EvalSection& eval, const std::string& why);

/// Returns the keys that are set although they only matter if ranks exchange data. Example:
/// "comm.timeout_s, embedding.exchange". A run on one rank reads none of them.
std::string keys_of_several_ranks(const RunConfig& config);

}  // namespace dovetail::train
