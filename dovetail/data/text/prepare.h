#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "dovetail/data/text/data_config.h"
#include "dovetail/data/text/inputs.h"

namespace dovetail::data {

struct PrepareProgress {
  int64_t documents_done = 0, documents = 0;
  uint64_t bytes_done = 0, bytes = 0;
  const char* stage = "";  ///< "reading", "training the tokenizer" or "tokenizing"
};

struct PrepareResult {
  std::filesystem::path folder;
  int64_t documents = 0, train_tokens = 0, validation_tokens = 0;
  uint64_t train_bytes = 0, validation_bytes = 0;
  int64_t duplicates_skipped = 0, oversized_skipped = 0, invalid_skipped = 0;
  int64_t empty_skipped = 0;  ///< records and files without text: "" or null
  int64_t bad_skipped = 0;    ///< bad records that data.bad_row = "skip" left out
  std::vector<PassedOver> passed_over;
  std::string sha256;   ///< SHA-256 of the manifest
  bool reused = false;  ///< the folder was already up to date
};

/// Converts text to token shards in `folder`, which can be memory-mapped. It writes
///
/// - manifest.json: settings, relative paths and hashes of the sources, counts, checksum of each
///   shard
/// - the tokenizer's file
/// - train-*.tokens and validation-*.tokens
///
/// Runs in parallel. A run that was killed resumes from its finished shards. A folder that was made
/// from the same files and settings is left unchanged. Documents are ordered by relative path, so
/// the result does not depend on threads. Throws UserError for input that cannot be read and for
/// patterns without a match.
PrepareResult prepare(const DataConfig& config, const std::filesystem::path& folder,
                      const std::function<void(const PrepareProgress&)>& progress = {});

}  // namespace dovetail::data
