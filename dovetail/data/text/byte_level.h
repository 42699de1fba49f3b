#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dovetail::data {

/// Returns `bytes` in GPT-2's spelling, which has one printable character for each byte. A
/// tokenizer.json spells its tokens in this way, since JSON strings cannot hold arbitrary bytes. A
/// byte that is printable in Latin-1 is spelled as its character. The other 68 bytes, in ascending
/// order, are spelled as U+0100, U+0101 and so on.
std::string byte_level_spelling(std::string_view bytes);

/// Returns the bytes that a spelling stands for: the inverse of byte_level_spelling. Returns
/// nullopt if a character stands for no byte.
std::optional<std::string> byte_level_bytes(std::string_view spelling);

/// Returns all 256 bytes, sorted by the code points of their spellings. GPT-2's vocabulary
/// numbers the tokens of single bytes in this order.
const std::array<uint8_t, 256>& byte_level_alphabet();

}  // namespace dovetail::data
