#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace dovetail::data {

/// Character at a position in a text. A byte that begins no valid UTF-8 sequence is an invalid
/// character of length 1. So a scan from character to character visits every byte, also in damaged
/// text.
struct Character {
  static constexpr int32_t kInvalid = -1;
  int32_t code = kInvalid;  ///< Unicode code point, or kInvalid
  uint32_t length = 1;      ///< length in bytes
};

/// Returns the character that begins at byte `at`, with `at` < text.size(). Surrogates, overlong
/// forms and code points past U+10FFFF are invalid.
Character character_at(std::string_view text, size_t at);

bool is_valid_utf8(std::string_view text);

/// Returns `text` with U+FFFD in place of each byte that begins no valid UTF-8 sequence. The result
/// can be written as JSON. Needed for the output of language models whose tokens are bytes.
std::string replace_invalid_utf8(std::string_view text);

/// Appends the UTF-8 form of `code`, a valid code point, to `text`.
void append_utf8(std::string& text, int32_t code);

/// Character classes of the regular expressions by which tokenizers split text into words. kLetter:
/// \p{L}. kNumber: \p{N}. kSpace: \s (Unicode's White_Space). kOther: every other character, and
/// Character::kInvalid.
enum class CharacterClass : uint8_t { kLetter, kNumber, kSpace, kOther };
/// Returns the class of a code point or of Character::kInvalid.
CharacterClass class_of(int32_t code);

}  // namespace dovetail::data
