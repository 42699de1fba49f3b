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

/// Finds the added tokens of a tokenizer in a text. An added token, such as <|endoftext|>, is
/// matched as a whole before the text is tokenized (BpeFile::Added). The search goes from left to
/// right; of the tokens that begin at a position, the longest wins. A first search finds the tokens
/// that are not `normalized`. A second search finds the `normalized` tokens, in the text between
/// the tokens of the first search.
class AddedTokens {
 public:
  explicit AddedTokens(const std::vector<BpeFile::Added>& tokens);

  /// Cuts `text` at its added tokens and passes on the pieces in order. Calls `token` with the id
  /// of each added token, and `plain` with the text between them (never empty).
  void cut(std::string_view text, const std::function<void(std::string_view)>& plain,
           const std::function<void(int32_t)>& token) const;

 private:
  /// Search for one of the two kinds of tokens.
  struct Pass {
    std::unordered_map<std::string, int32_t> ids;  ///< id of each token, by its text
    std::vector<size_t> lengths;     ///< lengths of the tokens in bytes, each once, descending
    std::array<bool, 256> begins{};  ///< true for each byte with which a token begins
    void cut(std::string_view text, const std::function<void(std::string_view)>& plain,
             const std::function<void(int32_t)>& token) const;
  };
  std::array<Pass, 2> passes_;  ///< for tokens that are not `normalized`, and for `normalized` ones
};

}  // namespace dovetail::data
