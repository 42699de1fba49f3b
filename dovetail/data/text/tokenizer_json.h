#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/data/text/split.h"

namespace dovetail::data {

/// Content of a Hugging Face tokenizer.json with byte-level BPE. Such a tokenizer splits text into
/// words, begins with one token per byte of a word, then merges adjacent tokens.
struct BpeFile {
  /// Rule of BPE: an adjacent pair of tokens `left`, `right` becomes token `result`. All are ids.
  struct Merge {
    int32_t left, right, result;
  };
  /// Token that is found in a text as a whole, before the text is split into words.
  struct Added {
    std::string content;  ///< text of the token
    int32_t id;
    bool special;     ///< control token such as <|endoftext|>
    bool normalized;  ///< is found only after all tokens that are not normalized
  };
  SplitPattern split = SplitPattern::kGpt2;  ///< rule by which text is split into words
  /// True: a word that equals a token becomes that token, whatever its merges would produce.
  bool ignore_merges = false;
  /// Bytes of each token, indexed by id. Empty for an id that the file leaves out.
  std::vector<std::string> tokens;
  std::array<int32_t, 256> byte_ids{};  ///< id of the token for each single byte
  std::vector<Merge> merges;  ///< by priority: an earlier rule is applied before a later one
  std::vector<Added> added;
};

/// Parses a tokenizer.json; `name` stands for the file in errors. Throws UserError for invalid
/// content and for parts that Dovetail does not support. Examples: a normalizer, a model other than
/// BPE, another pre-tokenizer, an option of an added token. The error names the part as the file
/// does.
///
/// The file's post-processor is ignored. In Hugging Face's library, it adds tokens around a text
/// for `encode(..., add_special_tokens=True)`.
BpeFile parse_tokenizer_json(std::string_view content, const std::string& name);

/// Returns the content of a tokenizer.json, which Hugging Face's library `tokenizers` can load.
std::string write_tokenizer_json(const BpeFile& file);

}  // namespace dovetail::data
