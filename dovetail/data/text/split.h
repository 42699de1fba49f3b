#pragma once

#include <string>
#include <string_view>

namespace dovetail::data {

/// Rule by which byte-level BPE splits text into words before it merges tokens. Tokens of different
/// words are never merged. A word is a match of a regular expression, of GPT-2 or of Llama 3.
enum class SplitPattern { kGpt2, kLlama3 };

/// Returns the regular expression of the pattern, as a Hugging Face tokenizer.json writes it.
std::string_view split_regex(SplitPattern pattern);

/// Returns the length in bytes of the first word of `text`, which must not be empty. The word is
/// the first match of the pattern's regular expression, and begins at the first byte. The words
/// cover the whole text, since the patterns leave no character out. Bytes that are not UTF-8 count
/// as neither letter, number nor space.
size_t first_word(std::string_view text, SplitPattern pattern);

/// Parses "gpt2" or "llama3". Throws UserError for any other name.
SplitPattern split_pattern(const std::string& name);

}  // namespace dovetail::data
