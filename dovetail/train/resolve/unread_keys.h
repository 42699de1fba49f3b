#pragma once

#include <string>

#include "dovetail/train/config/run_config.h"

namespace dovetail::train {

/// Throws UserError for a key that the trained model does not read, if its value is not the
/// default. A GPT does not read [rows]; a recommender does not read [model].
void check_sections(const RunConfig& config);

/// Throws UserError for a key that has no effect because of a key in another section. A key with
/// its default value is accepted, since nobody asked for it. A value that states what happens
/// anyway is accepted, too. Example: log.experts_every = 0 (never) without experts.
void check_effects(const RunConfig& config);

/// Sets keys of `stored`, the config of a checkpoint, to their defaults if nothing reads them.
/// Earlier versions of the program accepted and stored such keys. This version refuses them.
void forget_unread_keys(RunConfig& stored);

/// Returns a warning if model.ffn_width is set, but has no effect. This is so if every block has
/// experts, which do not read the key. Otherwise returns an empty string. It is no error: the same
/// config may be trained with and without experts.
std::string unread_ffn_width(const models::ModelConfig& resolved);

/// Throws UserError if a key of [eval] is set. Call it for a run without a validation split, where
/// these keys have no effect. The error gives `why` as the reason for the missing split.
void check_nothing_held_out(const EvalSection& eval, const std::string& why);

/// Returns the names of keys that are set, but have no effect on one rank. They matter only if
/// ranks exchange data. Example: "comm.timeout_s, embedding.exchange".
std::string keys_of_several_ranks(const RunConfig& config);

}  // namespace dovetail::train
