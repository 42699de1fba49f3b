#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dovetail::data {

/// Returns GPT-2's spelling of bytes: one printable character for each byte, so that any token is a
/// JSON string. A byte that is printable in Latin-1 keeps its character. The other 68 bytes are
/// U+0100 and following.
std::string byte_level_spelling(std::string_view bytes);

/// Returns the bytes that a token's spelling stands for. Returns nullopt if one of its characters
/// stands for no byte.
std::optional<std::string> byte_level_bytes(std::string_view spelling);

/// Returns the 256 bytes in the order of their spellings' code points. GPT-2's vocabulary numbers
/// the single bytes in this order.
const std::array<uint8_t, 256>& byte_level_alphabet();

}  // namespace dovetail::data
