#pragma once

#include <memory>
#include <string>

#include "dovetail/data/text/tokenizer.h"

namespace dovetail::data {

/// Creates a tokenizer from `model`, the content of a SentencePiece model file. Throws UserError if
/// the content is not a model. `name` stands for the file in errors.
std::unique_ptr<Tokenizer> sentencepiece_tokenizer(const std::string& model,
                                                   const std::string& name);

}  // namespace dovetail::data
