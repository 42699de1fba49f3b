#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dovetail/data/text/tokenizer_json.h"

namespace dovetail::data {

/// Finds added tokens in a text, from left to right. The longest token that begins at a position
/// wins. Tokens that are not `normalized` are matched first. The others are matched in the text
/// between them.
class AddedTokens {
 public:
  explicit AddedTokens(const std::vector<BpeFile::Added>& tokens);

  /// Passes the text on in order: ordinary text (never empty) to `plain`, ids of added tokens to
  /// `token`.
  void cut(std::string_view text, const std::function<void(std::string_view)>& plain,
           const std::function<void(int32_t)>& token) const;

 private:
  struct Pass {
    std::unordered_map<std::string, int32_t> ids;
    std::vector<size_t> lengths;     ///< lengths of the tokens, longest first
    std::array<bool, 256> begins{};  ///< true for each byte that begins a token
    void cut(std::string_view text, const std::function<void(std::string_view)>& plain,
             const std::function<void(int32_t)>& token) const;
  };
  std::array<Pass, 2> passes_;
};

}  // namespace dovetail::data
