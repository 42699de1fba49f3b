#include "dovetail/data/text/byte_level.h"

#include <algorithm>
#include <numeric>

#include "dovetail/data/files/utf8.h"

namespace dovetail::data {
namespace {

constexpr int32_t kFirstSubstitute = 0x100;
constexpr int32_t kEndOfSpelling = kFirstSubstitute + 68;

const std::array<int32_t, 256>& spelling_of_bytes() {
  static const auto table = [] {
    std::array<int32_t, 256> codes{};
    int32_t substitute = kFirstSubstitute;
    for (int32_t byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
      codes[static_cast<size_t>(byte)] = printable ? byte : substitute++;
    }
    return codes;
  }();
  return table;
}

}  // namespace

std::string byte_level_spelling(std::string_view bytes) {
  std::string spelling;
  for (const char c : bytes)
    append_utf8(spelling, spelling_of_bytes()[static_cast<unsigned char>(c)]);
  return spelling;
}

std::optional<std::string> byte_level_bytes(std::string_view spelling) {
  static const auto byte_of_code = [] {
    std::array<int16_t, kEndOfSpelling> table{};
    table.fill(-1);
    for (size_t byte = 0; byte < 256; ++byte)
      table[static_cast<size_t>(spelling_of_bytes()[byte])] = static_cast<int16_t>(byte);
    return table;
  }();
  std::string bytes;
  for (size_t at = 0; at < spelling.size();) {
    const Character c = character_at(spelling, at);
    if (c.code < 0 || c.code >= kEndOfSpelling || byte_of_code[static_cast<size_t>(c.code)] < 0)
      return std::nullopt;
    bytes.push_back(static_cast<char>(byte_of_code[static_cast<size_t>(c.code)]));
    at += c.length;
  }
  return bytes;
}

const std::array<uint8_t, 256>& byte_level_alphabet() {
  static const auto alphabet = [] {
    std::array<uint8_t, 256> bytes{};
    std::iota(bytes.begin(), bytes.end(), uint8_t{0});
    const auto& codes = spelling_of_bytes();
    std::sort(bytes.begin(), bytes.end(),
              [&](uint8_t a, uint8_t b) { return codes[a] < codes[b]; });
    return bytes;
  }();
  return alphabet;
}

}  // namespace dovetail::data
