#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/data/text/split.h"

namespace dovetail::data {

/// Content of a Hugging Face tokenizer.json with byte-level BPE.
struct BpeFile {
  struct Merge {
    int32_t left, right, result;
  };
  struct Added {
    std::string content;
    int32_t id;
    bool special;     ///< control token such as <|endoftext|>
    bool normalized;  ///< matched after all tokens that are not normalized
  };
  SplitPattern split = SplitPattern::kGpt2;
  /// A word that is itself a token becomes that token, whatever its merges produce.
  bool ignore_merges = false;
  std::vector<std::string> tokens;  ///< bytes of each id; empty for an id that the file leaves out
  std::array<int32_t, 256> byte_ids{};
  std::vector<Merge> merges;  ///< in the order of merging
  std::vector<Added> added;   ///< matched before the text is split into words
};

/// Parses a tokenizer.json. Throws UserError for invalid content and for parts that Dovetail does
/// not support. Examples: a normalizer, another model, another pre-tokenizer, an option of an added
/// token. The error names the part as the file does. The post-processor is not applied. It adds
/// tokens around a text for `encode(..., add_special_tokens=True)` in Hugging Face's library.
BpeFile parse_tokenizer_json(std::string_view content, const std::string& name);

/// Returns a tokenizer.json that Hugging Face's `tokenizers` loads.
std::string write_tokenizer_json(const BpeFile& file);

}  // namespace dovetail::data
