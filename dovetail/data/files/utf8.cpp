#include "dovetail/data/files/utf8.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

namespace dovetail::data {
namespace {

// Unicode's White_Space property. Unlike category Z, it includes controls and excludes the
// zero-width U+200B.
bool is_white_space(int32_t code) {
  return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

CharacterClass classify(int32_t code) {
  if (code < 0) return CharacterClass::kOther;
  if (is_white_space(code)) return CharacterClass::kSpace;
  switch (utf8proc_category(code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return CharacterClass::kLetter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return CharacterClass::kNumber;
    default:
      return CharacterClass::kOther;
  }
}

}  // namespace

Character character_at(std::string_view text, size_t at) {
  const auto first = static_cast<unsigned char>(text[at]);
  if (first < 0x80) return {first, 1};
  utf8proc_int32_t code = -1;
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at;
  const auto left = static_cast<utf8proc_ssize_t>(std::min<size_t>(text.size() - at, 4));
  const utf8proc_ssize_t length = utf8proc_iterate(bytes, left, &code);
  if (length <= 0) return {};
  return {code, static_cast<uint32_t>(length)};
}

bool is_valid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Character c = character_at(text, at);
    if (c.code == Character::kInvalid) return false;
    at += c.length;
  }
  return true;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string valid;
  for (size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    valid += character.code == Character::kInvalid ? std::string_view("\uFFFD")
                                                   : text.substr(at, character.length);
    at += character.length;
  }
  return valid;
}

void append_utf8(std::string& text, int32_t code) {
  std::array<utf8proc_uint8_t, 4> bytes{};
  const utf8proc_ssize_t length = utf8proc_encode_char(code, bytes.data());
  text.append(reinterpret_cast<const char*>(bytes.data()), static_cast<size_t>(length));
}

CharacterClass class_of(int32_t code) {
  static const auto ascii = [] {
    std::array<CharacterClass, 128> table{};
    for (int32_t c = 0; c < 128; ++c) table[static_cast<size_t>(c)] = classify(c);
    return table;
  }();
  return code >= 0 && code < 128 ? ascii[static_cast<size_t>(code)] : classify(code);
}

}  // namespace dovetail::data
