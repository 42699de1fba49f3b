#include "dovetail/train/run/tokenizer_state.h"

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "dovetail/base/error.h"

namespace dovetail::train {
namespace {

constexpr std::string_view kBase64Digits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Base64 (RFC 4648): a SentencePiece model is binary, which a JSON string cannot hold.
std::string encode_base64(std::string_view bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t word = 0;
    for (size_t k = 0; k < 3; ++k)
      word = word << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0);
    for (size_t k = 0; k < 4; ++k) {
      out += i + k > bytes.size() ? '=' : kBase64Digits[word >> (18 - 6 * k) & 63];
    }
  }
  return out;
}

std::string decode_base64(std::string_view text) {
  std::string out;
  uint32_t word = 0;
  int bits = 0;
  while (text.ends_with('=')) text.remove_suffix(1);
  for (const char c : text) {
    const size_t digit = kBase64Digits.find(c);
    user_check(digit != std::string_view::npos, "the checkpoint's tokenizer is not valid base64");
    word = word << 6 | static_cast<uint32_t>(digit);
    bits += 6;
    if (bits >= 8) {
      bits -= 8;
      out += static_cast<char>(word >> bits & 255);
    }
  }
  return out;
}

}  // namespace

nlohmann::json tokenizer_state(const data::Tokenizer& tokenizer) {
  return {{"kind", tokenizer.kind()}, {"content", encode_base64(tokenizer.serialized())}};
}

std::unique_ptr<data::Tokenizer> tokenizer_from_state(const nlohmann::json& state) {
  user_check(state.is_object() && state.contains("kind") && state.contains("content") &&
                 state["kind"].is_string() && state["content"].is_string(),
             "the checkpoint's tokenizer entry has no kind and content");
  return data::make_tokenizer(state["kind"],
                              decode_base64(state["content"].get_ref<const std::string&>()),
                              "the checkpoint's tokenizer");
}

}  // namespace dovetail::train
