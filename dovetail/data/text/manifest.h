#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dovetail::data {

/// Content of manifest.json of a prepared folder (see prepare): what was prepared, how, and which
/// files the folder must hold. It depends on the content of the input files and the settings alone.
/// It contains no time and no absolute path. Its SHA-256 therefore identifies a data set.
struct TokenManifest {
  static constexpr const char* kFile = "manifest.json";

  /// File of tokens (token_shard.h).
  struct Shard {
    std::string file;  ///< file name without a folder
    /// Number of tokens, and bytes of the text that they encode.
    uint64_t tokens = 0, text_bytes = 0;
    std::string sha256;  ///< SHA-256 of the file
  };
  /// Training or validation data.
  struct SplitPart {
    uint64_t tokens = 0, text_bytes = 0;  ///< sums over the shards
    std::vector<Shard> shards;            ///< in order: each continues the tokens of the one before
  };
  struct TokenizerPart {
    /// Kind as in Tokenizer::kind, and name and SHA-256 of the tokenizer's file in the folder. The
    /// kind "bytes" has no file: name and SHA-256 are empty.
    std::string kind, file, sha256;
    int64_t vocab_size = 0;
    /// Bytes of text on which the tokenizer was trained. 0: it was given, not trained.
    uint64_t trained_on_bytes = 0;
  };
  /// Input file.
  struct Source {
    std::string path;    ///< InputFile::relative
    uint64_t bytes = 0;  ///< size of the file
    std::string sha256;  ///< SHA-256 of the file
  };

  /// SHA-256 of settings and sources. If `prepare` would compute the same fingerprint, the folder
  /// is up to date.
  std::string fingerprint;
  std::string settings;  ///< JSON text of the settings that determine the result
  TokenizerPart tokenizer;
  /// Numbers of documents, as in PrepareResult.
  uint64_t documents = 0, duplicates_skipped = 0, oversized_skipped = 0, invalid_skipped = 0;
  uint64_t empty_skipped = 0, bad_skipped = 0;  ///< also; manifest.json omits a count of 0
  SplitPart splits[2];                          ///< indexed by Split
  std::vector<Source> sources;
};

/// Parses the content of a manifest.json. Throws UserError if it is not a manifest, has another
/// version or contradicts itself. `name` stands for the file in errors.
TokenManifest parse_manifest(std::string_view content, const std::string& name);
/// Returns the content of manifest.json.
std::string write_manifest(const TokenManifest& manifest);

}  // namespace dovetail::data
