#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "dovetail/data/text/tokenizer.h"

namespace dovetail::train {

/// Converts a tokenizer to and from the entry "tokenizer" of a checkpoint's `state`. It makes the
/// checkpoint self-contained.
nlohmann::json tokenizer_state(const data::Tokenizer& tokenizer);
std::unique_ptr<data::Tokenizer> tokenizer_from_state(const nlohmann::json& state);

}  // namespace dovetail::train
