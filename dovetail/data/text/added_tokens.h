#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dovetail/data/text/tokenizer_json.h"

namespace dovetail {

/// Finds added tokens in text: from left to right, the longest that begins at a place; those that
/// are not `normalized` first, then the others in what is left between them.
class AddedTokens {
 public:
  explicit AddedTokens(const std::vector<BpeFile::Added>& tokens);

  /// Hands over the text in order: what is plain (not empty) and the ids of the tokens between.
  void cut(std::string_view text, const std::function<void(std::string_view)>& plain,
           const std::function<void(int32_t)>& token) const;

 private:
  struct Pass {
    std::unordered_map<std::string, int32_t> ids;
    std::vector<size_t> lengths;     ///< that occur, longest first
    std::array<bool, 256> begins{};  ///< first bytes that occur
    void cut(std::string_view text, const std::function<void(std::string_view)>& plain,
             const std::function<void(int32_t)>& token) const;
  };
  std::array<Pass, 2> passes_;
};

}  // namespace dovetail
