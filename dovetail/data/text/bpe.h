#pragma once

#include <memory>
#include <string>

#include "dovetail/data/text/tokenizer.h"

namespace dovetail::data {

/// Creates a byte-level BPE tokenizer from the content of a tokenizer.json, Hugging Face's file
/// format. Throws UserError, with `name` for the file, if the content has an unsupported part;
/// parse_tokenizer_json lists these.
///
/// `encode` returns the same ids as Hugging Face's `encode(text, add_special_tokens=False)`. Text
/// that spells an added token, such as "<|endoftext|>", becomes that token. The token that ends a
/// document is the first of <|endoftext|>, <|end_of_text|>, </s> and <eos> that is an added token.
std::unique_ptr<Tokenizer> bpe_tokenizer(const std::string& tokenizer_json,
                                         const std::string& name);

}  // namespace dovetail::data
