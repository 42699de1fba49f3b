#pragma once

#include <string>
#include <string_view>

namespace dovetail {

/// The two ways in which byte-level BPE cuts text into words before merging. A pair is never merged
/// across words.
enum class SplitPattern { kGpt2, kLlama3 };

/// The regular expression of the pattern, as tokenizer.json writes it.
std::string_view split_regex(SplitPattern pattern);

/// Bytes of the first word of `text` (not empty). What the regular expression of the pattern
/// matches first: each text is cut completely, since the patterns leave no character out. Invalid
/// bytes count as neither letter, number nor space.
size_t first_word(std::string_view text, SplitPattern pattern);

/// "gpt2" or "llama3". Throws UserError for any other name.
SplitPattern split_pattern(const std::string& name);

}  // namespace dovetail
