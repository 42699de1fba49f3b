#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/data/text/split.h"

namespace dovetail {

/// What a Hugging Face tokenizer.json with byte-level BPE says.
struct BpeFile {
  struct Merge {
    int32_t left, right, result;
  };
  struct Added {
    std::string content;
    int32_t id;
    bool special;     ///< control token such as <|endoftext|>
    bool normalized;  ///< matched after all tokens that are not
  };
  SplitPattern split = SplitPattern::kGpt2;
  bool ignore_merges = false;  ///< a word that is a token is that token, whatever its merges make
  std::vector<std::string> tokens;  ///< bytes of each id; an id that the file leaves out is empty
  std::array<int32_t, 256> byte_ids{};
  std::vector<Merge> merges;  ///< first merged first
  std::vector<Added> added;   ///< matched in text before it is split into words
};

/// Throws UserError for what is not valid, and for what Dovetail does not support (a normalizer,
/// another model, another pre-tokenizer, an option of an added token...), by its name in the file.
/// The post-processor is not applied: it adds tokens around a text, which is for `encode(...,
/// add_special_tokens=True)` in Hugging Face's library.
BpeFile parse_tokenizer_json(std::string_view content, const std::string& name);

/// tokenizer.json that Hugging Face's `tokenizers` loads.
std::string write_tokenizer_json(const BpeFile& file);

}  // namespace dovetail
