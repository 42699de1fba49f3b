#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "dovetail/data/text/tokenizer.h"

namespace dovetail::train {

/// Converts a tokenizer to the entry "tokenizer" of a checkpoint's state. The entry holds the whole
/// tokenizer, so a checkpoint needs no other file.
nlohmann::json tokenizer_state(const data::Tokenizer& tokenizer);
/// Makes the tokenizer from `state`, a result of tokenizer_state. Throws UserError if it is
/// invalid.
std::unique_ptr<data::Tokenizer> tokenizer_from_state(const nlohmann::json& state);

}  // namespace dovetail::train
