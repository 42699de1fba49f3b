#pragma once

#include <memory>
#include <string>

#include "dovetail/data/text/tokenizer.h"

namespace dovetail::data {

/// Creates a byte-level BPE tokenizer from the content of a tokenizer.json, Hugging Face's file
/// format. Throws UserError if the content has an unsupported part; parse_tokenizer_json lists such
/// parts. `name` stands for the file in errors.
///
/// `encode` returns the same ids as Hugging Face's `encode(text, add_special_tokens=False)`. Text
/// that spells an added token, such as "<|endoftext|>", becomes that token. The candidates for the
/// token that ends a document are <|endoftext|>, <|end_of_text|>, </s> and <eos>. The first of
/// these that is an added token ends a document.
std::unique_ptr<Tokenizer> bpe_tokenizer(const std::string& tokenizer_json,
                                         const std::string& name);

}  // namespace dovetail::data
