#pragma once

#include <memory>
#include <string>

#include "dovetail/data/text/tokenizer.h"

namespace dovetail::data {

/// Creates a byte-level BPE tokenizer from the content of a tokenizer.json. parse_tokenizer_json
/// lists what it rejects. Ids equal the ids of Hugging Face's `encode(text,
/// add_special_tokens=False)`. Text that spells an added token becomes that token. A document ends
/// with the first of <|endoftext|>, <|end_of_text|>, </s> and <eos> that is an added token.
std::unique_ptr<Tokenizer> bpe_tokenizer(const std::string& tokenizer_json,
                                         const std::string& name);

}  // namespace dovetail::data
