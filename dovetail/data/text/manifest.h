#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dovetail::data {

/// Content of manifest.json of a prepared folder: what was prepared, how, and which files the
/// folder must hold. It depends on the files' content and the settings alone, and has no time and
/// no absolute path. Its SHA-256 therefore identifies a data set.
struct TokenManifest {
  static constexpr const char* kFile = "manifest.json";

  struct Shard {
    std::string file;  ///< file name without a folder
    uint64_t tokens = 0, text_bytes = 0;
    std::string sha256;  ///< SHA-256 of the file
  };
  struct SplitPart {
    uint64_t tokens = 0, text_bytes = 0;  ///< sums over the shards
    std::vector<Shard> shards;
  };
  struct TokenizerPart {
    std::string kind, file, sha256;  ///< file and sha256 are empty for bytes
    int64_t vocab_size = 0;
    uint64_t trained_on_bytes = 0;  ///< 0: the tokenizer was given, not trained
  };
  struct Source {
    std::string path;  ///< relative path
    uint64_t bytes = 0;
    std::string sha256;
  };

  /// SHA-256 of settings and sources. A folder with the same fingerprint is up to date.
  std::string fingerprint;
  std::string settings;  ///< JSON text of the settings that determine the result
  TokenizerPart tokenizer;
  uint64_t documents = 0, duplicates_skipped = 0, oversized_skipped = 0, invalid_skipped = 0;
  uint64_t empty_skipped = 0, bad_skipped = 0;  ///< left out of the file if 0
  SplitPart splits[2];                          ///< indexed by Split
  std::vector<Source> sources;
};

/// Parses a manifest. Throws UserError with `name` if it is not a manifest, has another version or
/// contradicts itself.
TokenManifest parse_manifest(std::string_view content, const std::string& name);
std::string write_manifest(const TokenManifest& manifest);

}  // namespace dovetail::data
