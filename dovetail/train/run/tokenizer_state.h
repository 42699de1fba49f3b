#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "dovetail/data/text/tokenizer.h"

namespace dovetail {

/// What a checkpoint stores of its model and tokenizer under `state`, so that it is self-contained.
nlohmann::json tokenizer_state(const Tokenizer& tokenizer);
std::unique_ptr<Tokenizer> tokenizer_from_state(const nlohmann::json& state);

}  // namespace dovetail
