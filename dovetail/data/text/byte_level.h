#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dovetail {

/// GPT-2's spelling of bytes: each of the 256 is one printable character, so that any token is a
/// JSON string. Printable Latin-1 stands for itself, the other 68 bytes are U+0100 and on.
std::string byte_level_spelling(std::string_view bytes);

/// The bytes that a token's spelling stands for; none if a character of it spells no byte.
std::optional<std::string> byte_level_bytes(std::string_view spelling);

/// Bytes in the order of their spelling's code points: the ids of an alphabet as GPT-2's vocabulary
/// numbers it.
const std::array<uint8_t, 256>& byte_level_alphabet();

}  // namespace dovetail
