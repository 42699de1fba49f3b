#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "dovetail/data/text/data_config.h"
#include "dovetail/data/text/inputs.h"

namespace dovetail::data {

/// Progress of the current stage of `prepare`.
struct PrepareProgress {
  /// Number of units of work that are done, and number in the whole stage. A unit is a file in the
  /// stage "reading", and a piece of a file in the other stages.
  int64_t documents_done = 0, documents = 0;
  uint64_t bytes_done = 0, bytes = 0;  ///< the same work in bytes of input
  const char* stage = "";              ///< "reading", "training the tokenizer" or "tokenizing"
};

/// Result of `prepare`. A document is a text file, or a record of a JSON or Parquet file.
struct PrepareResult {
  std::filesystem::path folder;
  /// Number of documents that were converted, and number of tokens in each split.
  int64_t documents = 0, train_tokens = 0, validation_tokens = 0;
  uint64_t train_bytes = 0, validation_bytes = 0;  ///< bytes of text in each split
  /// Numbers of documents that were skipped. Duplicates have the content of an earlier document
  /// (data.deduplicate). Oversized ones are larger than data.max_document_bytes. Invalid ones are
  /// not UTF-8.
  int64_t duplicates_skipped = 0, oversized_skipped = 0, invalid_skipped = 0;
  int64_t empty_skipped = 0;  ///< number of documents without text: "" or null
  int64_t bad_skipped = 0;    ///< number of bad records that data.bad_row = "skip" left out
  std::vector<PassedOver> passed_over;  ///< files that were found but not read
  std::string sha256;                   ///< SHA-256 of manifest.json
  bool reused = false;  ///< true if the folder was already up to date and is unchanged
};

/// Converts the text that `config` names to tokens. Writes them to `folder`, which is then called a
/// prepared folder. TokenStore opens it. The folder gets these files:
///
/// - manifest.json: settings, relative paths and hashes of the input files, counts, checksum of
///   each shard (TokenManifest)
/// - the tokenizer's file
/// - train-*.tokens and validation-*.tokens: shards, which are files of tokens to memory-map
///
/// Runs in parallel. After a killed run, the next run keeps the shards that were finished. A folder
/// that was made from the same files and settings is left unchanged. Documents are ordered by
/// relative path, so the result does not depend on threads. Throws UserError for input that cannot
/// be read and for globs without a match.
PrepareResult prepare(const DataConfig& config, const std::filesystem::path& folder,
                      const std::function<void(const PrepareProgress&)>& progress = {});

}  // namespace dovetail::data
