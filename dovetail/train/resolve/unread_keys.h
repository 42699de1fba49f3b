#pragma once

#include <string>

#include "dovetail/train/config/run_config.h"

namespace dovetail {

/// Throws UserError for a key of a section that what is trained does not read: [rows] of a GPT,
/// [model] of a recommender.
void check_sections(const RunConfig& config);

/// Throws UserError for a key that a key of another section leaves without effect. Keys with their
/// defaults pass: nobody asked for them. So does a value that holds anyway, such as
/// log.experts_every = 0 without experts.
void check_effects(const RunConfig& config);

/// Sets keys that no reader has to their defaults, in a config stored by a version that accepted
/// them.
void forget_unread_keys(RunConfig& stored);

/// Warning about the width of dense feed-forwards in a model that has none; empty: it has. The key
/// stays valid: a config that is trained with and without experts has it.
std::string unread_ffn_width(const ModelConfig& resolved);

/// Throws UserError for keys of evaluations in a run without a validation split; `why` names the
/// reason.
void check_nothing_held_out(const EvalSection& eval, const std::string& why);

/// "comm.timeout_s, embedding.exchange": keys that are given and about what ranks exchange. One
/// rank reads none.
std::string keys_of_several_ranks(const RunConfig& config);

}  // namespace dovetail
