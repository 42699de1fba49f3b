#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dovetail {

/// manifest.json of a prepared folder: what was prepared, how, and what the folder must hold. It is
/// a function of the files' content and the settings: no time, no absolute path, so its SHA-256
/// names a data set.
struct TokenManifest {
  static constexpr const char* kFile = "manifest.json";

  struct Shard {
    std::string file;  ///< a plain name in the folder
    uint64_t tokens = 0, text_bytes = 0;
    std::string sha256;  ///< of the file
  };
  struct SplitPart {
    uint64_t tokens = 0, text_bytes = 0;  ///< sums over the shards
    std::vector<Shard> shards;
  };
  struct TokenizerPart {
    std::string kind, file, sha256;  ///< file and sha256 are empty for bytes
    int64_t vocab_size = 0;
    uint64_t trained_on_bytes = 0;  ///< 0: given, not trained
  };
  struct Source {
    std::string path;  ///< relative
    uint64_t bytes = 0;
    std::string sha256;
  };

  std::string
      fingerprint;  ///< SHA-256 of settings and sources: the same fingerprint means nothing to do
  std::string settings;  ///< JSON text of the settings that determine the result
  TokenizerPart tokenizer;
  uint64_t documents = 0, duplicates_skipped = 0, oversized_skipped = 0, invalid_skipped = 0;
  uint64_t empty_skipped = 0, bad_skipped = 0;  ///< written if not 0
  SplitPart splits[2];                          ///< by Split
  std::vector<Source> sources;
};

/// Throws UserError with `name` when it is not a manifest, is of another version, or contradicts
/// itself.
TokenManifest parse_manifest(std::string_view content, const std::string& name);
std::string write_manifest(const TokenManifest& manifest);

}  // namespace dovetail
