#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace dovetail::data {

/// Character at a position in a text. A byte that begins no valid UTF-8 sequence is a character of
/// its own (kInvalid). A scan therefore never loses or joins bytes.
struct Character {
  static constexpr int32_t kInvalid = -1;
  int32_t code = kInvalid;
  uint32_t length = 1;  ///< length in bytes
};

/// Returns the character that begins at byte `at`, with `at` < text.size(). Surrogates, overlong
/// forms and code points past U+10FFFF are invalid.
Character character_at(std::string_view text, size_t at);

bool is_valid_utf8(std::string_view text);

/// Returns `text` with U+FFFD in place of each byte that begins no valid sequence. Makes the output
/// of a model of bytes fit for JSON.
std::string replace_invalid_utf8(std::string_view text);

/// Appends a valid code point as UTF-8.
void append_utf8(std::string& text, int32_t code);

/// Classes of characters in split patterns: \p{L}, \p{N}, \s (White_Space), and all others,
/// including invalid bytes.
enum class CharacterClass : uint8_t { kLetter, kNumber, kSpace, kOther };
CharacterClass class_of(int32_t code);

}  // namespace dovetail::data
