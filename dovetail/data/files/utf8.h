#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace dovetail {

/// The character at a place in text. A byte that begins no valid UTF-8 sequence is a character of
/// its own (kInvalid), so that a scan never loses or joins bytes.
struct Character {
  static constexpr int32_t kInvalid = -1;
  int32_t code = kInvalid;
  uint32_t length = 1;  ///< bytes
};

/// `at` < text.size(). Surrogates, overlong forms and code points past U+10FFFF are invalid.
Character character_at(std::string_view text, size_t at);

bool is_valid_utf8(std::string_view text);

/// `text` with U+FFFD for each byte that begins no valid sequence: what a model of bytes writes,
/// made fit for JSON.
std::string replace_invalid_utf8(std::string_view text);

/// Appends a valid code point.
void append_utf8(std::string& text, int32_t code);

/// The classes that split patterns speak of: \p{L}, \p{N}, \s (White_Space) and all else, invalid
/// bytes included.
enum class CharacterClass : uint8_t { kLetter, kNumber, kSpace, kOther };
CharacterClass class_of(int32_t code);

}  // namespace dovetail
