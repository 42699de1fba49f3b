#pragma once

#include <memory>
#include <string>

#include "dovetail/data/text/tokenizer.h"

namespace dovetail {

/// A SentencePiece model from its file's content. Throws UserError, with `name`, when it is none.
std::unique_ptr<Tokenizer> sentencepiece_tokenizer(const std::string& model,
                                                   const std::string& name);

}  // namespace dovetail
