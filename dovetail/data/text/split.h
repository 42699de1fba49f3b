#pragma once

#include <string>
#include <string_view>

namespace dovetail::data {

/// Patterns by which byte-level BPE splits text into words. A pair is never merged across words.
enum class SplitPattern { kGpt2, kLlama3 };

/// Returns the regular expression of the pattern, as tokenizer.json writes it.
std::string_view split_regex(SplitPattern pattern);

/// Returns the number of bytes of the first word of `text`, which must not be empty. This is the
/// first match of the pattern's regular expression. The words cover the whole text, since the
/// patterns leave no character out. Invalid bytes count as neither letter, number nor space.
size_t first_word(std::string_view text, SplitPattern pattern);

/// Parses "gpt2" or "llama3". Throws UserError for any other name.
SplitPattern split_pattern(const std::string& name);

}  // namespace dovetail::data
